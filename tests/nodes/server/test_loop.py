"""The server's loop with peers that do as they are told, too much of it, or wrong, and no network."""

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
