"""One round as a pure state machine: who is asked, who works, who answered, who is late, what comes next.

No socket, no clock and no process in it: time and events come in as arguments, decisions come out as values.

    waiting ──ask──► sent ──delivered──► ready ──turn──► working ──done──► answering ──answer──► answered
       │                                                    ▲
       └──ask with a turn (small messages)──────────────────┘

    any of these ──loss──► lost ──return──► waiting       lost ──rejoin time over──► out ("lost")
    sent, working, answering ──deadline──► out ("late")

At most `slots` clients of a place work at a time, the longest expected first: twenty clients that train at once on
two cores would only get in each other's way, and a long one started last would leave cores idle. A slot is held
while a client computes, not while its messages travel: large work is delivered `ahead` to everyone, whoever has it
waits for a turn, and the slot is free again when the client is done, before its answer has come. A small message
brings its turn with it, which saves three messages; so whoever is done may answer at once.
"""

import heapq
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from fractions import Fraction


class State(Enum):
    WAITING = auto()
    SENT = auto()
    READY = auto()
    WORKING = auto()
    ANSWERING = auto()
    ANSWERED = auto()
    LOST = auto()
    OUT = auto()


_ASKED = {
    State.SENT: ", its work still on the way",
    State.READY: "",
    State.WORKING: "",
    State.ANSWERING: ", its answer still on the way",
}
"""A question is open, and what is to be said of a client that is late in this state."""
_OPEN = {State.WAITING, *_ASKED}
"""The round goes on for them, and they are here."""

NO_SLOT = -1
"""Of work that is delivered ahead: its turn comes later."""


@dataclass(frozen=True)
class Place:
    """Where a client runs. Clients of one place share its training slots."""

    name: str
    slots: int


@dataclass(frozen=True)
class Ask:
    """Send this client its work, for this slot of its place or, with NO_SLOT, to wait for its turn."""

    client: int
    attempt: int
    slot: int


@dataclass(frozen=True)
class Turn:
    """Tell this client, which has its work, to begin: it has this slot now."""

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
    slot: int = NO_SLOT
    worked_seconds: float = 0.0
    travelled_seconds: float = 0.0
    """Of the latest question, without what it waited for its turn."""


@dataclass(frozen=True)
class Verdict:
    """How a round ended."""

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
        ahead: bool = False,
    ):
        """`places` has every client that ever joined; `lost_since` those of them that are not here now."""
        self._ahead = ahead
        self._cohort = frozenset(cohort)
        self._places = dict(places)
        self._timing = timing
        self._others = frozenset(others)
        self._quorum = Fraction(str(quorum))  # as written: in binary 0.07 × 100 is a little more than 7
        self._missing: dict[int, str] = {}
        self._busy: dict[str, set[int]] = {}
        # A thousand clients change their states thousands of times, so no question below looks at all of them.
        # Queues are heaps with what has passed left in them; it is dropped where it comes up.
        self._queues: dict[str, list[tuple[int, int]]] = {}
        """By place, (rank, client) of those who can begin as soon as a slot is free."""
        self._unsent: list[tuple[int, int]] = []
        """Of those who are to have their work ahead."""
        self._limits: list[tuple[float, int]] = []
        """(when it is left out, client)."""
        self._working: set[int] = set()
        self._num_open = 0
        self._clients: dict[int, _Progress] = {}
        members = sorted(
            {*cohort, *others}, key=lambda c: (c not in self._cohort, -expected_seconds.get(c, math.inf), c)
        )
        self._rank = {client: rank for rank, client in enumerate(members)}
        for client in (*cohort, *others):
            if client not in places:
                self._clients[client] = _Progress(State.OUT, now)
                self._missing[client] = "never joined"
                continue
            lost = client in lost_since
            self._clients[client] = _Progress(
                State.LOST if lost else State.WAITING, lost_since[client] if lost else now
            )
            self._num_open += 1
            self._queue(client)

    def asks(self, now: float) -> list[Ask]:
        """Whom to ask now. The caller sends each of them its work, or reports it lost."""
        result = []
        for client in self._take_unsent() if self._ahead else self._take_slots(State.WAITING):
            progress = self._clients[client]
            progress.attempt += 1
            progress.worked_seconds = progress.travelled_seconds = 0.0
            self._move(client, State.SENT if self._ahead else State.WORKING, now)
            result.append(Ask(client, progress.attempt, progress.slot))
        return result

    def turns(self, now: float) -> list[Turn]:
        """Who begins now, of those that have their work. The caller tells each of them, or reports it lost."""
        result = []
        for client in self._take_slots(State.READY) if self._ahead else ():
            self._move(client, State.WORKING, now)
            result.append(Turn(client, self._clients[client].attempt, self._clients[client].slot))
        return result

    def on_delivered(self, client: int, attempt: int, now: float) -> None:
        """A client has its work, and waits for its turn."""
        if self._is_open(client, attempt) and self._clients[client].state is State.SENT:
            self._move(client, State.READY, now)

    def on_done(self, client: int, attempt: int, now: float) -> None:
        """A client has computed; its answer is on the way, and another one may have its slot."""
        if self._is_open(client, attempt) and self._clients[client].state is State.WORKING:
            self._move(client, State.ANSWERING, now)

    def on_answer(self, client: int, attempt: int, now: float) -> bool:
        """Whether this answer counts: it is to the latest question, and the question is still open."""
        if not self._is_open(client, attempt):
            return False
        self._move(client, State.ANSWERED, now)
        return True

    def on_lost(self, client: int, now: float) -> None:
        """A client that has answered has done its part; any other may come back within the rejoin time."""
        progress = self._clients.get(client)
        if progress is not None and progress.state in _OPEN:
            self._move(client, State.LOST, now)

    def on_return(self, client: int, place: Place, now: float) -> None:
        """A lost client, or one that lost its connection while asked, is asked again; it may have moved."""
        progress = self._clients.get(client)
        if progress is not None and progress.state in _ASKED:
            self.on_lost(client, now)
        if progress is not None and progress.state is State.LOST:
            self._places[client] = place
            self._move(client, State.WAITING, now)

    def drop(self, client: int, reason: str, now: float) -> bool:
        """Leave a client out of this round for good; whether it was still in it."""
        progress = self._clients.get(client)
        if progress is None or progress.state in (State.ANSWERED, State.OUT):
            return False
        self._move(client, State.OUT, now)
        self._missing[client] = reason
        return True

    def expire(self, now: float) -> dict[int, str]:
        """Leave out everyone whose time is over; returns them with the reason."""
        expired = {}
        while self.next_deadline() <= now:
            _, client = heapq.heappop(self._limits)
            progress = self._clients[client]
            lost = f"lost for {now - progress.since:.0f} s"
            late = f"late ({self._timing.deadline_seconds:.0f} s{_ASKED.get(progress.state, '')})"
            expired[client] = late if progress.state in _ASKED else lost
            self.drop(client, expired[client], now)
        return expired

    def next_deadline(self) -> float:
        """When `expire` may have something to do; infinity when nobody is waited for."""
        while self._limits:
            limit, client = self._limits[0]
            if self._limit(self._clients[client]) == limit:
                return limit
            heapq.heappop(self._limits)
        return math.inf

    @property
    def done(self) -> bool:
        return not self._num_open

    def in_state(self, state: State) -> list[int]:
        return sorted(client for client, progress in self._clients.items() if progress.state is state)

    def verdict(self) -> Verdict:
        answered = self.in_state(State.ANSWERED)
        # Of both: a round learns from some, and its accuracy is about the others too.
        groups = (self._cohort, self._others)
        enough = all(len(group.intersection(answered)) >= self._quorum * len(group) for group in groups)
        return Verdict(dict(sorted(self._missing.items())), enough)

    def seconds(self, client: int) -> tuple[float, float]:
        """How long the latest question took: computing and, where that is known apart, travelling."""
        return self._clients[client].worked_seconds, self._clients[client].travelled_seconds

    def working_seconds(self, now: float) -> dict[int, float]:
        """Who computes now, and for how long; of small messages, the way there and back counts too."""
        return {client: now - self._clients[client].since for client in sorted(self._working)}

    def _limit(self, progress: _Progress) -> float | None:
        if progress.state in (State.SENT, State.WORKING, State.ANSWERING):
            spent = progress.worked_seconds + progress.travelled_seconds
            return progress.since + self._timing.deadline_seconds - spent
        if progress.state is State.LOST:
            return progress.since + self._timing.rejoin_seconds
        return None

    def _is_open(self, client: int, attempt: int) -> bool:
        """Whether this is the latest question to a client, and waits for an answer."""
        progress = self._clients.get(client)
        return progress is not None and progress.state in _ASKED and progress.attempt == attempt

    def _queue(self, client: int) -> None:
        """Put a client where it will be looked for, now that it is in another state."""
        progress, entry = self._clients[client], (self._rank[client], client)
        (self._working.add if progress.state is State.WORKING else self._working.discard)(client)
        if (limit := self._limit(progress)) is not None:
            heapq.heappush(self._limits, (limit, client))
        if progress.state is State.WAITING and self._ahead:
            heapq.heappush(self._unsent, entry)
        elif progress.state in (State.WAITING, State.READY):
            heapq.heappush(self._queues.setdefault(self._places[client].name, []), entry)

    def _take_unsent(self) -> Iterator[int]:
        while self._unsent:
            _, client = heapq.heappop(self._unsent)
            if self._clients[client].state is State.WAITING:
                yield client

    def _take_slots(self, state: State) -> Iterator[int]:
        """Clients in this state, the longest expected first, as long as there is a free slot for one; each has it
        then."""
        for name, queue in self._queues.items():
            while queue:
                _, client = queue[0]
                is_current = self._clients[client].state is state and self._places[client].name == name
                if is_current and not self._take_slot(client):
                    break
                heapq.heappop(queue)
                if is_current:
                    yield client

    def _take_slot(self, client: int) -> bool:
        """The first that is free at the client's place, if there is one."""
        place = self._places[client]
        busy = self._busy.setdefault(place.name, set())
        free = next((number for number in range(place.slots) if number not in busy), NO_SLOT)
        if free != NO_SLOT:
            busy.add(free)
            self._clients[client].slot = free
        return free != NO_SLOT

    def _move(self, client: int, state: State, now: float) -> None:
        """To another state; whoever stops working gives its slot back."""
        progress = self._clients[client]
        elapsed = now - progress.since
        if progress.state is State.WORKING:
            progress.worked_seconds += elapsed
            self._busy[self._places[client].name].discard(progress.slot)
            progress.slot = NO_SLOT
        elif progress.state in (State.SENT, State.ANSWERING):
            progress.travelled_seconds += elapsed
        progress.state, progress.since = state, now
        self._num_open -= state in (State.ANSWERED, State.OUT)
        self._queue(client)
