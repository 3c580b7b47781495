"""Trackers that follow a run from outside: a process for each, which reads what the run says of itself.

So a tracker that crashes, hangs or waits for a network costs the run nothing. The process ends when its standard
input does, that is when the command is done with the run, or has died.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from fedsim.results import trackers
from fedsim.results.folder import RunFolder
from fedsim.results.trackers import Tracked

PATIENCE_SECONDS = 60.0
"""That a tracker may take to end after its run."""
_LOOK_SECONDS = 0.5

Say = Callable[[str], None]


@contextmanager
def tracked(folder: RunFolder, say: Say) -> Iterator[None]:
    """While the run goes on, and until its report is drawn."""
    with ExitStack() as stack:
        for name in trackers.chosen(folder.experiment().cluster.track):
            if name != trackers.BUILT_IN:
                stack.enter_context(_follower(name, folder, say))
        yield


@contextmanager
def _follower(name: str, folder: RunFolder, say: Say) -> Iterator[None]:
    if package := trackers.missing_package(name):
        say(
            f"{name} does not track this run: its package {package} is missing; pip install 'fedsim-htfl[{name}]'."
        )
        yield
        return
    log = folder.logs / f"track-{name}.log"
    paths = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with log.open("a") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "nodes.display.tracking", name, str(folder.path)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is for the run; this one still has to tell how it ended
        )
    try:
        yield
    finally:
        if reason := _ended(process, log):
            say(f"{name} did not track all of this run: {reason}; see {log}.")


def _ended(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait for it; returns what went wrong."""
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()
    try:
        code = process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return f"it was not done {PATIENCE_SECONDS:g} s after the run"
    if code == 0 or not log.exists():  # a run that could not begin leaves nothing behind
        return ""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip().rstrip(".") if lines else f"exit code {code}"


def follow(name: str, folder: RunFolder) -> None:
    """What the process does."""
    tracker, last = trackers.make(name, run := Tracked(folder.path, folder.experiment())), {"time": time.time()}
    for said in _events(folder.path / "events.jsonl"):
        last = said
        if said["event"] == "round_finished":
            tracker.add_round(said["round"], said["time"], run.grouped(said))
    summary = folder.summary()
    completed = bool(summary and summary["completed"])
    tracker.end(last["time"], completed=completed, files=run.artefacts())


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """All that are there and all that come, until standard input ends."""
    position, is_over = 0, False
    while True:
        if path.is_file():
            with path.open("rb") as file:
                file.seek(position)
                *lines, _ = file.read().split(b"\n")
            position += sum(len(line) + 1 for line in lines)
            yield from map(json.loads, lines)
        if is_over:
            return
        is_over = bool(select.select([sys.stdin], [], [], _LOOK_SECONDS)[0])


if __name__ == "__main__":
    follow(sys.argv[1], RunFolder.open(Path(sys.argv[2])))
