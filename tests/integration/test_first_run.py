"""The very first run on a machine: nothing is decoded yet, and the interpreter has done nothing before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import PROJECT

SMALL = ("--set", "run.rounds=1", "--set", "cluster.server_threads=2")


@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    [("run",), ("run", "--method", "fedktl"), ("sweep", "--vary", "method.name=fedktl", "--seeds", "1")],
    ids=["as it is", "run", "sweep"],
)
def test_decoding_leaves_no_threads_that_a_forked_server_waits_for(words: tuple[str, ...], tmp_path: Path) -> None:
    """Decoding digits is work for two threads, and so are steps of FedTGP's server and FedKTL's first one."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    environment |= {"PYTHONPATH": str(PROJECT), "FEDSIM_CACHE": str(tmp_path / "cache"), "FEDSIM_NO_REPORT": "1"}
    command = [sys.executable, "-m", "nodes", *words, *SMALL, "--quiet", "--out", str(tmp_path / "out")]
    found = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
    assert any((tmp_path / "cache" / "decoded").glob("digits-*"))
    assert list((tmp_path / "out").rglob("summary.json"))
