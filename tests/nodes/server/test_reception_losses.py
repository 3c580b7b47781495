"""Who is gone, back or replaced, and how the reception says goodbye."""

from collections.abc import Callable

import msgpack
import pytest
from desk import EXPERIMENT, WORK, Desk
from stage import Peer

from nodes.server.accounts import NOBODY, audit_summary
from nodes.server.reception import (
    Answered,
    Event,
    Gone,
    Joined,
    Refused,
    Rejected,
    Returned,
)
from protocol import messages
from protocol.codec import decode

# -------------------------------------------------------------------------------------- gone and returned


def test_a_client_that_hung_up_is_gone_and_one_that_comes_back_has_returned(desk: Desk) -> None:
    peer = desk.member(1)
    desk.clock.wait(7)
    peer.socket.cut()
    assert desk.events() == [Gone(1)]
    assert desk.reception.members.by_id[1].lost_since == 1007.0 and desk.reception.members.missing() == [0, 1, 2]
    peer.socket.connect()
    assert desk.events() == [Returned(1)]
    assert desk.reception.members.missing() == [0, 2]
    assert not any(isinstance(message, messages.Welcome) for message in peer.heard[1:])


def test_one_that_came_back_before_anyone_looked_has_only_returned(desk: Desk) -> None:
    peer = desk.member(1)
    peer.socket.cut()
    peer.socket.connect()
    assert desk.events() == [Returned(1)]


def test_one_whose_old_connection_still_looks_open_has_returned_and_that_one_is_ended(desk: Desk) -> None:
    peer = desk.member(1)
    (old,) = desk.server.connections.all
    peer.socket.cut(noticed=False)
    peer.socket.connect()
    assert desk.events() == [Returned(1)]
    assert desk.reception.members.by_id[1].route == peer.socket.route != old.route
    desk.reception.send(1, WORK)
    assert [type(message) for message in decoded(peer)] == [messages.Work]


def test_another_version_is_told_so(desk: Desk) -> None:
    peer = desk.stranger(1)
    peer.turn()
    peer.socket.send_frames([msgpack.packb({"v": 99, "kind": "hello"})])
    told = desk.events()
    assert isinstance(told[-1], Rejected) and told[-1].reason.startswith("versions differ: the other side speaks")
    refusal = decoded(peer)[-1]
    assert isinstance(refusal, messages.Refusal) and refusal.reason == told[-1].reason


@pytest.mark.parametrize("completed", [True, False])
def test_what_never_left_is_a_cut_where_a_run_was_stopped_and_a_difference_where_it_was_complete(
    desk: Desk, completed: bool
) -> None:
    """As when clients are killed while they are told to stop: no Stop has left, and a FIN counts as a byte."""
    peer = desk.member(1)
    (connection,) = desk.server.connections.all
    desk.clock.after(1, peer.socket.cut)
    list(desk.reception.goodbye("enough", completed=completed))
    connection.carried_down, connection.carried_up = connection.carried_down - 40, connection.carried_up + 1
    summary = audit_summary(desk.reception.accounts.audit())
    assert (summary["connections"], summary["agree"]) == (1, 0)
    assert (len(summary["differences"]), len(summary["cut"])) == ((1, 0) if completed else (0, 1))


def decoded(peer: Peer) -> list[object]:
    """What has come for a peer and was not read yet."""
    return [decode(frames).message for frames in peer.socket.inbox]


def test_last_words_are_heard_before_the_loss(desk: Desk) -> None:
    peer = desk.member(1)
    peer.answer(WORK)
    peer.socket.cut()
    answered, gone = desk.events()
    assert isinstance(answered, Answered) and gone == Gone(1)


def test_a_send_that_fails_is_told_of_without_waiting(desk: Desk) -> None:
    peer = desk.member(1)
    peer.socket.cut(noticed=False)
    frames = desk.booked()
    assert not desk.reception.send(1, WORK)
    assert desk.booked() == frames  # nothing was handed over
    assert list(desk.reception.events(60)) == [Gone(1)] and desk.clock.now == 1000.0
    assert desk.events() == []


def test_a_process_that_takes_the_place_of_a_dead_one_joins_anew(desk: Desk) -> None:
    old = desk.member(1)
    old.socket.cut()
    assert desk.events() == [Gone(1)]
    new = desk.member(1)
    member = desk.reception.members.by_id[1]
    assert member.route == new.socket.route != old.socket.route


def test_one_that_was_replaced_before_anyone_looked_is_gone_first(desk: Desk) -> None:
    """The end of its connection is told of later, and by then its route is nobody's."""
    old, new = desk.member(1), desk.stranger(1)
    old.socket.cut()
    new.turn()  # its Hello is read before the end of the old connection
    assert desk.events() == [Gone(1)]
    (joined,) = desk.events()
    assert isinstance(joined, Joined) and desk.reception.members.by_id[1].route == new.socket.route


def test_one_that_was_replaced_after_its_loss_is_gone_once(desk: Desk) -> None:
    desk.member(1).socket.cut()
    assert desk.events() == [Gone(1)]
    desk.stranger(1).turn()
    assert desk.events() == []


def test_an_id_that_is_taken_is_refused_after_a_while(desk: Desk) -> None:
    first, second = desk.member(1), desk.stranger(1)
    assert desk.events() == []
    second.turn()
    assert second.heard == []
    desk.clock.now += EXPERIMENT.cluster.rejoin_seconds
    sentence = "client 1 has joined already from host."
    assert desk.events() == [Refused(sentence)] and desk.events() == []
    second.turn()
    assert second.heard == [messages.Refusal(reason=sentence)]
    assert desk.reception.members.by_id[1].route == first.socket.route
    assert desk.booked(client=NOBODY, message="hello") == desk.booked(client=NOBODY, message="refusal") == 1


def test_whoever_takes_the_place_of_a_dying_process_waits_until_it_is_dead(desk: Desk) -> None:
    """Killed with its host, it may end after the one that the new host has started comes to us."""
    old, new = desk.member(1), desk.stranger(1)
    assert desk.events() == desk.events() == []
    old.socket.cut()
    assert desk.events() == [Gone(1)]
    (joined,) = desk.events()
    assert isinstance(joined, Joined) and desk.reception.members.by_id[1].route == new.socket.route
    assert desk.booked(client=1, message="hello") == 2


def test_whoever_dies_while_it_waits_for_a_place_is_only_booked(desk: Desk) -> None:
    first, second = desk.member(1), desk.stranger(1)
    assert desk.events() == []
    second.socket.send(messages.Hello(client=1, place="host", slots=1))  # once more
    assert desk.events() == []
    second.socket.cut()
    assert desk.events() == []
    first.socket.cut()
    assert desk.events() == [Gone(1)] and desk.events() == []
    assert desk.booked(client=NOBODY, message="hello") == 2


def test_whoever_waits_for_a_place_when_the_run_ends_is_told_so(desk: Desk) -> None:
    desk.member(1)
    second = desk.stranger(1)
    assert desk.events() == []
    list(desk.reception.goodbye("over", completed=True))
    second.turn()
    assert second.heard == [messages.Stop(reason="over")]


NO_STATE = "client 1 has no saved state to go on with; use --checkpoint-every."
OLD_STATE = (
    "client 1 has learned until round 3 and saved its state in round 2; "
    "--resume goes back to there with all clients."
)


@pytest.mark.parametrize(
    ("answered", "saved", "needs_everyone", "sentence"),
    [
        (3, -1, True, NO_STATE),
        (3, -1, False, NO_STATE),
        (2, 2, True, ""),
        (3, 2, True, OLD_STATE),
        (3, 2, False, ""),
    ],
)
def test_one_that_has_answered_before_needs_a_state_to_go_on_from(
    desk: Desk, answered: int, saved: int, needs_everyone: bool, sentence: str
) -> None:
    desk.reception._needs_everyone = needs_everyone
    desk.member(1).socket.cut()
    member = desk.reception.members.by_id[1]
    member.answered_round, member.saved_round = answered, saved
    assert desk.events() == [Gone(1)]
    again = desk.stranger(1)
    told = desk.events()
    said = decode(again.socket.inbox[0]).message
    if not sentence:
        assert told == [] and isinstance(said, messages.Welcome) and said.restore == 2
    else:
        reason = sentence.replace("client 1", "it").removesuffix(".")
        assert told == [Refused(sentence), Gone(1, reason)] and said == messages.Refusal(reason=sentence)
        assert desk.reception.members.by_id[1].lost_since == desk.clock.now


# ------------------------------------------------------------------------------------------------ goodbye


def until_over(desk: Desk, then: Callable[[], object]) -> list[Event]:
    desk.clock.after(1, then)
    return list(desk.reception.goodbye("enough", completed=True))


def test_goodbye_lasts_until_all_have_hung_up(desk: Desk) -> None:
    peers = [desk.member(0), desk.member(1)]
    stop = messages.Stop(reason="enough")
    assert until_over(desk, lambda: [peer.socket.cut() for peer in peers]) == []
    assert desk.clock.now == 1001.0
    assert [peer.last() for peer in peers] == [stop, stop]
    assert desk.booked(message="stop", purpose="control") == 2


def test_after_goodbye_all_is_booked_and_nothing_comes_of_it(desk: Desk) -> None:
    peer, late = desk.member(1), []

    def say_all() -> None:
        peer.answer(WORK)
        peer.fail(WORK)
        peer.say_ready()
        late.append(desk.stranger(0))
        desk.clock.after(1, peer.socket.cut)

    assert until_over(desk, say_all) == []
    assert [desk.booked(client=1, message=kind) for kind in ("result", "failure")] == [3, 1]
    late[0].turn()
    assert late[0].heard == [messages.Stop(reason="enough")]
    assert desk.reception.members.by_id.keys() == {1}


def test_goodbye_says_whom_it_could_not_reach(desk: Desk) -> None:
    peer = desk.member(1)
    peer.socket.cut(noticed=False)
    assert until_over(desk, lambda: desk.server.connections.all[0].close()) == [Gone(1)]
