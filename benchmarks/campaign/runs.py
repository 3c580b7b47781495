"""Runs as a user starts them: each command leads a session of its own, so all its processes can be found."""

import contextlib
import csv
import os
import re
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import psutil

from nodes.launchers import zygote

PATIENCE_SECONDS = 240.0  # less than a test has: whoever waits in vain says for what
"""For what must come, on a machine that does much else; only a defect waits that long."""

_SMALL = ("--set", "cluster.server_threads=1", "--set", "cluster.rejoin_seconds=60")
_POINTS = "--dataset spiral --model-group MLP --feature-dim 3 --set data.samples_per_class=40"
_DIGITS = "--dataset digits --model-group CNN1 --feature-dim 32 --set data.samples_per_class=20"

EXPERIMENTS: dict[str, tuple[str, ...]] = {
    name: tuple(words.split())
    for name, words in {
        "fedproto": f"--method fedproto {_POINTS} --clients 4 --rounds 6",
        "some": f"--method fedproto {_POINTS} --clients 4 --rounds 6 --participation 0.5",
        "fedtgp": f"--method fedtgp {_DIGITS} --clients 3 --rounds 3 --set method.server_epochs=5",
        "fedavg": f"--method fedavg {_POINTS} --feature-dim 1000 --clients 2 --rounds 3",
    }.items()
}
"""Small ones that differ in what is sent, saved and remembered; messages of `fedavg` are large."""

BITS = ("metrics.csv", "clients.csv", "final.safetensors")
"""What the same seed must give again, to the byte."""

Found = TypeVar("Found")


def wait_for(what: Callable[[], Found | None], meaning: str, seconds: float = PATIENCE_SECONDS) -> Found:
    """The first result that is neither None nor False."""
    end = time.monotonic() + seconds
    while not (found := what()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:g} s in vain: {meaning}")
        time.sleep(0.01)
    return found


def alive(session: int) -> list[int]:
    """All processes of a session that run now, its leader included."""
    return [pid for pid in psutil.pids() if _session(pid) == session and _runs(pid)]


def roles(session: int) -> dict[str, int]:
    """A cluster's processes by the name of the log that each prints to: server, clients, client-00002."""
    found = {}
    for pid in alive(session):
        with contextlib.suppress(OSError):
            output = Path(f"/proc/{pid}/fd/1").readlink()
            if output.suffix == ".log":
                found[output.stem] = pid
    return found


def listening_address(printed: str) -> str | None:
    """Where a server that was started by hand listens, once it has said so."""
    found = re.search(r"^listening on (tcp://\S+)$", printed, re.MULTILINE)
    return found and found.group(1)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@dataclass
class Command:
    """`python -m MODULE WORDS...`, forked from this process, which has imported torch already."""

    words: Sequence[str]
    output: Path
    before: Callable[[], object] = lambda: None
    """Called in its process, first."""
    pid: int = field(init=False)
    code: int | None = None
    """The exit code, negative for a signal; None while it is not known to have ended."""

    def __post_init__(self) -> None:
        self.pid = zygote.fork(self._main)

    def _main(self) -> int:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        zygote.redirect_output(self.output)
        self.before()
        sys.argv = list(self.words)
        try:
            runpy.run_module(self.words[0], run_name="__main__", alter_sys=True)
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            return 1
        return 0

    def has_ended(self) -> bool:
        if self.code is None:
            process, status = os.waitpid(self.pid, os.WNOHANG)
            if process:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        wait_for(self.has_ended, f"{' '.join(self.words)} does not end", seconds)
        assert self.code is not None
        return self.code

    def printed(self) -> str:
        return self.output.read_text() if self.output.exists() else ""

    def alive(self) -> list[int]:
        self.has_ended()  # or it would be a zombie
        return alive(self.pid)

    def kill(self) -> None:
        """Whatever is left of it."""
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            self.wait(10)

    def left_running(self, grace_seconds: float = 30.0) -> list[str]:
        """Names of processes that are still there a while after the leader has ended."""
        try:
            wait_for(lambda: not self.alive(), "", grace_seconds)
        except TimeoutError:
            return [name for pid in self.alive() for name in [_name(pid)] if name]
        return []


def address_of(server: Command) -> str:
    def listening() -> str | None:
        if server.has_ended():
            raise ChildProcessError(f"the server ended: {server.printed()}")
        return listening_address(server.printed())

    return wait_for(listening, "the server does not listen")


def _name(pid: int) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return f"{pid} {psutil.Process(pid).cmdline()[:4]}"
    return ""


def differences(folder: Path, reference: Path) -> list[str]:
    """Files of two runs that should be equal and are not."""

    def content(path: Path) -> bytes | None:
        return path.read_bytes() if path.exists() else None

    return [name for name in BITS if content(folder / name) != content(reference / name)]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run_words(experiment: str, folder: Path, *options: str) -> list[str]:
    return ["nodes", "run", *EXPERIMENTS[experiment], *_SMALL, *options, "--out", str(folder)]


def server_words(experiment: str, folder: Path, *options: str) -> list[str]:
    return ["nodes", "server", *run_words(experiment, folder, *options)[2:], "--bind", "tcp://127.0.0.1:*"]


def client_words(experiment: str, address: str, *options: str) -> list[str]:
    words = EXPERIMENTS[experiment]
    last = int(words[words.index("--clients") + 1]) - 1
    return ["nodes", "client", "--connect", address, "--ids", f"0-{last}", *options]


def resume_words(command: str, folder: Path) -> list[str]:
    """`command` is how it was started: run or server."""
    where = ["--bind", "tcp://127.0.0.1:*"] if command == "server" else []
    return ["nodes", command, "--resume", str(folder), "--no-report", *where]


class References:
    """Undisturbed runs without processes, each made once."""

    def __init__(self, folder: Path):
        self._folder = folder

    def __getitem__(self, experiment: str) -> Path:
        path = self._folder / experiment
        if not (path / "summary.json").exists():
            output = self._folder / f"{experiment}.log"
            self._folder.mkdir(parents=True, exist_ok=True)
            if Command(run_words(experiment, path, "--in-process", "--no-report"), output).wait():
                raise SystemExit(output.read_text())
        return path
