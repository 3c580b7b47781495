"""What the reception makes of what comes in: the events it yields, what it says to peers, what it books."""

from collections.abc import Callable

import msgpack
import numpy as np
import pytest
from loopback import Clock, LoopbackClient, LoopbackServer
from stage import Peer, prototypes, say_nothing

from fedsim import config
from fedsim.contract import Contract, Field, Payload
from fedsim.version import __version__
from nodes.border import Border, unpack_experiment
from nodes.checkpoint import Manifest
from nodes.server.accounts import NOBODY, audit_summary
from nodes.server.reception import (
    Answered,
    Event,
    Failed,
    Gone,
    Joined,
    Reception,
    Refused,
    Rejected,
    Returned,
)
from protocol import messages
from protocol.codec import decode

EXPERIMENT = config.build([{"run": {"clients": 3}}])
CONTRACT = Contract(
    up={"prototypes": Field(Payload.PROTOTYPES, "n K"), "class_ids": Field(Payload.INDEX, "n", "int32")},
    setup_up={"counts": Field(Payload.COUNTS, "C", "int32")},
)
WORK = messages.Work(run="", round=4, attempt=0, slot=0, train=True, evaluate=True, save=False, keep=-1)


class Desk:
    """A reception in round 4 with client 0 and 1 in its cohort, and peers whose every word the test chooses."""

    def __init__(self, resumed: Manifest | None = None, **facts: str):
        self.clock = Clock()
        self.server = LoopbackServer(self.clock)
        border = Border(CONTRACT, {"C": 3, "K": 2})
        self.reception = Reception(self.server, EXPERIMENT, border, resumed, self.clock, facts)
        self.reception.accounts.begin_round(4, [0, 1])

    def stranger(self, client: int, **options: int) -> Peer:
        """Has connected and greets with its first turn; it hangs up only when the test says so."""
        peer = Peer(self.server, client, say_nothing, **options)
        peer.on_stop = lambda: None
        return peer

    def member(self, client: int) -> Peer:
        peer = self.stranger(client)
        assert self.events() == []  # it was welcomed, which is nothing to tell
        (joined,) = self.events()
        assert isinstance(joined, Joined)
        return peer

    def events(self) -> list[Event]:
        return list(self.reception.events(0))

    def booked(self, **wanted: object) -> int:
        return self.reception.accounts.ledger.total(**wanted).frames


@pytest.fixture
def desk() -> Desk:
    return Desk()


# ------------------------------------------------------------------------------------------------ joining


def test_a_client_is_welcomed_with_the_experiment_and_has_joined_once_it_is_ready(desk: Desk) -> None:
    peer = desk.stranger(1, slots=3)
    peer.setup = {"counts": np.array([4, 5, 6], np.int32)}
    assert desk.events() == []
    welcome = decode(peer.socket.inbox[0])
    assert welcome.message == messages.Welcome(run=desk.reception.run, states=desk.reception.states, restore=-1)
    assert unpack_experiment(welcome.arrays) == EXPERIMENT
    assert desk.reception.members.missing() == [0, 1, 2]
    (joined,) = desk.events()
    assert isinstance(joined, Joined) and (joined.client, joined.ready.num_train) == (1, 20)
    assert joined.arrays["counts"].tolist() == [4, 5, 6] and joined.arrays["counts"].flags.writeable
    assert desk.reception.members.missing() == [0, 2] and desk.reception.members.num_train() == {1: 20}
    assert desk.booked(client=1, message="hello", purpose="control") == 1
    assert desk.booked(client=1, message="welcome", purpose="control") == 2
    assert desk.booked(client=1, message="ready", purpose="setup") == 2


def test_another_version_is_refused_with_both(desk: Desk) -> None:
    peer = desk.stranger(1)
    peer.version = "9.9"
    (refused,) = desk.events()
    assert refused == Refused(
        f"client 1 has fedsim 9.9, and the server {__version__}; install the same version on both machines."
    )


@pytest.mark.parametrize("what", ["data set", "partition"])
def test_who_has_other_data_does_not_join_and_is_told_both_fingerprints(what: str) -> None:
    desk = Desk(**{what: "aaaa"})
    peer = desk.stranger(1)
    peer.facts = {what: "bbbb"}
    assert desk.events() == []
    (refused,) = desk.events()
    sentence = f"client 1 has another {what}: its fingerprint is bbbb, the server's is aaaa; "
    assert isinstance(refused, Refused) and refused.reason.startswith(sentence)
    assert desk.reception.members.missing() == [0, 1, 2]
    peer.turn()
    assert peer.heard[-1] == messages.Refusal(reason=refused.reason)


def test_another_torch_or_cpu_is_said() -> None:
    desk = Desk(torch="2.1", CPU="AVX2", partition="aaaa")
    peer = desk.stranger(1, place="two")
    peer.facts = {"torch": "2.2", "CPU": "AVX2", "partition": "aaaa"}
    assert desk.events() == []
    (joined,) = desk.events()
    assert isinstance(joined, Joined) and joined.remarks == (
        "two has torch 2.2 and the server 2.1: results may differ in their last bits",
    )


@pytest.mark.parametrize(
    ("client", "key_owner", "sentence"),
    [
        (3, None, "there is no client 3 in this run; ids go from 0 to 2."),
        (1, 2, "the key belongs to client 2, not to client 1."),
        (0, 2, "the key belongs to client 2, not to client 0."),
    ],
)
def test_whoever_may_not_join_is_told_why(desk: Desk, client: int, key_owner: int | None, sentence: str) -> None:
    first = desk.member(0)
    peer = desk.stranger(client, key_owner=key_owner)
    assert desk.events() == [Refused(sentence)]
    peer.turn()
    assert peer.heard == [messages.Refusal(reason=sentence)]
    assert desk.booked(client=NOBODY, message="hello") == desk.booked(client=NOBODY, message="refusal") == 1
    assert desk.reception.members.by_id[0].route == first.socket.route


def test_a_peer_that_does_not_wait_for_its_refusal_is_nobody_s_trouble(desk: Desk) -> None:
    peer = desk.stranger(8)
    peer.turn()
    peer.socket.cut(noticed=False)
    (refused,) = desk.events()
    assert isinstance(refused, Refused) and desk.booked(message="refusal") == 0


def test_a_client_whose_set_up_breaks_the_contract_is_sent_away(desk: Desk) -> None:
    peer = desk.stranger(2)
    peer.setup = {"counts": np.array([4, 5], np.int32)}
    desk.events()
    refused, gone = desk.events()
    assert isinstance(refused, Refused) and refused.reason.startswith("client 2, set-up, up: field 'counts'")
    assert gone == Gone(2, refused.reason) and desk.reception.members.missing() == [0, 1, 2]
    peer.turn()
    assert peer.last() == messages.Refusal(reason=refused.reason)


def test_a_resumed_run_tells_each_client_which_state_to_take_up() -> None:
    manifest = Manifest(round=3, client_rounds={"0": 3, "1": 2}, history=[], ledger=[], states="abcd")
    desk = Desk(manifest)
    peers = [desk.stranger(client) for client in range(3)]
    desk.events()
    for peer, restore in zip(peers, (3, 2, -1), strict=True):
        welcome = decode(peer.socket.inbox[0]).message
        assert welcome == messages.Welcome(run=desk.reception.run, states="abcd", restore=restore)
    assert {c: m.named_round for c, m in desk.reception.members.by_id.items()} == {0: 3, 1: 2, 2: -1}


# ------------------------------------------------------------------------------------------------ answers


def test_an_answer_of_this_round_is_passed_on_as_the_contract_has_it(desk: Desk) -> None:
    peer = desk.member(1)
    peer.answer(WORK)
    (answered,) = desk.events()
    assert isinstance(answered, Answered) and (answered.client, answered.result.round) == (1, 4)
    np.testing.assert_array_equal(answered.arrays["prototypes"], prototypes(1.0)["prototypes"])
    assert answered.arrays["prototypes"].flags.writeable  # a copy: a method may keep and change it


@pytest.mark.parametrize(("client", "purpose"), [(1, "method"), (2, "evaluation")])
def test_an_answer_is_booked_for_what_it_was_asked(desk: Desk, client: int, purpose: str) -> None:
    desk.member(client).answer(WORK)
    desk.events()
    assert desk.booked(round=4, client=client, message="result", purpose=purpose) == 3


@pytest.mark.parametrize("round", [0, 3, 5, 1 << 30])
def test_an_answer_of_another_round_is_booked_and_not_even_looked_at(desk: Desk, round: int) -> None:
    peer = desk.member(1)
    peer.answer(WORK, {"weights": np.ones(3, np.float32)}, round=round)
    assert desk.events() == []
    assert desk.booked(round=4, client=1, message="result") == 2


@pytest.mark.parametrize("what", ["array", "metrics"])
def test_an_answer_that_breaks_the_contract_sends_the_client_away(desk: Desk, what: str) -> None:
    peer = desk.member(1)
    if what == "array":
        peer.answer(WORK, {"weights": np.ones(3, np.float32)})
    else:
        peer.answer(WORK, metrics={"correct": 2.0, "tested": 1.0})
    refused, gone = desk.events()
    assert isinstance(refused, Refused) and refused.reason.startswith("client 1, round 4, up: ")
    assert gone == Gone(1, refused.reason)
    peer.socket.cut()
    assert desk.events() == []  # it was gone already


def test_a_failure_is_passed_on(desk: Desk) -> None:
    desk.member(1).fail(WORK, "out of memory")
    assert desk.events() == [Failed(1, 4, "out of memory")]


@pytest.mark.parametrize("run", ["", "another"])
def test_whoever_speaks_of_another_run_is_nobody(desk: Desk, run: str) -> None:
    peer = desk.member(1)
    peer.run = run
    peer.answer(WORK)
    peer.fail(WORK)
    peer.say_ready()
    assert desk.events() == []
    assert desk.booked(client=NOBODY, direction="up") == 3 + 1 + 1 and desk.booked(client=1, message="result") == 0


def test_whoever_has_not_joined_has_no_say(desk: Desk) -> None:
    peer = desk.stranger(9)
    desk.events()
    peer.run = desk.reception.run
    peer.answer(WORK)
    peer.fail(WORK)
    assert desk.events() == []
    assert desk.booked(client=NOBODY, message="failure") == 1


def test_a_member_that_talks_like_a_server_is_ignored(desk: Desk) -> None:
    peer = desk.member(1)
    peer.socket.send(messages.Setup(run=desk.reception.run))
    assert desk.events() == [] and desk.booked(client=1, message="setup", direction="up", purpose="control") == 1


@pytest.mark.parametrize(("joined", "client"), [(True, 1), (False, NOBODY)])
def test_what_is_no_message_is_told_of_with_its_sender(desk: Desk, joined: bool, client: int) -> None:
    socket = desk.member(1).socket if joined else LoopbackClient(desk.server, 1)
    socket.send_frames([b"\xc1"])
    (rejected,) = desk.events()
    assert isinstance(rejected, Rejected) and rejected.client == client
    assert "header is not msgpack" in rejected.reason
    assert desk.booked(client=client, message="rejected") == 1


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
