"""What the reception makes of what comes in: who may join, whose answer counts, what is booked."""

import numpy as np
import pytest
from desk import EXPERIMENT, WORK, Desk
from loopback import LoopbackClient
from stage import prototypes

from fedsim.version import __version__
from nodes.border import unpack_experiment
from nodes.checkpoint import Manifest
from nodes.server.accounts import NOBODY
from nodes.server.reception import (
    Answered,
    Failed,
    Gone,
    Joined,
    Refused,
    Rejected,
)
from protocol import messages
from protocol.codec import decode

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
