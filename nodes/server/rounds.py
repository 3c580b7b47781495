"""One round as a pure state machine: who is asked, who answered, who is late, what comes next.

No socket, no clock and no process in it: time and events come in as arguments, decisions come out as values.

    waiting ──ask──► asked ──answer──► answered
       ▲               │  └──deadline──► out ("late")
       └──return── lost ◄──loss──┘
                     └──rejoin time over──► out ("lost")

At most `slots` clients of a place are asked at a time, the longest expected first: twenty clients that train
at once on two cores would only get in each other's way, and a long one started last would leave cores idle.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from fractions import Fraction


class State(Enum):
    WAITING = auto()
    ASKED = auto()
    ANSWERED = auto()
    LOST = auto()
    OUT = auto()


@dataclass(frozen=True)
class Place:
    """Where a client runs. Clients of one place share its training slots."""

    name: str
    slots: int


@dataclass(frozen=True)
class Ask:
    """Send this client its work, for this slot of its place."""

    client: int
    attempt: int
    slot: int


@dataclass(frozen=True)
class Timing:
    """How long a round waits for whom."""

    deadline_seconds: float
    rejoin_seconds: float


@dataclass
class _Progress:
    state: State
    since: float
    attempt: int = -1
    slot: int = -1


@dataclass(frozen=True)
class Verdict:
    """How a round ended."""

    answered: list[int]
    missing: dict[int, str] = field(default_factory=dict)
    """Clients left out, and why."""
    has_quorum: bool = True


class Round:
    """The state of one round."""

    def __init__(
        self,
        *,
        cohort: Collection[int],
        others: Collection[int],
        places: Mapping[int, Place],
        lost_since: Mapping[int, float],
        expected_seconds: Mapping[int, float],
        quorum: float,
        timing: Timing,
        now: float,
    ):
        """`places` has every client that ever joined; `lost_since` those of them that are not here now."""
        self._cohort = frozenset(cohort)
        self._places = places
        self._timing = timing
        self._others = frozenset(others)
        self._quorum = Fraction(str(quorum))  # as written: in binary 0.07 × 100 is a little more than 7
        self._missing: dict[int, str] = {}
        self._busy: dict[str, set[int]] = {}
        self._clients: dict[int, _Progress] = {}
        for client in (*cohort, *others):
            if client not in places:
                self._clients[client] = _Progress(State.OUT, now)
                self._missing[client] = "never joined"
            elif client in lost_since:
                self._clients[client] = _Progress(State.LOST, lost_since[client])
            else:
                self._clients[client] = _Progress(State.WAITING, now)
        self._order = sorted(
            self._clients, key=lambda c: (c not in self._cohort, -expected_seconds.get(c, math.inf), c)
        )

    def asks(self, now: float) -> list[Ask]:
        """Whom to ask now. The caller sends each of them its work, or reports it lost."""
        result = []
        for client in self._order:
            progress, place = self._clients[client], self._places.get(client)
            if progress.state is not State.WAITING or place is None:
                continue
            busy = self._busy.setdefault(place.name, set())
            if len(busy) >= place.slots:
                continue
            slot = next(number for number in range(place.slots) if number not in busy)
            busy.add(slot)
            self._move(client, State.ASKED, now)
            progress.attempt, progress.slot = progress.attempt + 1, slot
            result.append(Ask(client, progress.attempt, slot))
        return result

    def on_answer(self, client: int, attempt: int, now: float) -> bool:
        """Whether this answer counts: it is to the latest question, and the question is still open."""
        progress = self._clients.get(client)
        if progress is None or progress.state is not State.ASKED or progress.attempt != attempt:
            return False
        self._release(client)
        self._move(client, State.ANSWERED, now)
        return True

    def on_lost(self, client: int, now: float) -> None:
        """A client that has answered has done its part; any other may come back within the rejoin time."""
        progress = self._clients.get(client)
        if progress is None or progress.state not in (State.WAITING, State.ASKED):
            return
        if progress.state is State.ASKED:
            self._release(client)
        self._move(client, State.LOST, now)

    def on_return(self, client: int, now: float) -> None:
        """A lost client, or one that lost its connection while asked, is asked again."""
        progress = self._clients.get(client)
        if progress is not None and progress.state is State.ASKED:
            self.on_lost(client, now)
        if progress is not None and progress.state is State.LOST:
            self._move(client, State.WAITING, now)

    def drop(self, client: int, reason: str, now: float) -> None:
        """Leave a client out of this round for good."""
        progress = self._clients.get(client)
        if progress is None or progress.state in (State.ANSWERED, State.OUT):
            return
        if progress.state is State.ASKED:
            self._release(client)
        self._move(client, State.OUT, now)
        self._missing[client] = reason

    def expire(self, now: float) -> dict[int, str]:
        """Leave out everyone whose time is over; returns them with the reason."""
        expired = {}
        for client, progress in self._clients.items():
            limit = self._limit(progress)
            if limit is not None and now >= limit:
                seconds = now - progress.since
                late = progress.state is State.ASKED
                expired[client] = f"late ({seconds:.0f} s)" if late else f"lost for {seconds:.0f} s"
        for client, reason in expired.items():
            self.drop(client, reason, now)
        return expired

    def next_deadline(self) -> float:
        """When `expire` may have something to do; infinity when nobody is waited for."""
        limits = [limit for progress in self._clients.values() if (limit := self._limit(progress)) is not None]
        return min(limits, default=math.inf)

    @property
    def done(self) -> bool:
        return all(p.state in (State.ANSWERED, State.OUT) for p in self._clients.values())

    def in_state(self, state: State) -> list[int]:
        return sorted(client for client, progress in self._clients.items() if progress.state is state)

    def verdict(self) -> Verdict:
        answered = self.in_state(State.ANSWERED)
        # Of both: a round learns from some, and its accuracy is about the others too.
        groups = (self._cohort, self._others)
        enough = all(len(group.intersection(answered)) >= self._quorum * len(group) for group in groups)
        return Verdict(answered, dict(sorted(self._missing.items())), enough)

    def _limit(self, progress: _Progress) -> float | None:
        if progress.state is State.ASKED:
            return progress.since + self._timing.deadline_seconds
        if progress.state is State.LOST:
            return progress.since + self._timing.rejoin_seconds
        return None

    def _release(self, client: int) -> None:
        self._busy[self._places[client].name].discard(self._clients[client].slot)

    def _move(self, client: int, state: State, now: float) -> None:
        self._clients[client].state, self._clients[client].since = state, now
