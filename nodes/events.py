"""What happened, as it happened: one JSON line an event, to events.jsonl and to whoever watches the run."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Event = dict[str, Any]
Watcher = Callable[[Event], None]


class EventLog:
    """Events are facts about the run for people and tools; nothing in the run depends on them."""

    def __init__(self, path: Path, watcher: Watcher | None = None):
        self._file = path.open("a", buffering=1)
        self._watcher = watcher

    def say(self, event: str, **details: Any) -> None:
        record = {"time": round(time.time(), 3), "event": event, **details}
        self._file.write(json.dumps(record) + "\n")
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
