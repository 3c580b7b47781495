"""The round as a state machine, under random histories: rules that hold whatever happens, in whatever order."""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nodes.server.rounds import NO_SLOT, Place, Round, State, Timing

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
        ahead=st.booleans(),
    )
    def begin(self, slots, placed, num_cohort, lost, expected, quorum, ahead):
        self.now = 100.0
        self.clients = range(len(placed))
        self.cohort = set(self.clients[:num_cohort])
        self.others = set(self.clients[num_cohort:])
        # Place number len(slots) or above: the client never joined.
        self.all_places = [Place(f"place {number}", size) for number, size in enumerate(slots)]
        self.places = {c: self.all_places[p] for c, p in enumerate(placed) if p < len(slots)}
        self.expected = expected
        self.quorum = quorum
        lost_since = {c: self.now - 1 for c in lost if c in self.places}
        self.round = Round(
            cohort=sorted(self.cohort),
            others=[c for c in self.clients if c not in self.cohort],
            places=dict(self.places),
            lost_since=lost_since,
            expected_seconds=expected,
            quorum=quorum,
            timing=Timing(DEADLINE, REJOIN),
            now=self.now,
            ahead=ahead,
        )
        self.ahead = ahead
        self.open: dict[int, State] = {}  # questions that wait for an answer, and how far they are
        self.slots: dict[int, int] = {}  # of those that work
        self.active: dict[int, float] = {}  # how long they have travelled or worked
        self.lost_at = dict(lost_since)
        self.waiting = {c for c in self.places if c not in lost_since}
        self.attempts = dict.fromkeys(self.clients, 0)
        self.answered: set[int] = set()
        self.out = {c for c in self.clients if c not in self.places}

    def forget(self, client):
        for facts in (self.open, self.slots, self.active, self.lost_at):
            facts.pop(client, None)
        self.waiting.discard(client)

    @rule()
    def ask(self):
        asks = self.round.asks(self.now)
        rank = {c: (c not in self.cohort, -self.expected.get(c, math.inf), c) for c in self.clients}
        for place in self.places.values():  # each has slots of its own, so only its own clients are in order
            asked = [ask.client for ask in asks if self.ahead or self.places[ask.client] == place]
            assert asked == sorted(asked, key=rank.__getitem__)
        for ask in asks:
            assert ask.client in self.waiting
            assert ask.attempt == self.attempts[ask.client]  # each question has a number of its own
            self.attempts[ask.client] += 1
            self.forget(ask.client)
            self.active[ask.client] = 0.0
            self.open[ask.client] = State.SENT if self.ahead else State.WORKING
            assert (ask.slot == NO_SLOT) == self.ahead
            if not self.ahead:
                self.slots[ask.client] = ask.slot
        if self.ahead:
            assert not self.waiting
        else:
            self.passed_over(self.waiting, asks, rank)

    def passed_over(self, clients, chosen, rank):
        """Whoever was passed over had to be: its place is full of clients that come before it, as far as they were
        chosen now."""
        for client in clients:
            place = self.places[client]
            taken = [c for c in self.slots if self.places[c] == place]
            assert len(taken) == place.slots
            assert all(rank[item.client] < rank[client] for item in chosen if item.client in taken)

    @rule()
    def give_turns(self):
        turns = self.round.turns(self.now)
        for turn in turns:
            assert self.open[turn.client] is State.READY and turn.attempt == self.attempts[turn.client] - 1
            self.open[turn.client], self.slots[turn.client] = State.WORKING, turn.slot
        rank = {c: (c not in self.cohort, -self.expected.get(c, math.inf), c) for c in self.clients}
        self.passed_over({c for c, state in self.open.items() if state is State.READY}, turns, rank)

    @rule(client=st.integers(0, 8), back=st.integers(0, 2))
    def deliver(self, client, back):
        self.round.on_delivered(client, self.attempts.get(client, 1) - 1 - back, self.now)
        if self.open.get(client) is State.SENT and back == 0:
            self.open[client] = State.READY

    @rule(client=st.integers(0, 8), back=st.integers(0, 2))
    def finish(self, client, back):
        self.round.on_done(client, self.attempts.get(client, 1) - 1 - back, self.now)
        if self.open.get(client) is State.WORKING and back == 0:
            self.open[client] = State.ANSWERING
            del self.slots[client]

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

    @rule(client=st.integers(0, 8), place=st.integers(0, 2))
    def come_back(self, client, place):
        """To the same place or another."""
        place = self.all_places[place % len(self.all_places)]
        self.round.on_return(client, place, self.now)
        if client in self.open or client in self.lost_at:
            self.forget(client)
            self.waiting.add(client)
            self.places[client] = place

    @rule(client=st.integers(0, 8))
    def drop(self, client):
        self.round.drop(client, "dropped", self.now)
        if client in self.clients and client not in self.answered:
            self.forget(client)
            self.out.add(client)

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 2.5, 4.0, 9.5]))
    def wait(self, seconds):
        self.now += seconds
        for client, state in self.open.items():
            self.active[client] += seconds if state is not State.READY else 0.0

    @rule()
    def expire(self):
        over = {c for c, seconds in self.active.items() if seconds >= DEADLINE and self.open[c] is not State.READY}
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
            self.give_turns()
            assert self.round.next_deadline() < math.inf, "nobody is asked or lost, yet the round is not over"
            self.wait(max(0.0, self.round.next_deadline() - self.now))
            self.expire()
            turns += 1
            assert turns <= 2 * len(self.clients)

    @invariant()
    def states_are_those_of_the_model(self):
        if not hasattr(self, "round"):
            return
        assert set(self.round.in_state(State.WAITING)) == self.waiting
        for state in (State.SENT, State.READY, State.WORKING, State.ANSWERING):
            assert self.round.in_state(state) == sorted(c for c in self.open if self.open[c] is state)
        assert set(self.round.in_state(State.LOST)) == set(self.lost_at)
        assert set(self.round.in_state(State.ANSWERED)) == self.answered
        assert set(self.round.in_state(State.OUT)) == self.out
        assert self.round.done == (self.answered | self.out == set(self.clients))

    @invariant()
    def no_slot_is_given_twice(self):
        if not hasattr(self, "round"):
            return
        slots = [(self.places[c].name, slot) for c, slot in self.slots.items()]
        assert len(slots) == len(set(slots))
        assert all(0 <= slot < self.places[c].slots for c, slot in self.slots.items())

    @invariant()
    def everyone_ends_in_exactly_one_way(self):
        if not hasattr(self, "round"):
            return
        verdict = self.round.verdict()
        assert set(verdict.missing) == self.out and not self.out & self.answered
        assert all(verdict.missing.values()), "a client was left out without a reason"
        groups = (self.cohort, self.others)
        spare = min(len(group & self.answered) - self.quorum * len(group) for group in groups if group)
        if abs(spare) > 1e-6:
            assert verdict.has_quorum == (spare > 0)


TestRandomHistory = RandomHistory.TestCase
TestRandomHistory.settings = HISTORIES
