"""A set-up in the server's loop: to everyone once, again to whoever lost it, and no larger than a frame may be."""

from collections.abc import Callable

import numpy as np
import pytest
from stage import Peer, Stage

from fedsim.contract import Contract, Field, Payload
from fedsim.method import Step
from nodes.border import Border
from protocol import messages
from protocol.codec import decode

Build = Callable[..., Stage]


def test_a_set_up_goes_to_everyone_once_and_again_to_whoever_was_started_again(stage: Build) -> None:
    counts = Field(Payload.COUNTS, "C", "int32")
    play = stage(
        run={"clients": 2, "rounds": 1},
        contract=Contract(setup_up={"counts": counts}, setup_down={"counts": counts}),
    )
    seen: list[tuple[int, int, list[int]]] = []

    def setup(uploads):  # of the server's half
        seen.extend((item.client, item.num_train, item.arrays["counts"].tolist()) for item in uploads)
        return {"counts": sum(item.arrays["counts"] for item in uploads)}

    play.learner.server.setup = setup
    play.learner.server.aggregate = lambda round, uploads: Step({}, {}, {})

    def nothing(peer: Peer, work: messages.Work) -> None:
        peer.answer(work, {})

    def die(peer: Peer, work: messages.Work) -> None:
        peer.socket.cut()
        play.peer(1, nothing, setup=given[1])

    given = [{"counts": np.array(held, np.int32)} for held in ([1, 2, 3], [10, 0, 5])]
    play.peer(0, nothing, setup=given[0])
    first = play.peer(1, die, setup=given[1])
    assert play.run().completed
    assert seen == [(0, 10, [1, 2, 3]), (1, 20, [10, 0, 5])]  # the second set-up of client 1 changes nothing
    for peer in (play.peers[0], first, play.peers[1]):
        assert [messages.kind_of(message) for message in peer.heard[:3]] == ["welcome", "setup", "work"]
    assert play.booked("elements", direction="down", purpose="setup") == 3 * 3
    assert play.booked("elements", direction="up", purpose="setup") == 3 * 3


def with_set_up(stage: Build, **sections: dict[str, object]) -> tuple[Stage, Callable[..., Peer]]:
    """A method that only agrees on something, and `peer(client, habit)` with its part of it."""
    counts = Field(Payload.COUNTS, "C", "int32")
    play = stage(**sections, contract=Contract(setup_up={"counts": counts}, setup_down={"counts": counts}))
    play.learner.server.setup = lambda uploads: {"counts": sum(item.arrays["counts"] for item in uploads)}
    play.learner.server.aggregate = lambda round, uploads: Step({}, {}, {})

    def nothing(peer: Peer, work: messages.Work) -> None:
        peer.answer(work, {})

    def peer(client: int, habit: Callable[..., object] = nothing) -> Peer:
        return play.peer(client, habit, setup={"counts": np.full(3, client + 1, np.int32)})

    return play, peer


def kinds(peer: Peer) -> list[str]:
    return [messages.kind_of(message) for message in peer.heard]


@pytest.mark.parametrize("when", ["before it is sent", "on its way", "on its way, unnoticed"])
def test_a_set_up_that_is_lost_with_the_connection_is_sent_again(stage: Build, when: str) -> None:
    play, peer = with_set_up(stage, run={"clients": 2, "rounds": 1})
    stays, unlucky = peer(0), peer(1)

    def cut() -> None:
        unlucky.socket.inbox.clear()
        unlucky.socket.cut(noticed="unnoticed" not in when)
        play.clock.after(3, unlucky.socket.connect)

    def cut_on_its_way() -> None:
        if any(isinstance(decode(frames).message, messages.Setup) for frames in unlucky.socket.inbox):
            play.server.turns.remove(cut_on_its_way)
            cut()

    if when == "before it is sent":
        learned = play.learner.server.setup
        play.learner.server.setup = lambda uploads: (cut(), learned(uploads))[1]
    else:
        play.server.turns.insert(0, cut_on_its_way)
    assert play.run().completed and play.clients_by_round() == [2, 2]
    assert kinds(stays) == kinds(unlucky) == ["welcome", "setup", "work", "work", "stop"]


def test_a_set_up_that_has_arrived_is_not_sent_again(stage: Build) -> None:
    """It may be a whole public data set, and the link a bad one."""
    play, peer = with_set_up(stage, run={"clients": 2, "rounds": 2})

    def stumble(it: Peer, work: messages.Work) -> None:
        it.answer(work, {})
        it.socket.cut()
        it.socket.connect()

    stays, stumbles = peer(0), peer(1, stumble)
    assert play.run().completed
    assert [item["round"] for item in play.events_of("returned")] == [1, 2]
    assert kinds(stays) == ["welcome", "setup", "work", "work", "work", "stop"]
    assert kinds(stumbles) == ["welcome", "setup", "work", "work", "work"]  # cut off when it was to stop


def test_whoever_is_lost_again_before_its_set_up_is_sent_is_not_asked(stage: Build) -> None:
    play, peer = with_set_up(stage, run={"clients": 2, "rounds": 1}, cluster={"rejoin_seconds": 30})
    stays = peer(0)

    def die(it: Peer, work: messages.Work) -> None:
        it.socket.cut()
        again = peer(1)
        say_ready = again.say_ready
        again.say_ready = lambda: (say_ready(), again.socket.cut(noticed=False))

    peer(1, die)
    assert play.run().completed and play.clients_by_round() == [1, 1]
    assert kinds(stays) == ["welcome", "setup", "work", "work", "stop"]
    assert play.happened("asked").count(("asked", 0, 1)) == 1
    assert kinds(play.peers[1]) == ["welcome"]


def test_a_set_up_that_is_larger_than_a_frame_may_be_ends_the_run_with_a_sentence(stage: Build) -> None:
    """Clients would drop it, and train without it."""
    play, peer = with_set_up(stage, run={"clients": 2, "rounds": 1}, cluster={"max_frame_mib": 1})
    play.learner.border = Border(Contract(setup_down={"public": Field(Payload.SAMPLES, "n")}), {})
    play.learner.server.setup = lambda uploads: {"public": np.zeros(300_000, np.float32)}
    peers = [peer(0), peer(1)]
    outcome = play.run()
    reason = "the array public has 2 MiB, more than cluster.max_frame_mib = 1; give 2 or more."
    assert (outcome.completed, outcome.reason) == (False, reason)
    assert [it.last() for it in peers] == 2 * [messages.Stop(reason=reason)]
    assert {tuple(kinds(it)) for it in peers} == {("welcome", "stop")}
