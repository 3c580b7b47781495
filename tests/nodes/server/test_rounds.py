"""The round as a state machine: who is asked when, what counts, who is waited for, worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.server.rounds import NO_SLOT, Ask, Place, Round, State, Timing, Turn

DEADLINE, REJOIN = 10.0, 4.0
TWO_CORES = Place("host", 2)


def make_round(
    cohort, others=(), *, places=None, lost_since=None, expected=None, quorum=0.5, now=0.0, ahead=False
) -> Round:
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
        ahead=ahead,
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
def test_the_order_is_that_of_a_sorted_list(cohort_size, num_others, slots, seconds):
    cohort, others = range(cohort_size), range(cohort_size, cohort_size + num_others)
    places = dict.fromkeys((*cohort, *others), Place("host", slots))
    expected = dict(enumerate(seconds))
    longest_first = [sorted(group, key=lambda c: (-expected[c], c)) for group in (cohort, others)]
    current = make_round(cohort, others, places=places, expected=expected)
    assert play(current) == longest_first[0] + longest_first[1]


# ------------------------------------------------------------------------------- large work is delivered ahead


def test_large_work_is_sent_to_everyone_at_once_and_turns_are_for_those_who_have_it():
    current = make_round(range(4), expected={0: 1.0, 1: 7.0, 2: 3.0, 3: 5.0}, ahead=True)
    assert current.asks(0.0) == [Ask(1, 0, NO_SLOT), Ask(3, 0, NO_SLOT), Ask(2, 0, NO_SLOT), Ask(0, 0, NO_SLOT)]
    assert current.turns(0.0) == [] and current.in_state(State.SENT) == [0, 1, 2, 3]
    for client in (0, 2, 3):  # the longest is on a slow link: nobody waits for it
        current.on_delivered(client, 0, 1.0)
    assert current.turns(1.0) == [Turn(3, 0, 0), Turn(2, 0, 1)]
    current.on_delivered(1, 0, 2.0)
    assert current.turns(2.0) == []  # both slots are taken
    current.on_done(2, 0, 3.0)
    assert current.turns(3.0) == [Turn(1, 0, 1)]  # while the answer of client 2 travels
    assert current.in_state(State.ANSWERING) == [2]


def test_with_slow_links_transfers_overlap():
    """Twenty clients, two slots, 30 s down and up, 1 s of work: at 2 a time it would take ten times 61 s."""
    now, current = 0.0, make_round(range(20), ahead=True)
    current._timing = Timing(1000.0, REJOIN)
    plans = [(now + 30.0, current.on_delivered, ask) for ask in current.asks(now)]
    while not current.done:
        plans.sort(key=lambda plan: plan[0])
        now, happened, ask = plans.pop(0)
        happened(ask.client, ask.attempt, now)
        for turn in current.turns(now):
            plans += [(now + 1.0, current.on_done, turn), (now + 31.0, current.on_answer, turn)]
            assert len(current.in_state(State.WORKING)) <= 2
    assert now == 30.0 + 20 / 2 * 1.0 + 30.0
    assert {current.seconds(client) for client in range(20)} == {(1.0, 60.0)}  # waiting for a turn is neither


def test_the_deadline_counts_travel_and_work_but_not_the_wait_for_a_turn():
    places = dict.fromkeys(range(2), Place("host", 1))
    current = make_round([0, 1], places=places, ahead=True)
    current.asks(0.0)
    for client in (0, 1):
        current.on_delivered(client, 0, 4.0)
    assert current.turns(4.0) == [Turn(0, 0, 0)]
    assert current.next_deadline() == 4.0 + DEADLINE - 4.0
    assert current.on_answer(0, 0, 9.0)
    assert current.turns(9.0) == [Turn(1, 0, 0)]
    assert current.next_deadline() == 9.0 + DEADLINE - 4.0
    current.on_done(1, 0, 14.0)
    assert current.expire(14.9) == {}
    assert current.expire(15.0) == {1: "late (10 s, its answer still on the way)"}


def test_who_is_late_before_its_work_has_come_is_said_to_be():
    current = make_round([0], ahead=True)
    current.asks(0.0)
    assert current.expire(DEADLINE) == {0: "late (10 s, its work still on the way)"}


@pytest.mark.parametrize("reached", range(4), ids=["sent", "ready", "working", "answering"])
def test_a_client_may_be_lost_anywhere_and_starts_again(reached):
    one_core = Place("host", 1)
    current = make_round([0, 1], places=dict.fromkeys(range(2), one_core), ahead=True)
    current.asks(0.0)
    steps = (current.on_delivered, lambda *_: current.turns(1.0), current.on_done)
    for step in steps[:reached]:
        step(0, 0, 1.0)
    current.on_lost(0, 2.0)
    current.on_delivered(1, 0, 2.0)
    assert current.turns(2.0) == [Turn(1, 0, 0)]  # the slot was given back
    current.on_return(0, one_core, 3.0)
    assert current.asks(3.0) == [Ask(0, 1, NO_SLOT)]
    for step in (current.on_delivered, current.on_done):
        step(0, 0, 3.0)  # words about the question before
    assert current.in_state(State.SENT) == [0] and not current.on_answer(0, 0, 3.0)
    assert current.on_answer(0, 1, 4.0)  # done before: answered again at once, without a turn
    assert current.on_answer(1, 0, 4.0) and current.done


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
    current.on_return(0, TWO_CORES, 1.0)  # a new connection before the old one was known to be lost
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
    assert current.in_state(State.ANSWERED) == [1] and current.verdict().missing == {0: "late (10 s)"}


def test_strangers_change_nothing():
    current = make_round([0])
    current.asks(0.0)
    assert not current.on_answer(7, 0, 1.0)
    current.on_lost(7, 1.0)
    current.on_return(7, TWO_CORES, 1.0)
    current.drop(7, "?", 1.0)
    assert current.in_state(State.WORKING) == [0] and current.verdict().missing == {}


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
    current.on_return(0, TWO_CORES, 2.0)
    assert current.asks(2.0) == []  # its slot is taken by now
    assert current.on_answer(1, 0, 3.0)
    assert current.asks(3.0) == [Ask(0, 1, 1)]
    assert current.on_answer(0, 1, 4.0) and current.on_answer(2, 0, 4.0)
    assert current.in_state(State.ANSWERED) == [0, 1, 2]


def test_a_client_that_was_started_again_with_fewer_cores_has_those_slots_only():
    current = make_round([0, 1], expected={0: 1.0, 1: 2.0})
    assert current.asks(0.0) == [Ask(1, 0, 0), Ask(0, 0, 1)]
    current.on_lost(0, 1.0)
    current.on_return(0, Place("host", 1), 2.0)
    assert current.asks(2.0) == []
    assert current.on_answer(1, 0, 3.0)
    assert current.asks(3.0) == [Ask(0, 1, 0)]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_client_that_moved_while_it_waited_holds_up_nobody_where_it_was(ahead):
    here, there = Place("here", 1), Place("there", 1)
    places = {0: here, 1: here, 2: here, 3: there}
    current = make_round(range(4), places=places, expected={0: 9.0, 1: 7.0, 2: 5.0, 3: 1.0}, ahead=ahead)

    def begin(now: float) -> list[tuple[int, int]]:
        asks, turns = current.asks(now), current.turns(now)
        return [(item.client, item.slot) for item in (turns if ahead else asks)]

    begin(0.0)
    for client in range(4) if ahead else ():
        current.on_delivered(client, 0, 0.0)
    assert ahead is False or begin(0.0) == [(0, 0), (3, 0)]
    current.on_lost(1, 1.0)
    current.on_return(1, there, 2.0)
    assert begin(2.0) == []
    if ahead:
        current.on_delivered(1, 1, 2.0)
    assert current.on_answer(0, 0, 3.0) and begin(3.0) == [(2, 0)]
    assert current.on_answer(3, 0, 4.0) and begin(4.0) == [(1, 0)]
    assert current.on_answer(1, 1 if ahead else 0, 5.0) and current.on_answer(2, 0, 5.0) and current.done


def test_a_lost_client_is_waited_for_as_long_as_it_may_take_to_rejoin():
    current = make_round([0, 1])
    current.asks(0.0)
    current.on_lost(0, 1.0)
    assert current.on_answer(1, 0, 2.0)
    assert not current.done and current.next_deadline() == 1.0 + REJOIN
    assert current.expire(1.0 + REJOIN) == {0: "lost for 4 s"}
    assert current.done
    current.on_return(0, TWO_CORES, 6.0)  # too late for this round
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
    current.on_return(0, TWO_CORES, 3.0)
    current.drop(0, "too late for a reason", 4.0)
    assert current.done and current.verdict().missing == {}


def test_a_dropped_client_frees_its_slot_and_keeps_its_reason():
    current = make_round([0, 1, 2])
    current.asks(0.0)
    current.drop(1, "broke the contract", 1.0)
    current.drop(1, "another reason", 2.0)
    current.on_return(1, TWO_CORES, 2.0)
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


@pytest.mark.parametrize("gone", [0, 4], ids=["who should train", "who should only be tested"])
def test_nobody_makes_up_for_another(gone):
    current = make_round([0, 1], [2, 3, 4], quorum=1.0)
    current.drop(gone, "gone", 0.0)
    play(current)
    verdict = current.verdict()
    assert current.in_state(State.ANSWERED) == sorted({0, 1, 2, 3, 4} - {gone}) and not verdict.has_quorum
