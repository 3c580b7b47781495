"""What a host says at its end, as a real process whose clients are doubles."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from commands import PROJECT

from nodes.client.options import ClientOptions
from nodes.launchers.bundle import Bundle
from nodes.launchers.host import AnySaid, Begun, Crashed, Ended, Facts

HOST = """
import os, signal, sys
from nodes.launchers import host

def end(*_, **__):
    {end}

host.run_clients, host._obstacle = end, lambda *_: ""
sys.exit(host.main())
"""


@pytest.fixture
def ended(tmp_path: Path) -> Callable[[str], tuple[list[AnySaid], int, str]]:
    """`ended("return 3")`: what a host whose clients end so has said after facts, its exit code and its log."""

    def run(end: str) -> tuple[list[AnySaid], int, str]:
        (tmp_path / "probe.py").write_text(HOST.format(end=end))
        words = ClientOptions(connect="tcp://127.0.0.1:1", ids=[0]).words()
        with (tmp_path / "log").open("wb") as log:
            host = subprocess.Popen(
                [sys.executable, tmp_path / "probe.py"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={"PYTHONPATH": str(PROJECT), "CUDA_VISIBLE_DEVICES": ""},
            )
        with host:
            assert host.stdin is not None and host.stdout is not None
            host.stdin.write(msgspec.json.encode(Bundle(words=words, server_key="", keys={})) + b"\n")
            host.stdin.flush()
            facts, *said = [msgspec.json.decode(line, type=AnySaid) for line in host.stdout]
        assert isinstance(facts, Facts)
        return said, host.returncode, (tmp_path / "log").read_text()

    return run


@pytest.mark.process
@pytest.mark.parametrize("code", [0, 3])
def test_clients_that_ended_by_themselves_are_done(ended, code: int) -> None:
    said, found, log = ended(f"return {code}")
    assert (said, found, log) == ([Begun(), Ended()], code, "")


@pytest.mark.process
def test_a_crash_is_said_with_its_reason_and_its_traceback_is_in_the_log(ended) -> None:
    said, code, log = ended("raise ValueError('no such core')")
    assert (said, code) == ([Begun(), Crashed(reason="ValueError: no such core")], 70)
    assert "ValueError: no such core" in log


@pytest.mark.process
def test_when_the_clients_were_killed_so_was_the_host(ended) -> None:
    """So they are started again: nobody has ended by himself."""
    said, code, log = ended("os.kill(os.getpid(), signal.SIGKILL)")
    assert (said, code, log) == ([Begun()], 137, "")
