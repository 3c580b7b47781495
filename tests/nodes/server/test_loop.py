"""The server's loop with peers that are late, lost, back, refused, failing or twice as eager, and no network."""

from collections.abc import Callable

import numpy as np
import pytest
from stage import Peer, Stage, in_round, prototypes

import nodes.work
from fedsim.method import Step
from nodes.server.reception import Rejected
from protocol import messages

Build = Callable[..., Stage]
NOBODY = -1


def hang_up(peer: Peer, work: messages.Work) -> None:
    peer.socket.cut()


def say_nothing(peer: Peer, work: messages.Work) -> None:
    """For as long as the test lasts."""


# --------------------------------------------------------------------------------------------- undisturbed


def test_a_run_from_the_first_hello_to_goodbye(stage: Build) -> None:
    play = stage(run={"clients": 2, "rounds": 1})
    outcome = play.run()
    assert (outcome.completed, outcome.reason) == (True, "the run is complete")
    assert play.happened() == [
        *(("client_ready", 0), ("client_ready", 1), ("joined",)),
        # Client 1 has more data; by round 1 both are known to be equally fast.
        *(("round_started", 0), ("asked", 0, 1), ("asked", 0, 0), ("answered", 0, 0), ("answered", 0, 1)),
        *(("collected", 0), ("round_finished", 0)),
        *(("round_started", 1), ("asked", 1, 0), ("asked", 1, 1), ("answered", 1, 0), ("answered", 1, 1)),
        *(("collected", 1), ("round_finished", 1)),
    ]
    assert play.events_of("joined") == [
        {"event": "joined", "clients": 2, "seconds": 0.0, "pss_bytes_mean": 1500.0, "start_seconds_max": 0.5}
    ]
    for peer in play.peers.values():
        kinds = [messages.kind_of(message) for message in peer.heard]
        assert kinds == ["welcome", "work", "work", "stop"]  # FedProto has no set-up to send
        assert peer.last() == messages.Stop(reason="the run is complete")
    np.testing.assert_array_equal(play.folder.final()["prototypes"], np.full((2, 2), 0.5, np.float32))


def test_every_byte_is_booked_and_the_witness_agrees(stage: Build) -> None:
    play = stage(run={"clients": 3, "rounds": 2})
    stranger = Peer(play.server, 77)
    outcome = play.run(client_1=lambda peer, work: [peer.answer(work), peer.answer(work, run="another")])
    connections = play.server.connections.all
    assert isinstance(stranger.last(), messages.Refusal)
    assert [audit.agrees for audit in outcome.audits] == [True] * 3
    ours = [connection for connection in connections if connection.client is not None]
    (theirs,) = (connection for connection in connections if connection.client is None)
    ledger = play.reception.accounts.ledger.wire_bytes
    handshake = theirs.handshake_bytes()  # of a stranger it is nobody's
    assert ledger["up"] == sum(c.carried_up for c in [*ours, theirs]) - handshake.received
    assert ledger["down"] == sum(c.carried_down for c in [*ours, theirs]) - handshake.sent


def test_what_the_cohort_costs_is_the_method_s_and_what_the_others_cost_is_not(stage: Build) -> None:
    play = stage(run={"clients": 4, "rounds": 1, "participation": 0.5})
    cohort = play.learner.plan(0).cohort
    play.run()
    for client in range(4):
        purpose = "method" if client in cohort else "evaluation"
        other = "evaluation" if client in cohort else "method"
        for direction, message in (("down", "work"), ("up", "result")):
            wanted = {"round": 0, "client": client, "direction": direction, "message": message}
            assert play.booked(purpose=purpose, **wanted) > 0 and play.booked(purpose=other, **wanted) == 0


def test_who_is_only_asked_to_save_is_sent_nothing_else(stage: Build) -> None:
    sections = {"run": {"clients": 4, "rounds": 2, "participation": 0.5, "evaluate_every": 9}}
    play = stage(**sections, cluster={"checkpoint_every": 1})
    cohort = play.learner.plan(1).cohort
    play.run()
    work = {"round": 1, "direction": "down", "message": "work"}
    for client in range(4):
        assert play.booked(client=client, payload="header", **work) == 1
        assert (play.booked("payload_bytes", client=client, **work) > 0) == (client in cohort)
        (asked,) = (
            item for item in play.peers[client].heard if isinstance(item, messages.Work) and item.round == 1
        )
        assert asked.save and asked.train == (client in cohort) and not asked.evaluate
    assert play.clients_by_round()[1] == 2  # the others had no part in it


def test_a_place_has_as_many_clients_at_work_as_slots_and_the_longest_goes_first(stage: Build) -> None:
    play = stage(run={"clients": 3, "rounds": 2})
    seconds = {0: 1.0, 1: 9.0, 2: 4.0}

    def work_on(peer: Peer, work: messages.Work) -> None:
        peer.clock.after(seconds[peer.client], lambda: peer.answer(work))

    for client in range(3):
        play.peer(client, work_on, slots=1)
    play.run()
    # In the first round by size, then by what was measured; in the last nobody trains, so nothing new is known.
    order = [(2, 1, 0), (1, 2, 0), (1, 2, 0)]
    asked_and_answered = [
        (kind, round, client)
        for round, clients in enumerate(order)
        for client in clients
        for kind in ("asked", "answered")
    ]
    assert play.happened("asked", "answered") == asked_and_answered
    assert [item["seconds"] for item in play.events_of("answered")][:3] == [4.0, 9.0, 1.0]
    assert play.clock.now == 1000.0 + 3 * 14


def test_no_slot_is_held_while_large_messages_travel(stage: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three clients and one slot: 20 s down, 1 s of work, 30 s up, all at once but the work."""
    monkeypatch.setattr(nodes.work, "LARGE_BYTES", 0)
    play = stage(run={"clients": 3, "rounds": 2})

    def work_on(peer: Peer, work: messages.Work) -> None:
        def done() -> None:
            peer.say_done(work)
            peer.clock.after(30, lambda: peer.answer(work))

        peer.clock.after(1, done)

    for client in range(3):
        peer = play.peer(client, work_on, slots=1)
        peer.on_delivered = lambda work, peer=peer: peer.clock.after(20, lambda: peer.say_delivered(work))
    assert play.run().completed
    seconds = [item["seconds"] for item in play.events_of("round_finished")]
    # In round 0 nothing goes down yet: work comes with its turn. Later, the third begins when two have computed.
    assert seconds == pytest.approx([3 + 30, 20 + 3 + 30, 20 + 3 + 30], abs=0.5)
    first = [item for item in play.happened("asked", "begins", "answered") if item[1] == 1]
    assert [kind for kind, *_ in first] == ["asked"] * 3 + ["begins"] * 3 + ["answered"] * 3
    assert [item["seconds"] for item in play.events_of("answered")][3:] == pytest.approx([51] * 6, abs=0.5)
    # What this costs is neither the method's nor the evaluation's.
    for message, direction in (("delivered", "up"), ("turn", "down"), ("done", "up")):
        assert play.booked(message=message, direction=direction, purpose="control") > 0
        assert play.booked(message=message) == play.booked(message=message, purpose="control")
    assert all(row["lost"] == "0" for row in play.rows())


def test_words_about_work_of_another_round_change_nothing(stage: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes.work, "LARGE_BYTES", 0)
    play = stage(run={"clients": 2, "rounds": 2})

    def chatter(peer: Peer, work: messages.Work) -> None:
        for round in (0, 1, 2, 99):
            for kind in (messages.Delivered, messages.Done):
                peer.socket.send(kind(run=peer.run, round=round, attempt=work.attempt + 1))
        peer.answer(work)

    assert play.run(client_1=chatter).completed and play.clients_by_round() == [2, 2, 2]


def test_a_flood_of_strangers_does_not_fill_the_log(stage: Build) -> None:
    play = stage(run={"clients": 2, "rounds": 1})
    for _ in range(5000):
        play.loop._on(Rejected(NOBODY, "no message of ours"))
    said = [event.get("number") for event in play.events_of("rejected")]
    assert said == [None] * 1000 + [1024, 2048, 4096]


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


# --------------------------------------------------------------------------------------- too much and wrong


def test_an_answer_that_comes_twice_counts_once_and_is_booked_twice(stage: Build) -> None:
    play = stage(run={"clients": 2, "rounds": 1})

    def repeat(peer: Peer, work: messages.Work) -> None:
        peer.answer(work)
        peer.answer(work, prototypes(99.0) if work.train else {})

    assert play.run(client_1=repeat).completed
    assert play.happened("answered").count(("answered", 0, 1)) == 1
    assert play.booked(round=0, client=1, message="result", payload="header") == 2
    assert play.learner.down["prototypes"].max() < 1


def test_an_answer_to_an_old_attempt_does_not_count(stage: Build) -> None:
    """The question was asked again after a broken connection; only the answer to the latest one is taken."""
    play = stage(run={"clients": 1, "rounds": 1})
    first: list[messages.Work] = []

    def habit(peer: Peer, work: messages.Work) -> None:
        if work.attempt == 0 and work.train:
            first.append(work)
            peer.socket.cut()
            peer.socket.connect()
        else:
            for old in first[: work.train]:
                peer.answer(old, prototypes(99.0))
            peer.answer(work)

    assert play.run(client_0=habit).completed
    assert play.happened("answered") == [("answered", 0, 0), ("answered", 1, 0)]
    np.testing.assert_array_equal(play.learner.down["prototypes"], np.zeros((2, 2), np.float32))


@pytest.mark.parametrize("changes", [{"round": 7}, {"attempt": 3}, {"run": "another run"}, {"run": ""}])
def test_an_answer_to_what_was_never_asked_does_not_count(stage: Build, changes: dict[str, int | str]) -> None:
    play = stage(run={"clients": 2, "rounds": 1})

    def err(peer: Peer, work: messages.Work) -> None:
        peer.answer(work, prototypes(99.0) if work.train else {}, **changes)
        peer.clock.after(1, lambda: peer.answer(work))

    assert play.run(client_1=err).completed
    assert [item["seconds"] for item in play.events_of("answered") if item["client"] == 1] == [1.0, 1.0]
    assert play.learner.down["prototypes"].max() < 1
    sender = NOBODY if "run" in changes else 1  # of another run: whoever it is, it is not our client
    assert play.booked(round=0, client=sender, message="result", payload="header") == (
        1 if "run" in changes else 2
    )


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"arrays": {"weights": np.ones(3, np.float32)}}, "field 'weights' is not in the contract"),
        ({"metrics": {"correct": 7.0, "tested": 5.0}}, "not whole numbers with 0 <= correct <= tested"),
    ],
)
def test_a_client_that_breaks_the_contract_is_sent_away_at_once(stage: Build, changes, wrong: str) -> None:
    play = stage(run={"clients": 3, "rounds": 1})
    assert play.run(client_1=in_round(0, lambda peer, work: peer.answer(work, **changes))).completed
    (refused,), (lost,) = play.events_of("refused"), play.events_of("lost")
    assert refused["reason"].startswith("client 1, round 0, up: ") and wrong in refused["reason"]
    assert lost == {"event": "lost", "client": 1, "round": 0, "reason": refused["reason"]}
    assert play.peers[1].last() == messages.Refusal(reason=refused["reason"])
    finished = play.events_of("round_finished")[0]
    assert finished["clients"] == 2 and finished["seconds"] == 0.0  # nobody waited for it


def test_a_client_whose_code_fails_ends_the_run(stage: Build) -> None:
    play = stage(run={"clients": 2, "rounds": 3})
    outcome = play.run(client_1=in_round(1, Peer.fail))
    assert (outcome.completed, outcome.reason) == (False, "client 1 failed in round 1: ValueError: no")
    assert play.peers[0].last() == messages.Stop(reason=outcome.reason)
    assert play.events_of("lost") == [], "it has said itself that it ends"
    assert play.clients_by_round() == [2] and (play.folder.path / "ledger.csv").exists()


def test_a_server_s_half_that_breaks_the_contract_ends_the_run(stage: Build) -> None:
    play = stage(run={"clients": 2, "rounds": 3})
    play.learner.server.aggregate = lambda round, uploads: Step({"weights": np.ones(3)}, {}, {})
    outcome = play.run()
    assert not outcome.completed and outcome.reason.startswith("server, round 1, down: field 'weights'")
    assert play.peers[1].last() == messages.Stop(reason=outcome.reason)


# ----------------------------------------------------------------------------------- stopped and resumed


def test_a_run_that_is_stopped_keeps_its_results_and_tells_everyone(stage: Build) -> None:
    play = stage(run={"clients": 2, "rounds": 5})
    outcome = play.run(client_1=in_round(2, lambda peer, work: play.loop.request_stop("enough")))
    assert (outcome.completed, outcome.reason) == (False, "enough")
    assert [row["round"] for row in play.rows()] == ["0", "1"]
    assert {peer.last() for peer in play.peers.values()} == {messages.Stop(reason="enough")}
    np.testing.assert_array_equal(play.folder.final()["prototypes"], play.learner.down["prototypes"])


def test_the_server_s_own_step_is_stopped_in_the_middle(stage: Build) -> None:
    play = stage(run={"clients": 2, "rounds": 5})
    play.learner.server.aggregate = lambda round, uploads: play.loop.request_stop("not later")
    assert play.run().reason == "not later"
    assert play.learner.history == [] and play.peers[0].last() == messages.Stop(reason="not later")


def test_a_resumed_run_goes_on_with_everything_it_had(stage: Build) -> None:
    sections = {"run": {"clients": 2, "rounds": 4}, "cluster": {"checkpoint_every": 2}}
    whole = stage("whole", **sections)
    assert whole.run().completed
    first = stage(**sections)
    first.run(client_1=in_round(3, lambda peer, work: first.loop.request_stop("power cut")))
    again = stage(resume=True, **sections)
    assert again.run().completed
    assert again.happened("round_started") == [("round_started", round) for round in (2, 3, 4)]
    assert again.reception.states == first.reception.states and again.reception.run != first.reception.run
    for peer in again.peers.values():
        assert isinstance(peer.heard[0], messages.Welcome) and peer.heard[0].restore == 1
        assert peer.works() == [(2, 0), (3, 0), (4, 0)]
    assert again.rows() == whole.rows()
    for round in range(5):
        assert again.booked("wire_bytes", round=round) == whole.booked("wire_bytes", round=round)


def test_a_client_is_told_to_keep_what_the_last_checkpoint_names(stage: Build) -> None:
    """One that is late at a checkpoint has saved, but the checkpoint names its older state."""
    play = stage(run={"clients": 2, "rounds": 3}, cluster={"checkpoint_every": 1, "deadline_seconds": 5})
    assert play.run(client_1=in_round(1, say_nothing)).completed
    kept = {
        client: [item.keep for item in peer.heard if isinstance(item, messages.Work)]
        for client, peer in play.peers.items()
    }
    assert kept == {0: [-1, 0, 1, 2], 1: [-1, 0, 0, 2]}
    assert play.happened("checkpoint") == [("checkpoint", round) for round in range(3)]


# ------------------------------------------------------------------------------------------------ goodbye


def test_whoever_comes_while_the_run_ends_is_told_so(stage: Build) -> None:
    play = stage(run={"clients": 2, "rounds": 1})
    slow = play.peer(1)
    late: list[Peer] = []

    def stay() -> None:
        """The server waits for this one to hang up."""
        late.append(Peer(play.server, 0))
        slow.clock.after(1, slow.socket.close)

    slow.on_stop = stay
    assert play.run().completed
    assert late[0].heard == [messages.Stop(reason="the run is complete")]
    assert play.clock.now == 1001.0
    assert play.booked(client=NOBODY, message="hello") == 1 and play.booked(client=NOBODY, message="stop") == 1


def test_what_clients_say_after_the_end_changes_nothing(stage: Build) -> None:
    play = stage(run={"clients": 2, "rounds": 1})
    eager = play.peer(1)

    def protest() -> None:
        eager.fail(
            messages.Work(run="", round=1, attempt=0, slot=0, train=True, evaluate=True, save=False, keep=-1)
        )
        eager.say_ready()
        eager.socket.send_frames([b"\xc1"])
        eager.socket.close()

    eager.on_stop = protest
    outcome = play.run()
    assert outcome.completed and play.said[-1]["event"] == "rejected"
    assert play.booked(client=1, message="failure", purpose="control") == 1
    assert play.booked(client=1, message="ready", purpose="setup") == 2


def test_nobody_waits_for_ever_for_one_that_does_not_hang_up(stage: Build) -> None:
    play = stage(run={"clients": 2, "rounds": 1})
    play.peer(1).on_stop = lambda: None
    assert play.run().completed
    assert play.clock.now == pytest.approx(1005.0, abs=0.1)
