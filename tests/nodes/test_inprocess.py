"""The oracle takes what a cluster's nodes would take, and no more."""

from pathlib import Path

import pytest

from fedsim.config import build
from fedsim.errors import UserError
from fedsim.results.folder import RunFolder
from nodes.inprocess import Oracle
from protocol.codec import unpack
from protocol.limits import Limits


def oracle(path: Path, max_frame_mib: int) -> Oracle:
    """Prototypes of 45,000 numbers: those of six classes have more than one MiB and less than two."""
    sections = {
        "run": {"clients": 2, "rounds": 1},
        "data": {"dataset": "spiral", "samples_per_class": 40, "partition": "iid"},
        "model": {"group": "MLP", "feature_dim": 45_000},
        "train": {"batch_size": 40},
        "method": {"name": "fedproto"},
        "cluster": {"max_frame_mib": max_frame_mib, "server_threads": 1, "device": "cpu"},
    }
    found = Oracle(RunFolder.create(path / "run", build([sections])))
    found.set_up()
    return found


def test_an_array_above_the_default_passes_where_the_experiment_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpack, "__defaults__", (Limits.of_frames(1),))  # instead of arrays of a GiB
    assert oracle(tmp_path, 2).play(0)["clients"] == 2


def test_an_array_that_no_cluster_would_send_is_refused_with_its_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has 2 MiB, more than cluster\.max_frame_mib = 1; give 2 or more"):
        oracle(tmp_path, 1).play(0)
