"""The server's loop with peers that are late, lost, back or started again, and no network."""

from collections.abc import Callable

import pytest
from stage import Peer, Stage, in_round, say_nothing

from protocol import messages

Build = Callable[..., Stage]


def hang_up(peer: Peer, work: messages.Work) -> None:
    peer.socket.cut()


# --------------------------------------------------------------------------------------------- late and lost


def test_a_late_client_is_left_out_and_its_answer_of_that_round_is_booked_and_forgotten(stage: Build) -> None:
    play = stage(run={"clients": 3, "rounds": 2}, cluster={"deadline_seconds": 10})

    def after(seconds: float) -> Callable[[Peer, messages.Work], None]:
        return lambda peer, work: peer.clock.after(seconds, lambda: peer.answer(work))

    # Client 2 makes round 1 last long enough for the answer of round 0 to come in the middle of it.
    outcome = play.run(client_1=in_round(0, after(12)), client_2=in_round(1, after(5)))
    assert outcome.completed and play.clients_by_round() == [2, 3, 3]
    assert play.events_of("left_out") == [
        {"event": "left_out", "round": 0, "client": 1, "reason": "late (10 s)"},
    ]
    assert play.happened("answered").count(("answered", 1, 1)) == 1
    assert play.booked(round=1, client=1, message="result", payload="header") == 2
    assert play.peers[1].works() == [(0, 0), (1, 0), (2, 0)]


def test_a_client_that_takes_far_longer_than_before_is_named_once(stage: Build) -> None:
    play = stage(run={"clients": 2, "rounds": 3}, cluster={"deadline_seconds": 900})

    def after(seconds: float) -> Callable[[Peer, messages.Work], None]:
        return lambda peer, work: peer.clock.after(seconds, lambda: peer.answer(work))

    habits = {0: after(7), 1: after(65), 2: after(700)}
    outcome = play.run(client_1=lambda peer, work: habits.get(work.round, Peer.answer)(peer, work))
    assert outcome.completed
    (warning,) = play.events_of("warning")
    assert warning["round"] == 2 and warning["reason"].startswith(
        "waits for client 1, 650 s so far and 65.0 s last"
    )
    assert warning["reason"].endswith("it counts as late after cluster.deadline_seconds = 900")


def test_a_client_that_lost_its_connection_is_asked_again_and_counts_once(stage: Build) -> None:
    def stumble(peer: Peer, work: messages.Work) -> None:
        peer.socket.cut()
        peer.clock.after(5, peer.socket.connect)

    play = stage(run={"clients": 2, "rounds": 1})
    assert play.run(client_1=in_round(0, stumble)).completed
    assert play.happened("asked", "lost", "returned", "answered", "left_out")[:6] == [
        *(("asked", 0, 1), ("asked", 0, 0), ("answered", 0, 0), ("lost", 0, 1), ("returned", 0, 1)),
        ("asked", 0, 1),
    ]
    assert play.peers[1].works() == [(0, 0), (0, 1), (1, 0)] and play.clients_by_round() == [2, 2]
    assert len([item for item in play.peers[1].heard if isinstance(item, messages.Welcome)]) == 1


def test_a_lost_client_is_waited_for_once(stage: Build) -> None:
    play = stage(run={"clients": 3, "rounds": 3}, cluster={"rejoin_seconds": 30})
    assert play.run(client_1=in_round(1, hang_up)).completed
    assert play.clients_by_round() == [3, 2, 2, 2]
    assert play.happened("lost", "left_out") == [("lost", 1, 1), *(("left_out", round, 1) for round in (1, 2, 3))]
    assert {item["reason"] for item in play.events_of("left_out")} == {"lost for 30 s"}
    assert play.clock.now == pytest.approx(1000.0 + 30, abs=0.5)


def test_a_loss_that_only_sending_reveals_is_a_loss(stage: Build) -> None:
    """Between two rounds the connection broke without a word: the next question cannot be handed over."""
    play = stage(run={"clients": 3, "rounds": 1})

    def answer_and_vanish(peer: Peer, work: messages.Work) -> None:
        peer.answer(work)
        peer.socket.cut(noticed=False)

    assert play.run(client_1=answer_and_vanish).completed
    assert play.happened("asked", "lost", "left_out")[3:] == [
        *(("asked", 1, 0), ("asked", 1, 2), ("lost", 1, 1), ("left_out", 1, 1)),
    ]
    assert play.booked(round=1, client=1) == 0


def test_without_a_quorum_the_run_ends_with_a_sentence(stage: Build) -> None:
    play = stage(run={"clients": 3, "rounds": 5}, cluster={"quorum": 0.75, "deadline_seconds": 10})
    outcome = play.run(client_0=in_round(1, say_nothing), client_2=in_round(1, hang_up))
    assert not outcome.completed and outcome.lacks_clients
    assert outcome.reason == (
        "round 1 lacks 2 of 3 clients (client 0: late (10 s), client 2: lost for 30 s since round 1), and "
        "cluster.quorum = 0.75 must answer; who is late needs more than cluster.deadline_seconds = 10."
    )
    assert len(play.rows()) == 1 and play.peers[1].last() == messages.Stop(reason=outcome.reason)


def test_who_is_lost_while_others_join_and_later_again_is_missing_since_the_later_time(stage: Build) -> None:
    play = stage(run={"clients": 2, "rounds": 2}, cluster={"quorum": 1.0, "rejoin_seconds": 30})

    def replace_first() -> None:
        play.peers[0].socket.cut()
        play.clock.after(1, lambda: play.peer(0, hang_up))
        play.clock.after(3, lambda: play.peer(1))

    play.peer(0)
    play.clock.after(2, replace_first)
    outcome = play.loop.run()
    assert play.happened("lost")[0] == ("lost", -1, 0)
    assert outcome.reason.startswith("round 0 lacks 1 of 2 clients (client 0: lost for 30 s since round 0), and")


def test_whoever_never_joins_is_named(stage: Build) -> None:
    play = stage(run={"clients": 14}, cluster={"join_seconds": 2.5})
    play.peer(3)
    outcome = play.loop.run()
    assert outcome.reason == (
        "13 of 14 clients did not join within 2.5 s: 0, 1, 2, 4, 5, 6, 7, 8, 9, 10 and 3 more; "
        "start them, or raise cluster.join_seconds."
    )
    assert play.peers[3].last() == messages.Stop(reason=outcome.reason)
    assert not (play.folder.path / "metrics.csv").exists()


def test_clients_that_keep_coming_are_waited_for(stage: Build) -> None:
    """A thousand clients take longer to join than any of them."""
    play = stage(run={"clients": 6, "rounds": 1}, cluster={"join_seconds": 2.5})
    for number in range(6):
        play.clock.after(2 * number, lambda client=number: play.peer(client))
    assert play.loop.run().completed and play.events_of("joined")[0]["seconds"] >= 10


# ------------------------------------------------------------------------------------------- started again


def test_a_client_that_was_started_again_restores_itself_and_is_asked_again(stage: Build) -> None:
    play = stage(run={"clients": 2, "rounds": 2}, cluster={"checkpoint_every": 1})

    def die(peer: Peer, work: messages.Work) -> None:
        peer.socket.cut()
        peer.clock.after(3, lambda: play.peer(1))

    assert play.run(client_1=in_round(1, die)).completed
    told = ("lost", "client_ready", "restored", "returned", "asked", "answered")
    assert play.happened(*told)[9:14] == [
        *(("lost", 1, 1), ("client_ready", 1), ("restored", 0, 1), ("returned", 1, 1), ("asked", 1, 1)),
    ]
    again = play.peers[1]
    assert isinstance(again.heard[0], messages.Welcome) and again.heard[0].restore == 0
    assert again.works() == [(1, 1), (2, 0)] and play.clients_by_round() == [2, 2, 2]


def test_before_its_first_answer_a_client_may_begin_anew(stage: Build) -> None:
    play = stage(run={"clients": 2, "rounds": 1})

    def die(peer: Peer, work: messages.Work) -> None:
        peer.socket.cut()
        play.peer(1)

    assert play.run(client_1=die).completed
    assert play.events_of("restored") == [{"event": "restored", "client": 1, "round": -1}]
    assert play.peers[1].works() == [(0, 1), (1, 0)]


def test_a_client_that_was_started_again_is_not_asked_before_it_is_ready(stage: Build) -> None:
    """It waited for a slot, died, and was back before its loss was read; then the slot became free."""
    play = stage(run={"clients": 2, "rounds": 1})
    waiting = play.peer(0, slots=1)

    def replace(peer: Peer, work: messages.Work) -> None:
        waiting.socket.cut()
        again = play.peer(0, slots=1)
        say_ready = again.say_ready
        again.say_ready = lambda: again.clock.after(7, say_ready)
        again.turn()
        peer.answer(work)

    play.peer(1, in_round(0, replace), slots=1)
    assert play.run().completed and play.clients_by_round() == [2, 2]
    told = [item for item in play.happened("asked", "lost", "client_ready", "answered") if item[-1] == 0]
    assert told[1:6] == [
        *(("lost", 0, 0), ("client_ready", 0), ("asked", 0, 0), ("answered", 0, 0), ("asked", 1, 0)),
    ]
    assert play.clock.now == 1007.0


def test_a_client_that_was_started_again_on_a_smaller_machine_has_its_slots(stage: Build) -> None:
    play = stage(run={"clients": 2, "rounds": 1})
    slots: list[int] = []

    def note(peer: Peer, work: messages.Work) -> None:
        slots.append(work.slot)
        peer.answer(work)

    def die(peer: Peer, work: messages.Work) -> None:
        assert work.slot == 1
        peer.socket.cut()
        play.peer(0, note, place="laptop", slots=1)

    play.peer(0, die, slots=2)
    slow = in_round(0, lambda peer, work: peer.clock.after(9, lambda: peer.answer(work)))
    play.peer(1, slow, slots=2)
    assert play.run().completed and slots == [0, 0]


def test_later_it_needs_a_saved_state(stage: Build) -> None:
    """Going on from nothing would quietly change the result."""
    play = stage(run={"clients": 3, "rounds": 1})

    def die(peer: Peer, work: messages.Work) -> None:
        peer.answer(work)
        peer.socket.cut()
        peer.clock.after(3, lambda: play.peer(1))

    assert play.run(client_1=die).completed
    sentence = "client 1 has no saved state to go on with; use --checkpoint-every."
    assert play.events_of("refused") == [{"event": "refused", "reason": sentence}]
    assert play.peers[1].heard == [messages.Refusal(reason=sentence)]
    assert play.happened("left_out") == [("left_out", 1, 1)]


@pytest.mark.parametrize("quorum", [1.0, 0.5])
def test_a_state_from_before_what_was_learned_since_is_not_gone_on_from(stage: Build, quorum: float) -> None:
    """Saved in round 1, answered in round 2, killed: who needs everyone needs the same numbers too."""
    play = stage(run={"clients": 2, "rounds": 4}, cluster={"checkpoint_every": 2, "quorum": quorum})

    def die(peer: Peer, work: messages.Work) -> None:
        peer.answer(work)
        if work.round == 2:
            peer.socket.cut()
            peer.clock.after(3, lambda: play.peer(1))

    outcome = play.run(client_1=die)
    assert outcome.completed == (quorum < 1) and outcome.lacks_clients == (quorum == 1)
    if quorum == 1:
        assert outcome.reason.startswith("round 3 lacks 1 of 2 clients (client 1: it has")
        assert play.clock.now < 1010.0, "nobody waits for what cannot come"
    else:
        assert play.events_of("restored") == [{"event": "restored", "client": 1, "round": 1}]


def test_a_state_that_was_saved_in_this_very_round_counts_at_once(stage: Build) -> None:
    """The client dies after its answer and is back before the round is over: it is not asked twice."""
    play = stage(run={"clients": 2, "rounds": 1}, cluster={"checkpoint_every": 1})

    def answer_and_die(peer: Peer, work: messages.Work) -> None:
        peer.answer(work)
        peer.socket.cut()
        play.peer(1)

    slow = in_round(0, lambda peer, work: peer.clock.after(60, lambda: peer.answer(work)))
    assert play.run(client_0=slow, client_1=answer_and_die).completed
    assert play.events_of("restored") == [{"event": "restored", "client": 1, "round": 0}]
    assert play.peers[1].works() == [(1, 0)] and play.clients_by_round() == [2, 2]
