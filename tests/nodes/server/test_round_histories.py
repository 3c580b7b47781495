"""The round as a state machine, under random histories: rules that hold whatever happens, in whatever order."""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nodes.server.rounds import Ask, Place, Round, State, Timing

HISTORIES = settings(deadline=None, derandomize=True, database=None, max_examples=80, stateful_step_count=40)
DEADLINE, REJOIN = 10.0, 4.0


class RandomHistory(RuleBasedStateMachine):
    """Any order of events. The model beside the round is a set of facts that are easy to see by eye."""

    @initialize(
        slots=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        placed=st.lists(st.integers(0, 3), min_size=1, max_size=8),
        num_cohort=st.integers(0, 8),
        lost=st.sets(st.integers(0, 7)),
        expected=st.dictionaries(st.integers(0, 7), st.floats(0, 100)),
        quorum=st.floats(0.01, 1),
    )
    def begin(self, slots, placed, num_cohort, lost, expected, quorum):
        self.now = 100.0
        self.clients = range(len(placed))
        self.cohort = set(self.clients[:num_cohort])
        self.others = set(self.clients[num_cohort:])
        # Place number len(slots) or above: the client never joined.
        self.places = {c: Place(f"place {p}", slots[p]) for c, p in enumerate(placed) if p < len(slots)}
        self.expected = expected
        self.quorum = quorum
        lost_since = {c: self.now - 1 for c in lost if c in self.places}
        self.round = Round(
            cohort=sorted(self.cohort),
            others=[c for c in self.clients if c not in self.cohort],
            places=self.places,
            lost_since=lost_since,
            expected_seconds=expected,
            quorum=quorum,
            timing=Timing(DEADLINE, REJOIN),
            now=self.now,
        )
        self.open: dict[int, Ask] = {}  # questions that wait for an answer
        self.asked_at: dict[int, float] = {}
        self.lost_at = dict(lost_since)
        self.waiting = {c for c in self.places if c not in lost_since}
        self.attempts = dict.fromkeys(self.clients, 0)
        self.answered: set[int] = set()
        self.out = {c for c in self.clients if c not in self.places}

    def forget(self, client):
        for facts in (self.open, self.asked_at, self.lost_at):
            facts.pop(client, None)
        self.waiting.discard(client)

    @rule()
    def ask(self):
        asks = self.round.asks(self.now)
        rank = {c: (c not in self.cohort, -self.expected.get(c, math.inf), c) for c in self.clients}
        assert [ask.client for ask in asks] == sorted((ask.client for ask in asks), key=rank.__getitem__)
        for ask in asks:
            assert ask.client in self.waiting
            assert ask.attempt == self.attempts[ask.client]  # each question has a number of its own
            self.attempts[ask.client] += 1
            self.forget(ask.client)
            self.open[ask.client], self.asked_at[ask.client] = ask, self.now
        for client in self.waiting:  # whoever was passed over had to be: its place is full
            place = self.places[client]
            taken = [c for c in self.open if self.places[c] == place]
            assert len(taken) == place.slots
            # ... of clients that come before it, as far as they were chosen now.
            assert all(rank[ask.client] < rank[client] for ask in asks if ask.client in taken)

    @rule(client=st.integers(0, 8), back=st.integers(0, 2))
    def answer(self, client, back):
        attempt = self.attempts.get(client, 1) - 1 - back
        counts = client in self.open and back == 0
        assert self.round.on_answer(client, attempt, self.now) == counts
        if counts:
            self.forget(client)
            self.answered.add(client)

    @rule(client=st.integers(0, 8))
    def lose(self, client):
        self.round.on_lost(client, self.now)
        if client in self.open or client in self.waiting:
            self.forget(client)
            self.lost_at[client] = self.now

    @rule(client=st.integers(0, 8))
    def come_back(self, client):
        self.round.on_return(client, self.now)
        if client in self.open or client in self.lost_at:
            self.forget(client)
            self.waiting.add(client)

    @rule(client=st.integers(0, 8))
    def drop(self, client):
        self.round.drop(client, "dropped", self.now)
        if client in self.clients and client not in self.answered:
            self.forget(client)
            self.out.add(client)

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 2.5, 4.0, 9.5]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def expire(self):
        over = {c for c, since in self.asked_at.items() if self.now - since >= DEADLINE}
        over |= {c for c, since in self.lost_at.items() if self.now - since >= REJOIN}
        due = self.round.next_deadline() <= self.now
        assert set(self.round.expire(self.now)) == over
        assert due == bool(over)
        for client in over:
            self.forget(client)
            self.out.add(client)

    @precondition(lambda self: not self.round.done)
    @rule()
    def nothing_waits_for_ever(self):
        """A caller that only asks and expires sees the end, even if nobody ever answers again."""
        turns = 0
        while not self.round.done:
            self.ask()
            assert self.round.next_deadline() < math.inf, "nobody is asked or lost, yet the round is not over"
            self.now = max(self.now, self.round.next_deadline())
            self.expire()
            turns += 1
            assert turns <= 2 * len(self.clients)

    @invariant()
    def states_are_those_of_the_model(self):
        if not hasattr(self, "round"):
            return
        assert set(self.round.in_state(State.WAITING)) == self.waiting
        assert set(self.round.in_state(State.ASKED)) == set(self.open)
        assert set(self.round.in_state(State.LOST)) == set(self.lost_at)
        assert set(self.round.in_state(State.ANSWERED)) == self.answered
        assert set(self.round.in_state(State.OUT)) == self.out
        assert self.round.done == (self.answered | self.out == set(self.clients))

    @invariant()
    def no_slot_is_given_twice(self):
        if not hasattr(self, "round"):
            return
        slots = [(self.places[c].name, ask.slot) for c, ask in self.open.items()]
        assert len(slots) == len(set(slots))
        assert all(0 <= ask.slot < self.places[c].slots for c, ask in self.open.items())

    @invariant()
    def everyone_ends_in_exactly_one_way(self):
        if not hasattr(self, "round"):
            return
        verdict = self.round.verdict()
        assert not set(verdict.answered) & set(verdict.missing)
        assert (set(verdict.answered), set(verdict.missing)) == (self.answered, self.out)
        assert all(verdict.missing.values()), "a client was left out without a reason"
        groups = (self.cohort, self.others)
        spare = min(len(group & self.answered) - self.quorum * len(group) for group in groups if group)
        if abs(spare) > 1e-6:
            assert verdict.has_quorum == (spare > 0)


TestRandomHistory = RandomHistory.TestCase
TestRandomHistory.settings = HISTORIES
