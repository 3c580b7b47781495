"""How the server's loop ends and is taken up again, and no network."""

from collections.abc import Callable

import numpy as np
import pytest
from stage import Peer, Stage, in_round, say_nothing

from protocol import messages

Build = Callable[..., Stage]
NOBODY = -1


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
