"""A finished run under the virtual clock with its own slots: the server's own state machine is played once more.

Whoever is asked when is decided by `rounds.Round`, as in the run; only time is not waited for. So the clock agrees
with a run through a relay but for what the machine itself adds: reading, writing, waking up.
"""

import heapq
import itertools
from collections.abc import Callable, Mapping
from functools import partial

from pandas import Series

from fedsim.errors import UserError
from fedsim.results import retimed
from fedsim.results.load import LoadedRun
from fedsim.world.clock import Air, RoundTime
from nodes.server.rounds import NO_SLOT, Place, Round, Timing

_NEVER = 1e12


def on_own_slots(run: LoadedRun, air: Air) -> list[RoundTime]:
    """With the seconds that were measured, tests included."""
    sent, worked = retimed.message_bytes(run), retimed.measured_seconds(run, for_method=False)
    step = run.server_timings.groupby("round")["seconds"].sum()
    places = _places(run)
    times, now = [], 0.0
    for round in run.metrics["round"]:
        game = _Game(int(round), air, sent.loc[round], worked.loc[round], places)
        collected = game.play()
        ends = now + collected + float(step.get(round, 0.0))
        times.append(RoundTime(int(round), now, now + game.arrived, ends))
        now = ends
    return times


def _places(run: LoadedRun) -> dict[int, Place]:
    """Where clients computed, and how many at once."""
    known = {event["client"]: event for event in run.events if event["event"] == "client_ready"}
    slots = run.experiment.cluster.slots
    if not slots and not all("slots" in event for event in known.values()):
        raise UserError(
            f"{run.path} does not say how many clients computed at once; it was made before that was noted."
        )
    return {client: Place(event["place"], event.get("slots", slots)) for client, event in known.items()}


class _Game:
    """One round."""

    def __init__(self, round: int, air: Air, sent: Series, worked: Series, places: Mapping[int, Place]):
        """`sent`: bytes by client and message; `worked`: seconds by client."""
        self.arrived = 0.0
        self._round, self._air, self._sent, self._worked = round, air, sent, worked
        clients = [client for client in places if (client, "work") in sent.index]
        self._state = Round(
            cohort=clients,
            others=(),
            places=places,
            lost_since={},
            expected_seconds=worked.to_dict(),
            quorum=1.0,
            timing=Timing(_NEVER, _NEVER),
            now=0.0,
            ahead=any((client, "turn") in sent.index for client in clients),
        )
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[float], object]]] = []

    def play(self) -> float:
        """Until all have answered; returns how long that took."""
        now = 0.0
        self._ask(now)
        while self._events:
            now, _, happens = heapq.heappop(self._events)
            happens(now)
            self._ask(now)
        return now

    def _ask(self, now: float) -> None:
        for ask in self._state.asks(now):
            arrives = now + self._seconds(ask.client, "down", "work")
            self.arrived = max(self.arrived, arrives)
            if ask.slot == NO_SLOT:
                told = arrives + self._seconds(ask.client, "up", "delivered")
                self._at(told, partial(self._state.on_delivered, ask.client, ask.attempt))
            else:
                self._works(ask.client, ask.attempt, arrives)
        for turn in self._state.turns(now):
            self._works(turn.client, turn.attempt, now + self._seconds(turn.client, "down", "turn"))

    def _works(self, client: int, attempt: int, begins: float) -> None:
        ends = begins + float(self._worked.get(client, 0.0))
        if (client, "done") in self._sent.index:
            done = ends + self._seconds(client, "up", "done")
            self._at(done, partial(self._state.on_done, client, attempt))
        answered = ends + self._seconds(client, "up", "result", "done")
        self._at(answered, partial(self._state.on_answer, client, attempt))

    def _seconds(self, client: int, direction: str, *messages: str) -> float:
        """Of messages that leave one behind the other."""
        num_bytes = sum(int(self._sent.get((client, message), 0)) for message in messages)
        return self._air.seconds(client, direction, num_bytes, self._round)  # type: ignore[arg-type]

    def _at(self, time: float, happens: Callable[[float], object]) -> None:
        heapq.heappush(self._events, (time, next(self._order), happens))
