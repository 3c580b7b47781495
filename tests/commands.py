"""Commands as a user types them, run as real processes: what they print, how they end, what they leave behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.campaign import runs
from benchmarks.campaign.runs import BITS, PATIENCE_SECONDS, listening_address, rows, wait_for

PROJECT = Path(__file__).resolve().parent.parent
TINY = (
    *("--method", "fedproto", "--dataset", "spiral", "--model-group", "MLP", "--feature-dim", "3"),
    *("--clients", "4", "--rounds", "3", "--set", "data.samples_per_class=40"),
    *("--set", "cluster.server_threads=1"),
)
"""Points in a plane, six classes, models of a few hundred weights: a round takes milliseconds."""

METHODS = {
    "fedtgp": ("--method", "fedtgp", "--set", "method.server_epochs=2"),
    "fedproto": ("--method", "fedproto"),
    "local": ("--method", "local"),
}
"""The options that choose a method, with little work for its server."""

_QUIET_LOOKS = 25  # of 10 ms each


class Shell:
    """Starts commands from one preloaded parent."""

    def __init__(self, folder: Path, environment: dict[str, str]):
        self._folder = folder
        self._num_started = 0
        self._parent = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("preloaded.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(PROJECT), **environment},
            start_new_session=True,
            text=True,
        )

    @contextlib.contextmanager
    def commands(self, folder: Path) -> Iterator["Start"]:
        """A function that starts commands in a folder. All must have ended by the end; those that have not die."""
        started: list[Command] = []

        def start(*argv: str | Path, cwd: Path = folder, fresh: bool = False, **environment: str) -> Command:
            started.append(self._start([str(word) for word in argv], cwd, fresh, environment))
            return started[-1]

        try:
            yield start
            left = [" ".join(command.argv) for command in started if command.alive()]
        finally:
            for command in started:
                command.kill()
        assert not left, f"still running: {left}"

    def _start(self, argv: list[str], cwd: Path, fresh: bool, environment: dict[str, str]) -> "Command":
        prefix = self._folder / f"command-{self._num_started:03d}"
        self._num_started += 1
        stdout, stderr = prefix.with_suffix(".out"), prefix.with_suffix(".err")
        pid = self.ask(
            start={
                "argv": argv,
                "cwd": str(cwd),
                "environment": environment,
                "stdout": str(stdout),
                "stderr": str(stderr),
                "fresh": fresh,
            }
        )
        return Command(self, argv, pid, stdout, stderr)

    def ask(self, **request: Any) -> Any:
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(request) + "\n")
        self._parent.stdin.flush()
        return json.loads(self._parent.stdout.readline())

    def close(self) -> None:
        """The parent ends with its input, and all commands with it."""
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.wait(PATIENCE_SECONDS)
        self._parent.stdout.close()


class Command:
    """One command: the leader of a session with all its descendants."""

    def __init__(self, shell: Shell, argv: list[str], pid: int, stdout: Path, stderr: Path):
        self._shell = shell
        self._stdout, self._stderr = stdout, stderr
        self.argv = argv
        self.pid = pid

    @property
    def stdout(self) -> str:
        return self._stdout.read_text() if self._stdout.exists() else ""

    @property
    def stderr(self) -> str:
        return self._stderr.read_text() if self._stderr.exists() else ""

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        code: int | None = self._shell.ask(poll=self.pid)
        return code

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Until it has ended; returns the exit code."""
        ended = wait_for(
            lambda: (code,) if (code := self.code) is not None else None,
            f"{' '.join(self.argv)} does not end; it has printed:\n{self.stdout}{self.stderr}",
            seconds,
        )
        return ended[0]

    def succeed(self) -> "Command":
        """Wait for the exit code 0."""
        assert self.wait() == 0, f"{' '.join(self.argv)} failed:\n{self.stdout}{self.stderr}"
        return self

    def alive(self) -> list[int]:
        """All processes of this command that run now."""
        return runs.alive(self.pid)

    def left(self) -> list[int]:
        """Those that still run a moment after the end: on a busy machine, whoever is killed needs one to go."""
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: not self.alive(), "", seconds=10)
        return self.alive()

    def wait_until_gone(self) -> None:
        wait_for(lambda: not self.alive(), f"something of {' '.join(self.argv)} is still running")

    def roles(self) -> dict[str, int]:
        """The cluster's processes by the name of the log that each prints to: server, clients, client-00002."""
        return runs.roles(self.pid)

    def role(self, name: str) -> int:
        return wait_for(lambda: self.roles().get(name), f"there is no process {name}")

    def send(self, number: signal.Signals) -> None:
        """To the leader alone."""
        os.kill(self.pid, number)

    def send_to_all(self, number: signal.Signals) -> None:
        """To the whole process group at once, as a terminal does with Ctrl-C."""
        os.killpg(self.pid, number)

    def kill(self) -> None:
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait_until_gone()


Start = Callable[..., Command]


def events(folder: Path) -> list[dict[str, Any]]:
    """What happened in a run so far; a line that is being written is left for later."""
    path = folder / "events.jsonl"
    if not path.exists():
        return []
    *lines, _ = path.read_text().split("\n")
    return [json.loads(line) for line in lines]


def events_of(folder: Path, kind: str, **wanted: Any) -> Iterator[dict[str, Any]]:
    yield from (event for event in events(folder) if _is(event, kind, wanted))


def wait_for_event(folder: Path, kind: str, **wanted: Any) -> dict[str, Any]:
    """It fails as soon as the run has ended without it."""
    missing = f"no event {kind} {wanted} in {folder}"

    def look() -> dict[str, Any] | None:
        happened = events(folder)
        found = next((event for event in happened if _is(event, kind, wanted)), None)
        if found is None and happened and happened[-1]["event"] in ("finished", "failed"):
            story = "\n".join(map(json.dumps, happened[-40:]))
            raise AssertionError(f"{missing}, and the run has ended:\n{story}")
        return found

    return wait_for(look, missing)


def _is(event: dict[str, Any], kind: str, wanted: dict[str, Any]) -> bool:
    return bool(event["event"] == kind and all(event.get(name) == value for name, value in wanted.items()))


@dataclass(frozen=True)
class Run:
    """A command that makes a run folder."""

    command: Command
    folder: Path

    def succeed(self) -> "Run":
        self.command.succeed()
        return self

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return summary

    def ledger(self, **wanted: str | int) -> list[dict[str, str]]:
        """The ledger's rows with these values."""
        wanted = {name: str(value) for name, value in wanted.items()}
        return [row for row in rows(self.folder / "ledger.csv") if wanted.items() <= row.items()]

    def booked(self, level: str, **wanted: str | int) -> int:
        """The sum of a column (elements, payload_bytes, …) over these rows."""
        return sum(int(row[level]) for row in self.ledger(**wanted))


def start_run(start: Start, folder: Path, *options: str) -> Run:
    """`run_cluster.py` with a tiny experiment; later options win."""
    return Run(start(PROJECT / "run_cluster.py", *TINY, *options, "--out", folder), folder)


def address_of(server: Command) -> str:
    """Where a server that was started by hand listens."""

    def listening() -> str | None:
        assert server.code is None, f"the server ended:\n{server.stdout}{server.stderr}"
        return listening_address(server.stdout)

    return wait_for(listening, "the server does not listen")


def bits(folder: Path) -> dict[str, bytes]:
    """All that the same seed must give again, to the byte."""
    return {name: (folder / name).read_bytes() for name in BITS if (folder / name).exists()}


def reach(run: Run, num_events: int) -> bool:
    """Wait until so many events were written; False when the run ended before."""
    wait_for(lambda: len(events(run.folder)) >= num_events or run.command.code is not None, "no progress")
    return run.command.code is None


def hold(run: Run, client: int) -> tuple[int, int]:
    """Stop a client until the round waits for nobody else; returns its process and that round."""
    process = run.command.role(f"client-{client:05d}")
    os.kill(process, signal.SIGSTOP)
    seen: list[tuple[int, int | None]] = []

    def waiting_round() -> tuple[int] | None:
        """An answer may still be on its way, so all must have been quiet for a while."""
        happened = events(run.folder)
        open_questions = {(e["round"], e["client"]) for e in happened if e["event"] == "asked"}
        open_questions -= {(e["round"], e["client"]) for e in happened if e["event"] == "answered"}
        only = next(iter(open_questions)) if len(open_questions) == 1 else (None, None)
        seen.append((len(happened), only[0] if only[1] == client else None))
        quiet = len(seen) > _QUIET_LOOKS and len(set(seen[-_QUIET_LOOKS:])) == 1
        return (only[0],) if quiet and only[0] is not None and only[1] == client else None

    return process, wait_for(waiting_round, f"client {client} is not asked")[0]
