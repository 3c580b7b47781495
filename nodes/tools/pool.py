"""Several runs at once, each in a process of its own with its share of the machine.

A run's process is forked from this one, which must be preloaded, and tells of everything by a pipe: the events of
the run as they happen, and last how it ended. It leads a process group, so Ctrl-C at a terminal reaches this
process alone, which passes it on; and it dies with this one, as all that it has started dies with it.
"""

import contextlib
import json
import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nodes.launchers import processes, zygote
from nodes.launchers.gpus import usable_gpus
from nodes.server.events import Event, Watcher, pipe_watcher

BEGUN, ENDED = "run_begun", "run_ended"
"""The first and the last event of every run; `reason` of the last is why there is no result, or None."""

_LOOK_SECONDS = 0.2
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
Part = TypeVar("Part")


@dataclass(frozen=True)
class Task:
    """One run: where it is, and what its process does. `main` returns why there is no result, or None."""

    path: Path
    main: Callable[[Watcher], str | None]
    device: str = "auto"


@dataclass(frozen=True)
class Lane:
    """The part of the machine that one of several runs at once has for itself."""

    number: int
    num_lanes: int

    def enter(self, device: str) -> None:
        """From here on this process and its children have only the lane's cores and GPUs."""
        if self.num_lanes == 1:
            return
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.share(processes.cores()))
        if gpus := usable_gpus(device):
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self.share(gpus))

    def share(self, parts: Sequence[Part]) -> Sequence[Part]:
        """All lanes together have all parts; where there are fewer than lanes, lanes share them."""
        return parts[self.number :: self.num_lanes] or [parts[self.number % len(parts)]]


class Pool:
    """Runs tasks in their order, as many at once as wanted."""

    def __init__(self, at_once: int):
        self._lanes = [Lane(number, at_once) for number in range(at_once)]
        self._running: dict[int, _Process] = {}  # by the pipe that it tells of itself with
        self._num_interrupts = 0

    @property
    def interrupted(self) -> bool:
        """Whether the user asked for an end: no further task is started, and those that run end early."""
        return self._num_interrupts > 0

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[Path, Event]]:
        """What happens in all of them, as it happens. Until the end Ctrl-C, SIGTERM and SIGUSR1 are the pool's."""
        before = {number: signal.signal(number, self._on_interrupt) for number in _STOPS}
        waiting = list(tasks)
        try:
            while self._running or (waiting and not self.interrupted):
                while waiting and self._lanes and not self.interrupted:
                    task = waiting.pop(0)
                    yield task.path, {"event": BEGUN}
                    # An interrupt just now waits until the new process is known here, and is on its own there.
                    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
                    process = _Process(task, self._lanes.pop(0))
                    self._running[process.pipe] = process
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
                ready, _, _ = select.select(list(self._running), [], [], _LOOK_SECONDS)
                for pipe in ready:
                    yield from self._told_by(self._running[pipe])
        finally:
            for process in self._running.values():  # only where whoever listens has given up
                process.stop()
                process.reap()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _told_by(self, process: "_Process") -> Iterator[tuple[Path, Event]]:
        events = process.read()
        for event in events or []:
            yield process.task.path, event
        if events is None:
            del self._running[process.pipe]
            self._lanes.append(process.lane)
            how = process.reap()
            if not process.has_ended:
                yield process.task.path, {"event": ENDED, "reason": f"its process {how}"}

    def _on_interrupt(self, *_: object) -> None:
        """The first Ctrl-C ends runs with their results so far, the second ends them now."""
        self._num_interrupts += 1
        for process in list(self._running.values()):
            process.stop()


class _Process:
    """A task that has been started."""

    def __init__(self, task: Task, lane: Lane):
        self.task, self.lane = task, lane
        self.has_ended = False
        """Whether it has told of its end."""
        self._rest = b""
        self.pipe, told = os.pipe()

        def main() -> int:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            os.close(self.pipe)
            os.setpgid(0, 0)
            lane.enter(task.device)
            tell = pipe_watcher(told)
            tell({"event": ENDED, "reason": task.main(tell)})
            return 0

        self._id = zygote.fork(main, death_signal=signal.SIGTERM)
        os.close(told)

    def read(self) -> list[Event] | None:
        """What it has told since; None when it will not tell any more. A line that was cut off does not count."""
        told = os.read(self.pipe, 1 << 16)
        *lines, self._rest = (self._rest + told).split(b"\n")
        events = [json.loads(line) for line in lines]
        self.has_ended |= any(event["event"] == ENDED for event in events)
        return events if told else None

    def stop(self) -> None:
        """Asked once, a run ends with its results so far; asked again, now."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._id, signal.SIGTERM)

    def reap(self) -> str:
        """How the process ended, in words; waits for it."""
        os.close(self.pipe)
        return processes.describe_exit(os.waitpid(self._id, 0)[1])
