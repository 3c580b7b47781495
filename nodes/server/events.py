"""What happened, as it happened: one JSON line an event, to events.jsonl and to whoever watches the run.

What is said of a finished round goes to TensorBoard as well, if the experiment wants it to.
"""

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fedsim.config import Experiment
from fedsim.results import trackers
from fedsim.results.trackers import Follower, Tracked
from fedsim.world.ruling import Ruling

Event = dict[str, Any]
Watcher = Callable[[Event], None]


class EventLog:
    """Events are facts about the run for people and tools; nothing in the run depends on them."""

    def __init__(self, path: Path, watcher: Watcher | None, experiment: Experiment):
        """`experiment` says whether TensorBoard is to know of the run, and what."""
        self._file = path.open("a", buffering=1)
        self._watcher = watcher
        self._run = Tracked(path.parent, experiment)
        self._tracks = trackers.BUILT_IN in trackers.chosen(experiment.cluster.track)
        self._tracker: Follower | None = None

    def say(self, event: str, **details: Any) -> None:
        record = {"time": round(time.time(), 3), "event": event, **details}
        if self._watcher is not None:  # first: a person must hear of a disk that is full
            self._watcher(record)
        self._file.write(json.dumps(record) + "\n")
        if self._tracks:
            self._track(record)

    def say_absences(self, round: int, absences: Iterable[Ruling]) -> None:
        """Who did not count in a round, by the virtual clock."""
        for ruling in absences:
            self.say("absent", round=round, client=ruling.client, reason=ruling.outcome, virtual_time=ruling.ends)

    def _track(self, record: Event) -> None:
        """Whatever happens to TensorBoard's file, the run goes on."""
        try:
            self._tracker = self._tracker or trackers.make(trackers.BUILT_IN, self._run)
            if record["event"] == "round_finished":
                self._tracker.add_round(record["round"], record["time"], self._run.grouped(record))
            elif record["event"] == "finished":
                self._tracker.end(record["time"], completed=record["summary"]["completed"], files=())
        except Exception:
            logging.getLogger("server").exception("TensorBoard's file is given up")
            self._tracks = False

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what a full disk did not take is tried again, in vain
            self._file.close()


def pipe_watcher(descriptor: int) -> Watcher:
    """Passes events on to the launcher, and stops trying when nobody reads any more."""
    alive = True

    def watch(event: Event) -> None:
        nonlocal alive
        if not alive:
            return
        try:
            os.write(descriptor, (json.dumps(event) + "\n").encode())
        except BrokenPipeError:
            alive = False

    return watch
