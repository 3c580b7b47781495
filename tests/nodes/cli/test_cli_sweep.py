"""`fedsim sweep`: what it refuses before anything is run, and what its live table may not do."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from made_run import make_run

from fedsim.errors import UnknownName, UserError
from nodes.cli.reproduce import command as reproduce
from nodes.cli.sweep import command
from nodes.tools.batch import Batch

SMALL = ("--dataset", "spiral", "--model-group", "MLP", "--clients", "4", "--rounds", "2", "--seeds", "1")


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Batch]:
    """Those that would have been run; each is as one that was stopped."""
    begun: list[Batch] = []

    def run(self: Batch) -> bool:
        begun.append(self)
        return False

    monkeypatch.setattr(Batch, "run", run)
    return begun


def sweep(*words: str | Path) -> Any:
    result = CliRunner().invoke(command, [*SMALL, *map(str, words)], standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.return_value


@pytest.mark.parametrize(
    ("varied", "names"),
    [
        (("cluster.deadline_seconds=1,10",), ("cluster.deadline_seconds=1", "cluster.deadline_seconds=10")),
        (("data.data_dir=here,there",), ("data.data_dir=here", "data.data_dir=there")),
        (("train.lr=0.1,0.10",), ("train.lr=0.1", "train.lr=0.10")),
        (
            ("train.lr=0.1,0.2", "train.lr=0.3,0.4"),
            ("train.lr=0.1, train.lr=0.3", "train.lr=0.2, train.lr=0.3"),
        ),
    ],
)
def test_one_experiment_under_two_names_is_refused(
    varied: tuple[str, ...], names: tuple[str, str], batches: list[Batch], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="are the same experiment") as caught:
        sweep(*(word for text in varied for word in ("--vary", text)), "--out", tmp_path)
    assert str(caught.value).startswith(f"{names[0]}, seed 1 and {names[1]}, seed 1 are ")
    assert not batches


def test_a_baseline_that_may_be_two_things_is_refused_before_anything_is_run(batches: list[Batch]) -> None:
    vary = ("--vary", "method.tau=1,10", "--vary", "data.beta=0.1,1")
    with pytest.raises(UserError, match=r"may be method\.tau=1 or data\.beta=1; write one of these"):
        sweep(*vary, "--baseline", "1")
    with pytest.raises(UnknownName, match=r"no setting 'gamma'"):
        sweep(*vary, "--baseline", "gamma=1")
    with pytest.raises(UnknownName, match="no baseline 'beta=10'"):
        sweep(*vary, "--baseline", "beta=10")
    assert not batches
    assert sweep(*vary, "--baseline", "tau=1") == 130 and sweep(*vary, "--baseline", "10") == 130
    assert len(batches) == 2


def test_a_table_that_cannot_be_made_yet_stops_no_run(
    batches: list[Batch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of its runs has no round that was tested."""
    made = [make_run(tmp_path / "first", correct={0: (0, 0, 0)})]
    monkeypatch.setattr(Batch, "finished", lambda self: made)
    sweep("--vary", "train.lr=0.1,0.2", "--out", tmp_path)
    assert batches[0]._table() is None
    made.append(make_run(tmp_path / "second", settings={"run": {"seed": 2}}))
    table = batches[0]._table()
    assert table is not None and (tmp_path / "summary.csv").exists()


@pytest.mark.parametrize(
    ("words", "every"),
    [
        ((), 5),
        (("--checkpoint-every", "0"), 0),
        (("--set", "cluster.checkpoint_every=0"), 0),
        (("--checkpoint-every", "3"), 3),
    ],
)
def test_no_checkpoints_are_a_choice_too(words: tuple[str, ...], every: int, batches: list[Batch]) -> None:
    reproduced = ("fedtgp-table10", "--scale", "quick", "--only", "fedproto,practical", "--seeds", "1", *words)
    CliRunner().invoke(reproduce, reproduced, standalone_mode=False)
    sweep("--vary", "train.lr=0.1", *words)
    for batch in batches:
        assert [job.experiment.cluster.checkpoint_every for job in batch._jobs.values()] == [every]
    assert len(batches) == 2
