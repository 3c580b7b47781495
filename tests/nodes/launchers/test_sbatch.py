"""The job script for Slurm; that it works is tested with a real one."""

from pathlib import Path

from fedsim import config
from nodes.launchers.sbatch import script


def test_a_script_has_what_slurm_must_know_and_goes_on_with_what_has_begun() -> None:
    experiment = config.build([{"run": {"clients": 8}}])
    text = script(experiment, Path("/x/my run.toml"), Path("/x/my run"), 2, "04:00:00", ["partition=gpu"])
    options = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert {"--nodes=2", "--time=04:00:00", "--requeue", "--signal=B:USR1@120", "--partition=gpu"} <= set(options)
    assert "--output='/x/my run.log'" in options
    assert "run='/x/my run'\n" in text and "--config '/x/my run.toml' --out \"$run\"" in text
    assert text.index("--resume") < text.index("--config")


def test_a_path_is_no_pattern_of_slurm() -> None:
    text = script(config.build([]), Path("/x.toml"), Path("/x/99%j"), 2, "30", [])
    assert "#SBATCH --output=/x/99%%j.log\n" in text and "run=/x/99%j\n" in text
