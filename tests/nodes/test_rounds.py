"""The round as a state machine: by hand where an order matters, by random histories where a rule always holds."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nodes.rounds import Ask, Place, Round, State, Timing

PROPERTY = settings(deadline=None, derandomize=True, database=None, max_examples=150)
HISTORIES = settings(PROPERTY, max_examples=80, stateful_step_count=40)
DEADLINE, REJOIN = 10.0, 4.0
TWO_CORES = Place("host", 2)


def make_round(cohort, others=(), *, places=None, lost_since=None, expected=None, quorum=0.5, now=0.0) -> Round:
    everyone = (*cohort, *others)
    return Round(
        cohort=cohort,
        others=others,
        places=dict.fromkeys(everyone, TWO_CORES) if places is None else places,
        lost_since=lost_since or {},
        expected_seconds=expected or {},
        quorum=quorum,
        timing=Timing(DEADLINE, REJOIN),
        now=now,
    )


def play(current: Round, now: float = 0.0) -> list[int]:
    """Everyone answers as soon as asked, first asked first; returns the order of the questions."""
    order, pending = [], []
    while not current.done:
        pending += current.asks(now)
        ask = pending.pop(0)
        order.append(ask.client)
        assert current.on_answer(ask.client, ask.attempt, now)
    return order


# ------------------------------------------------------------------------------------------ who is asked when


def test_the_longest_expected_is_asked_first():
    current = make_round([0, 1, 2, 3], expected={0: 1.0, 1: 7.0, 2: 3.0, 3: 5.0})
    assert current.asks(0.0) == [Ask(1, 0, 0), Ask(3, 0, 1)]
    assert current.asks(0.0) == []  # both slots are taken
    assert current.on_answer(3, 0, 1.0)
    assert current.asks(1.0) == [Ask(2, 0, 1)]  # into the slot that became free
    assert current.on_answer(1, 0, 2.0)
    assert current.asks(2.0) == [Ask(0, 0, 0)]


def test_the_cohort_goes_before_the_others_and_ties_go_by_id():
    current = make_round([5, 4], [1, 0, 2], expected={0: 90.0, 1: 80.0, 2: 80.0, 4: 1.0, 5: 1.0})
    assert play(current) == [4, 5, 0, 1, 2]


def test_a_client_of_unknown_length_may_be_the_longest():
    assert play(make_round([0, 1, 2], expected={0: 5.0, 2: 50.0})) == [1, 2, 0]


def test_each_place_has_slots_of_its_own():
    places = {0: Place("a", 1), 1: Place("a", 1), 2: Place("b", 2), 3: Place("b", 2), 4: Place("b", 2)}
    current = make_round(range(5), places=places)
    assert current.asks(0.0) == [Ask(0, 0, 0), Ask(2, 0, 0), Ask(3, 0, 1)]
    assert current.in_state(State.WAITING) == [1, 4]


@given(
    cohort_size=st.integers(0, 12),
    num_others=st.integers(0, 12),
    slots=st.integers(1, 5),
    seconds=st.lists(st.floats(0, 1e6), min_size=24, max_size=24),
)
@PROPERTY
def test_the_order_is_that_of_a_sorted_list(cohort_size, num_others, slots, seconds):
    cohort, others = range(cohort_size), range(cohort_size, cohort_size + num_others)
    places = dict.fromkeys((*cohort, *others), Place("host", slots))
    expected = dict(enumerate(seconds))
    longest_first = [sorted(group, key=lambda c: (-expected[c], c)) for group in (cohort, others)]
    current = make_round(cohort, others, places=places, expected=expected)
    assert play(current) == longest_first[0] + longest_first[1]


def test_nobody_to_ask_is_a_round_that_is_over():
    current = make_round([], [])
    assert current.done and current.asks(0.0) == [] and current.next_deadline() == math.inf
    assert current.verdict().has_quorum


# ---------------------------------------------------------------------------------------------- what counts


def test_an_answer_counts_once():
    current = make_round([0])
    assert not current.on_answer(0, 0, 0.0)  # before the question
    current.asks(0.0)
    assert current.on_answer(0, 0, 1.0)
    assert not current.on_answer(0, 0, 2.0)
    assert current.done


def test_an_answer_to_an_older_question_does_not_count():
    current = make_round([0])
    current.asks(0.0)
    current.on_return(0, 1.0)  # a new connection before the old one was known to be lost
    assert current.in_state(State.WAITING) == [0]
    assert current.asks(1.0) == [Ask(0, 1, 0)]
    assert not current.on_answer(0, 0, 2.0)
    assert not current.done
    assert current.on_answer(0, 1, 2.0)


def test_an_answer_after_the_deadline_does_not_count():
    current = make_round([0, 1])
    current.asks(0.0)
    assert current.on_answer(1, 0, 3.0)
    assert current.expire(DEADLINE - 0.01) == {}
    assert current.expire(DEADLINE) == {0: "late (10 s)"}
    assert not current.on_answer(0, 0, 11.0)
    verdict = current.verdict()
    assert (verdict.answered, verdict.missing) == ([1], {0: "late (10 s)"})


def test_strangers_change_nothing():
    current = make_round([0])
    current.asks(0.0)
    assert not current.on_answer(7, 0, 1.0)
    current.on_lost(7, 1.0)
    current.on_return(7, 1.0)
    current.drop(7, "?", 1.0)
    assert current.in_state(State.ASKED) == [0] and current.verdict().missing == {}


def test_the_deadline_starts_with_the_question_not_with_the_round():
    current = make_round([0, 1, 2])
    current.asks(0.0)
    assert current.on_answer(0, 0, 8.0)
    assert current.asks(8.0) == [Ask(2, 0, 0)]
    assert current.expire(DEADLINE) == {1: "late (10 s)"}
    assert current.next_deadline() == 8.0 + DEADLINE
    assert current.on_answer(2, 0, 17.9)
    assert current.done


def test_a_late_client_frees_its_slot():
    current = make_round([0, 1, 2])
    current.asks(0.0)
    assert current.on_answer(0, 0, 1.0) and current.asks(1.0) == [Ask(2, 0, 0)]
    current.expire(DEADLINE)
    assert current.asks(DEADLINE) == []  # nobody waits any more, yet nothing is lost
    assert current.on_answer(2, 0, 10.5) and current.done


# ----------------------------------------------------------------------------------------- lost and returned


def test_a_lost_client_frees_its_slot_and_is_asked_again_when_it_returns():
    current = make_round([0, 1, 2], expected={0: 3.0, 1: 2.0, 2: 1.0})
    current.asks(0.0)
    current.on_lost(0, 1.0)
    assert current.asks(1.0) == [Ask(2, 0, 0)]
    assert not current.on_answer(0, 0, 1.5)  # last words of a connection that has closed
    current.on_return(0, 2.0)
    assert current.asks(2.0) == []  # its slot is taken by now
    assert current.on_answer(1, 0, 3.0)
    assert current.asks(3.0) == [Ask(0, 1, 1)]
    assert current.on_answer(0, 1, 4.0) and current.on_answer(2, 0, 4.0)
    assert current.verdict().answered == [0, 1, 2]


def test_a_lost_client_is_waited_for_as_long_as_it_may_take_to_rejoin():
    current = make_round([0, 1])
    current.asks(0.0)
    current.on_lost(0, 1.0)
    assert current.on_answer(1, 0, 2.0)
    assert not current.done and current.next_deadline() == 1.0 + REJOIN
    assert current.expire(1.0 + REJOIN) == {0: "lost for 4 s"}
    assert current.done
    current.on_return(0, 6.0)  # too late for this round
    assert current.done and current.asks(6.0) == []


def test_the_wait_for_a_client_starts_when_it_was_lost_even_before_the_round():
    current = make_round([0, 1], lost_since={0: -3.0})
    assert current.asks(0.0) == [Ask(1, 0, 0)]
    assert current.expire(0.9) == {}
    assert current.expire(1.0) == {0: "lost for 4 s"}


def test_a_client_that_never_joined_is_not_waited_for():
    current = make_round([0, 1], places={1: TWO_CORES})
    assert current.asks(0.0) == [Ask(1, 0, 0)]
    assert current.on_answer(1, 0, 1.0) and current.done
    assert current.verdict().missing == {0: "never joined"}


def test_a_client_that_has_answered_cannot_be_lost():
    current = make_round([0])
    current.asks(0.0)
    assert current.on_answer(0, 0, 1.0)
    current.on_lost(0, 2.0)
    current.on_return(0, 3.0)
    current.drop(0, "too late for a reason", 4.0)
    assert current.done and current.verdict().missing == {}


def test_a_dropped_client_frees_its_slot_and_keeps_its_reason():
    current = make_round([0, 1, 2])
    current.asks(0.0)
    current.drop(1, "broke the contract", 1.0)
    current.drop(1, "another reason", 2.0)
    current.on_return(1, 2.0)
    assert current.asks(2.0) == [Ask(2, 0, 1)]
    assert current.verdict().missing == {1: "broke the contract"}


# --------------------------------------------------------------------------------------------------- quorum


@pytest.mark.parametrize(
    ("quorum", "cohort_size", "needed"),
    [
        (0.5, 10, 5),
        (0.5, 3, 2),
        (0.5, 1, 1),
        (1.0, 7, 7),
        (0.01, 20, 1),
        (0.2, 5, 1),
        (0.55, 100, 55),  # 55.00000000000001 in binary
        (0.07, 100, 7),
        (1e-12, 100, 1),
    ],
)
def test_quorum_is_the_share_of_the_cohort_rounded_up(quorum, cohort_size, needed):
    for answers in (needed - 1, needed):
        current = make_round(range(cohort_size), quorum=quorum)
        for client in range(cohort_size):
            if client >= answers:
                current.drop(client, "gone", 0.0)
        play(current)
        assert current.verdict().has_quorum == (answers == needed), (answers, needed)


def test_others_do_not_count_towards_the_quorum():
    current = make_round([0, 1], [2, 3, 4], quorum=1.0)
    current.drop(0, "gone", 0.0)
    play(current)
    verdict = current.verdict()
    assert verdict.answered == [1, 2, 3, 4] and not verdict.has_quorum


# ------------------------------------------------------------------------------------------ random histories


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
        share = len(self.cohort & self.answered) - self.quorum * len(self.cohort)
        if abs(share) > 1e-6:
            assert verdict.has_quorum == (share > 0)


TestRandomHistory = RandomHistory.TestCase
TestRandomHistory.settings = HISTORIES
