"""What the user is told beside the run's own events, and no more often than is worth reading.

Strangers may knock a million times, every client of a machine finds the same about it, and a client that takes too
long does so at every look.
"""

from typing import Any

from nodes.server.events import EventLog

_SAID_OF_STRANGERS = 1000
_SLOW_SECONDS, _SLOW_FACTOR = 60.0, 10.0  # beyond both, the user is told whom a round waits for


class Remarks:
    def __init__(self, events: EventLog, deadline_seconds: float):
        self._events = events
        self._deadline = f"cluster.deadline_seconds = {deadline_seconds:g}"
        self._num_turned_away = 0
        self._noted: set[str] = set()
        self._slow_in: dict[int, int] = {}
        """The last round in which a client was said to be slow."""

    def turned_away(self, kind: str, **details: Any) -> None:
        """The first ones, then one each time their number doubles: a flood shall not fill the disk."""
        self._num_turned_away += 1
        number = self._num_turned_away
        if number <= _SAID_OF_STRANGERS:
            self._events.say(kind, **details)
        elif number & (number - 1) == 0:
            self._events.say(kind, number=number, **details)

    def note(self, text: str) -> None:
        if text not in self._noted:  # the same of all clients of a machine
            self._noted.add(text)
            self._events.say("note", text=text)

    def waits_for(self, round: int, client: int, seconds: float, usual: float | None) -> None:
        """A process that was stopped or hangs is not lost, since its machine answers; but the user shall know."""
        is_known = self._slow_in.get(client) == round
        if is_known or usual is None or seconds < max(_SLOW_SECONDS, _SLOW_FACTOR * usual):
            return
        self._slow_in[client] = round
        story = f"waits for client {client}, {seconds:.0f} s so far and {usual:.1f} s last time"
        reason = f"{story}; if it was stopped or hangs, it counts as late after {self._deadline}"
        self._events.say("warning", round=round, reason=reason)
