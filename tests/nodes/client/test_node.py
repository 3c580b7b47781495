"""A client from Hello to its answers, with a server whose every word the test chooses and no network."""

from collections.abc import Callable

import numpy as np
import pytest
from home import DOWN, EXPERIMENT, Half, Home

import nodes.work
from fedsim import config
from fedsim.contract import Contract, Field, Payload
from fedsim.version import __version__
from nodes.border import pack_experiment
from nodes.checkpoint import client_files
from nodes.client import own
from nodes.client.node import EXIT_FAILED
from nodes.launchers import processes
from protocol import messages
from protocol.codec import pack

# ------------------------------------------------------------------------------------------------ joining


def test_it_greets_after_every_connection(home: Callable[..., Home]) -> None:
    at = home()
    hello = messages.Hello(client=1, place="rack 7", slots=2, version=__version__)
    at.node.step()
    assert at.heard() == [hello]
    at.node.step()
    assert at.heard() == []
    at.socket.cut()
    at.node.step()
    assert at.heard() == []
    at.socket.connect()
    at.node.step()
    assert at.heard() == [hello]


def test_it_is_ready_when_its_half_is(home: Callable[..., Home]) -> None:
    at = home()
    at.node.step()
    at.heard()
    (ready,) = at.welcome()
    assert isinstance(ready, messages.Ready)
    assert (ready.run, ready.num_train, ready.num_test, ready.num_parameters) == ("r", 30, 10, 9)


def test_it_takes_up_the_state_that_the_server_names(home: Callable[..., Home]) -> None:
    at = home()
    files = client_files(at.states, "ab", 1)
    for round, times in ((2, 3), (4, 5)):
        files.save(round, {"num_trained": np.array(times)})
    at.node.step()
    at.heard()
    (ready,) = at.welcome(restore=2)
    assert isinstance(ready, messages.Ready) and at.half.num_trained == 3


def test_what_is_agreed_once_reaches_its_half(home: Callable[..., Home], monkeypatch: pytest.MonkeyPatch) -> None:
    agreed = Contract(setup_down={"counts": Field(Payload.COUNTS, "C", "int32")})
    at = home()
    monkeypatch.setattr(own.assembly, "contract_of", lambda _: agreed)
    at.join()
    parcel = pack({"counts": np.array([1, 2, 3], np.int32)}, {"counts": "counts"})
    assert at.tell(messages.Setup(run="r"), parcel) == []
    assert at.half.agreed["counts"].tolist() == [1, 2, 3]


def test_a_set_up_that_comes_twice_is_agreed_on_once(
    home: Callable[..., Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose connection broke cannot know whether it had arrived. A method is promised it once a run."""
    agreed = Contract(setup_down={"counts": Field(Payload.COUNTS, "C", "int32")})
    at = home()
    monkeypatch.setattr(own.assembly, "contract_of", lambda _: agreed)
    at.join()
    for number in (1, 2):
        parcel = pack({"counts": np.full(3, number, np.int32)}, {"counts": "counts"})
        assert at.tell(messages.Setup(run="r"), parcel) == []
        assert at.half.agreed["counts"].tolist() == [1, 1, 1]
    at.socket.cut()
    at.socket.connect()
    at.join("s")
    assert at.half.agreed == {}
    assert at.tell(messages.Setup(run="s"), parcel) == []
    assert at.half.agreed["counts"].tolist() == [2, 2, 2]


def test_a_set_up_that_is_larger_than_a_frame_may_be_is_a_failure(
    home: Callable[..., Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server would hang up on it, and again after each Hello."""
    monkeypatch.setattr(
        own.assembly, "contract_of", lambda _: Contract(setup_up={"x": Field(Payload.SAMPLES, "n")})
    )
    monkeypatch.setattr(Half, "setup", lambda _: {"x": np.zeros(300_000, np.float32)})
    at = home()
    at.node.step()
    at.heard()
    small = config.build([config.to_layer(EXPERIMENT), {"cluster": {"max_frame_mib": 1}}])
    (failure,) = at.tell(messages.Welcome(run="r", states="ab", restore=-1), pack_experiment(small))
    assert isinstance(failure, messages.Failure) and at.node.exit_code == EXIT_FAILED
    assert failure.error == "the array x has 2 MiB, more than cluster.max_frame_mib = 1; give 2 or more."


def test_a_state_that_is_not_there_is_a_failure(home: Callable[..., Home], capsys) -> None:
    at = home()
    at.node.step()
    at.heard()
    (failure,) = at.welcome(restore=2)
    assert isinstance(failure, messages.Failure) and failure.round == 0
    assert "round-000002.safetensors cannot be read" in failure.error
    assert at.node.exit_code == EXIT_FAILED


def test_a_server_that_was_started_again_finds_a_client_that_begins_again(home: Callable[..., Home]) -> None:
    """Also the answer to the last question belongs to the run before."""
    at = home()
    at.join()
    at.work(round=0)
    at.socket.cut()
    at.socket.connect()
    at.join("s")
    assert len(at.halves) == 2
    assert at.work(round=0, run="r") == []
    (answer,) = at.work(round=0, run="s")
    assert isinstance(answer, messages.Result) and answer.run == "s" and at.half.num_trained == 1


# --------------------------------------------------------------------------------------------------- work


def test_work_is_done_on_the_core_of_its_slot_and_answered(home: Callable[..., Home], pinned: list[int]) -> None:
    at = home()
    at.join()
    (answer,) = at.work(round=3, attempt=2, slot=1)
    assert isinstance(answer, messages.Result) and (answer.run, answer.round, answer.attempt) == ("r", 3, 2)
    assert answer.metrics == {"correct": 4.0, "tested": 10.0, "loss": 0.25}
    assert set(answer.seconds) == {"receive", "evaluate", "train", "upload"}
    assert at.uploaded() == 1.0 and pinned == [6]
    ((round, down),) = at.half.received
    assert round == 3 and down["prototypes"].tolist() == [[7.0, 7.0]] and down["prototypes"].flags.writeable


def test_who_is_only_asked_to_evaluate_sends_nothing_up(home: Callable[..., Home]) -> None:
    at = home()
    at.join()
    (answer,) = at.work(train=False)
    assert isinstance(answer, messages.Result) and answer.metrics == {"correct": 4.0, "tested": 10.0}
    assert at.arrived[-1].decoded.arrays == {} and at.half.num_trained == 0


def test_work_that_was_done_is_answered_again_and_not_done_again(home: Callable[..., Home]) -> None:
    """Its answer was lost with the connection; training twice would change the result."""
    at = home()
    at.join()
    (first,) = at.work(round=2, attempt=0)
    at.socket.cut()
    at.socket.connect()
    at.node.step()
    at.heard()
    (again,) = at.work(round=2, attempt=1)
    assert isinstance(first, messages.Result) and isinstance(again, messages.Result)
    assert (first.attempt, again.attempt) == (0, 1)
    assert (again.metrics, again.seconds) == (first.metrics, first.seconds)
    assert at.half.num_trained == 1 and at.uploaded() == 1.0
    at.work(round=3)
    assert at.half.num_trained == 2 and at.uploaded() == 2.0


def test_an_answer_that_finds_no_connection_is_given_when_asked_again(home: Callable[..., Home]) -> None:
    at = home()
    at.join()
    at.half.on_train = at.socket.cut
    assert at.work() == []
    at.socket.connect()
    at.node.step()
    assert [messages.kind_of(message) for message in at.heard()] == ["hello"]
    (answer,) = at.work(attempt=1)
    assert isinstance(answer, messages.Result) and answer.attempt == 1 and at.half.num_trained == 1


@pytest.mark.parametrize("run", ["", "another"])
def test_work_of_another_run_is_not_done(home: Callable[..., Home], run: str) -> None:
    at = home()
    at.join()
    assert at.work(run=run) == [] and at.half.num_trained == 0
    assert at.tell(messages.Setup(run=run)) == [] and at.node.exit_code is None


def test_it_saves_before_it_answers_and_keeps_what_the_checkpoint_names(home: Callable[..., Home]) -> None:
    at = home()
    at.join()
    for round, keep in ((0, -1), (1, 0), (2, 0), (3, 2)):
        (answer,) = at.work(round=round, save=True, keep=keep)
        assert isinstance(answer, messages.Result) and "save" in answer.seconds
        kept = sorted(path.name for path in (at.states / "ab" / "client-00001").iterdir())
        assert kept == [f"round-{number:06d}.safetensors" for number in sorted({keep, round} - {-1})]
    assert client_files(at.states, "ab", 1).load(3)["num_trained"] == 4


def test_after_a_while_without_work_memory_is_given_back(home: Callable[..., Home], monkeypatch) -> None:
    given_back: list[float] = []
    at = home()
    at.join()
    monkeypatch.setattr(processes, "return_freed_memory", lambda: given_back.append(at.clock.now))
    at.work()
    finished = at.clock.now
    for _ in range(100):
        at.node.step()
    assert given_back == [pytest.approx(finished + 5.0, abs=0.25)]  # once, until there was work again
    at.work(round=1)
    for _ in range(100):
        at.node.step()
    assert len(given_back) == 2


# ----------------------------------------------------------------------------------- work that is delivered ahead


def test_work_that_was_delivered_is_done_when_its_turn_has_come(
    home: Callable[..., Home], pinned: list[int]
) -> None:
    here = home()
    here.join()
    assert here.deliver(3, 1) == [messages.Delivered(run="r", round=3, attempt=1)]
    assert here.half.num_trained == 0 and here.half.received == [] and pinned == []
    for other in ({"round": 2, "attempt": 1}, {"round": 3, "attempt": 0}, {"round": 3, "attempt": 1, "run": "x"}):
        assert here.turn(**other) == [] and here.half.num_trained == 0
    (answer,) = here.turn(3, 1)
    assert isinstance(answer, messages.Result) and (answer.round, answer.attempt) == (3, 1)
    assert here.half.num_trained == 1 and pinned == [6]
    np.testing.assert_array_equal(here.half.received[0][1]["prototypes"], DOWN["prototypes"])
    assert here.turn(3, 1) == [] and here.half.num_trained == 1  # once


def test_only_the_latest_work_waits_for_a_turn(home: Callable[..., Home]) -> None:
    here = home()
    here.join()
    here.deliver(0, 0)
    here.deliver(0, 1)  # asked again, after a connection was lost
    assert here.turn(0, 0) == []
    assert [messages.kind_of(message) for message in here.turn(0, 1)] == ["result"]
    # What was done already needs no turn.
    (again,) = here.deliver(0, 2)
    assert isinstance(again, messages.Result) and again.attempt == 2 and here.half.num_trained == 1


def test_before_a_large_answer_travels_the_slot_is_given_back(
    home: Callable[..., Home], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = home()
    here.join()
    assert [messages.kind_of(message) for message in here.work(0)] == ["result"]
    monkeypatch.setattr(nodes.work, "LARGE_BYTES", 0)
    done, answer = here.work(1, 4)
    assert done == messages.Done(run="r", round=1, attempt=4) and isinstance(answer, messages.Result)
    assert [messages.kind_of(message) for message in here.work(2, train=False)] == ["result"]  # nothing goes up


def test_cut_off_while_it_computes_it_greets_at_once_and_answers_when_asked_again(
    home: Callable[..., Home],
) -> None:
    """The server does not have to wait for the end of a step to know that its client is still there."""
    at = home()
    at.join()
    heard_meanwhile: list[str] = []

    def cut_off() -> None:
        at.socket.cut()
        at.socket.connect()
        heard_meanwhile.extend(map(messages.kind_of, at.heard()))

    at.half.on_train = cut_off
    assert at.work(0, 0) == [], "an answer to the question of the old connection would not count"
    assert heard_meanwhile == ["hello"]
    (answer,) = at.work(0, 1)
    assert isinstance(answer, messages.Result) and answer.attempt == 1 and at.uploaded() == 1.0
    assert at.half.num_trained == 1
