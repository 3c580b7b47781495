"""What `fedsim sbatch` refuses before a job waits in the queue for it; the script itself is tested beside it."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedsim.errors import UserError
from fedsim.presets.tables import preset_layers
from nodes.cli.sbatch import command

TINY = ["--method", "local", "--dataset", "spiral", "--model-group", "MLP", "--clients", "2"]


def written(out: Path, *options: str) -> str:
    words = [*TINY, *options, "--nodes", "2", "--time", "30", "--out", str(out)]
    return CliRunner().invoke(command, words, catch_exceptions=False, standalone_mode=False).stdout


def test_a_run_that_is_there_is_not_gone_on_with_under_other_options(tmp_path: Path) -> None:
    assert written(tmp_path / "run").startswith("#!/bin/bash\n")
    written(tmp_path / "run", "--rounds", "3")  # it has not begun: the script may be written anew
    before = (tmp_path / "run.toml").read_text()
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match=r"^the results folder .*/run exists already, .*another with --out"):
        written(tmp_path / "run", "--rounds", "7")
    assert (tmp_path / "run.toml").read_text() == before, "the job that waits has its experiment there"


def test_links_that_the_job_could_not_wait_for_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^links are waited for on this machine only; .* world\.wait=false\.$"):
        written(tmp_path / "run", "--link", "4g")
    assert list(tmp_path.iterdir()) == []
    assert "--nodes=2" in written(tmp_path / "run", "--link", "4g", "--set", "world.wait=false")


def test_the_examples_name_presets_that_exist() -> None:
    names = re.findall(r"--preset (\S+)", command.help or "")
    assert names and all(preset_layers(name) for name in names)
