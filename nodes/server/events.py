"""What happened, as it happened: one JSON line an event, to events.jsonl and to whoever watches the run.

What is said of a finished round goes to TensorBoard as well.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedsim.results.tensorboard import FILE_NAME, EventFile

Event = dict[str, Any]
Watcher = Callable[[Event], None]


class EventLog:
    """Events are facts about the run for people and tools; nothing in the run depends on them."""

    def __init__(self, path: Path, watcher: Watcher | None = None):
        self._file = path.open("a", buffering=1)
        self._watcher = watcher
        self._tensorboard = EventFile(path.with_name(FILE_NAME))

    def say(self, event: str, **details: Any) -> None:
        record = {"time": round(time.time(), 3), "event": event, **details}
        self._file.write(json.dumps(record) + "\n")
        if event == "round_finished":
            scalars = {name: value for name, value in details.items() if name != "round" and value is not None}
            self._tensorboard.add(details["round"], record["time"], scalars)
        if self._watcher is not None:
            self._watcher(record)

    def close(self) -> None:
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
