"""How a client ends: by the server's word, by a failure, or because nobody is there any more."""

from collections.abc import Callable

import numpy as np
import pytest
from home import EXPERIMENT, Home

import nodes.work
from fedsim import config
from nodes.client.node import EXIT_FAILED, EXIT_NO_SERVER, EXIT_REFUSED
from nodes.client.own import OwnWorker
from protocol import messages
from protocol.codec import pack

# ------------------------------------------------------------------------------------------------ the end


def test_the_server_s_stop_is_a_good_end(home: Callable[..., Home], capsys: pytest.CaptureFixture[str]) -> None:
    at = home()
    at.join()
    assert at.tell(messages.Stop(reason="the run is complete")) == []
    assert at.node.run() == 0
    joined, ended = capsys.readouterr().out.splitlines()
    assert joined.startswith("client 1: joined tcp://far:1 from rack")
    assert ended == "client 1: the run is complete"


def test_a_refusal_has_a_code_of_its_own(home: Callable[..., Home], capsys: pytest.CaptureFixture[str]) -> None:
    at = home()
    at.node.step()
    at.heard()
    at.tell(messages.Refusal(reason="there is no client 1 in this run; ids go from 0 to 0."))
    assert at.node.run() == EXIT_REFUSED
    assert capsys.readouterr().out == "client 1: there is no client 1 in this run; ids go from 0 to 0.\n"


def test_a_key_that_is_not_admitted_is_one_sentence(home: Callable[..., Home], capsys) -> None:
    at = home()
    at.socket.refuse("the server does not admit this key")
    assert at.node.run() == EXIT_REFUSED
    assert capsys.readouterr().out == "client 1 may not join tcp://far:1: the server does not admit this key.\n"


@pytest.mark.parametrize(("error", "said"), [(ValueError("no"), "ValueError: no"), (MemoryError(), "MemoryError")])
def test_a_failure_of_its_own_code_is_told_with_the_place_where_it_happened(
    home: Callable[..., Home], capsys, error, said
) -> None:
    def fail() -> None:
        raise error

    at = home()
    at.join()
    at.half.on_train = fail
    (failure,) = at.work(round=6)
    sentence, *frames, log = failure.error.splitlines()
    assert (failure.run, failure.round, sentence) == ("r", 6, said)
    assert len(frames) == 3 and frames[-1].endswith("in fail: raise error") and ".py, line " in frames[-1]
    assert log == f"  its traceback: on {at.node.placement.place}"
    assert at.node.run() == EXIT_FAILED
    printed = capsys.readouterr()
    assert printed.out.endswith(f"\nclient 1: failed: {said}\n") and "Traceback" in printed.err


def test_a_half_that_breaks_the_contract_is_stopped_on_this_side(home: Callable[..., Home], capsys) -> None:
    at = home()
    at.join()
    at.half.metrics = {"tested": 3.5}
    (failure,) = at.work(round=1)
    assert isinstance(failure, messages.Failure) and failure.error.startswith("client 1, round 1, up: metrics ")
    assert at.node.exit_code == EXIT_FAILED


def test_more_metrics_than_may_travel_are_a_failure_that_is_told(home: Callable[..., Home], capsys) -> None:
    """Sent, they would be dropped, and the round would wait for its deadline."""
    at = home()
    at.join()
    at.half.metrics = {f"x{number}": 0.0 for number in range(63)}  # beside correct and tested
    (failure,) = at.work(round=1)
    assert isinstance(failure, messages.Failure)
    assert failure.error.startswith("client 1, round 1, up: 65 metrics, and a client may report 64 a round")
    assert at.node.exit_code == EXIT_FAILED


def test_an_answer_that_cannot_travel_is_a_failure_that_is_told(
    home: Callable[..., Home], monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    at = home()
    at.join()
    report = nodes.work.Report(seconds={f"part {number}": 0.1 for number in range(65)})
    monkeypatch.setattr(OwnWorker, "work", lambda *_: report)
    (failure,) = at.work(round=1)
    assert isinstance(failure, messages.Failure)
    assert failure.error.startswith("EncodeError: 65 seconds in a result; at most 64 may travel")
    assert at.node.exit_code == EXIT_FAILED


def test_a_server_that_breaks_the_contract_is_stopped_on_this_side(home: Callable[..., Home], capsys) -> None:
    at = home()
    at.join()
    work = messages.Work(run="r", round=1, attempt=0, slot=0, train=True, evaluate=True, save=False, keep=-1)
    weights = pack({"weights": np.ones(3, np.float32)}, {"weights": "parameters"})
    (failure,) = at.tell(work, weights)
    assert isinstance(failure, messages.Failure)
    assert failure.error.startswith("client 1, round 1, down: field 'weights' is not in the contract")
    assert at.half.num_trained == 0


def test_what_is_no_message_is_dropped(home: Callable[..., Home], caplog: pytest.LogCaptureFixture) -> None:
    at = home()
    at.join()
    at.socket.inbox.append([b"\xc1"])
    at.node.step()
    assert "dropped a message: header is not msgpack" in caplog.text
    assert at.tell(messages.Hello(client=1, place="x", slots=1)) == []
    assert "ignored an unexpected hello" in caplog.text
    (answer,) = at.work()
    assert isinstance(answer, messages.Result)


# ------------------------------------------------------------------------------------------------ patience


def test_without_a_server_it_gives_up_after_its_patience(home: Callable[..., Home], capsys) -> None:
    at = home(connected=False, patience=6.0)
    assert at.node.run() == EXIT_NO_SERVER
    assert capsys.readouterr().out == (
        "client 1: no server at tcp://far:1 for 6 s: nothing listens there; giving up.\n"
    )
    assert at.clock.now == pytest.approx(1006, abs=0.25)


def test_a_server_that_is_back_in_time_is_given_the_whole_patience_again(home: Callable[..., Home]) -> None:
    at = home(patience=10.0)
    at.join()
    at.socket.cut()
    at.clock.after(9, at.socket.connect)
    at.clock.after(15, at.socket.cut)
    at.clock.after(24, at.socket.connect)
    at.clock.after(30, at.socket.cut)
    assert at.node.run() == EXIT_NO_SERVER
    assert at.clock.now == pytest.approx(1040.0, abs=0.5)


def test_a_silent_server_that_is_still_connected_is_waited_for(home: Callable[..., Home]) -> None:
    at = home(patience=5.0)
    at.join()
    for _ in range(1000):
        at.node.step()
    assert at.clock.now > 1100 and at.node.exit_code is None


def test_patience_begins_after_work_in_which_nobody_looked_for_the_server(
    home: Callable[..., Home], capsys
) -> None:
    """The connection broke while it trained for longer than its patience: the server may be back any moment."""
    at = home(patience=10.0)
    at.join()

    def train_for_long() -> None:
        at.socket.cut()
        at.clock.now += 100

    at.half.on_train = train_for_long
    at.work()
    at.clock.after(5, at.socket.connect)
    for _ in range(100):
        at.node.step()
    assert at.node.exit_code is None and at.socket.num_connects == 2


def test_a_client_that_does_not_know_an_encoding_says_so_and_does_not_join(home: Callable[..., Home]) -> None:
    """As one of an older fedsim, or without the package that an encoding needs."""
    at = home()
    at.node.step()
    at.heard()
    text = config.to_json(EXPERIMENT)[:-1] + b',"wire":{"prototypes":"int3"}}'
    parcel = pack({"experiment": np.frombuffer(text, np.uint8)}, {"experiment": "experiment"})
    (refusal,) = at.tell(messages.Welcome(run="r", states="ab", restore=-1), parcel)
    assert isinstance(refusal, messages.Refusal)
    assert refusal.reason == "there is no encoding 'int3'; did you mean int8?"
