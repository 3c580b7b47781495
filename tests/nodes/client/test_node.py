"""A client's life between Hello and Stop, with a server whose every word the test chooses and no network."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from loopback import Clock, LoopbackClient, LoopbackServer

import nodes.work
from fedsim import config
from fedsim.contract import Contract, Field, Payload
from fedsim.version import __version__
from nodes.border import pack_experiment
from nodes.checkpoint import client_files
from nodes.client import own
from nodes.client.node import EXIT_FAILED, EXIT_NO_SERVER, EXIT_REFUSED, ClientNode
from nodes.client.options import ClientOptions
from nodes.client.own import OwnWorker
from nodes.launchers import processes
from nodes.launchers.placement import Placement
from protocol import messages
from protocol.codec import Parcel, pack
from protocol.transport import Arrived, Lost

EXPERIMENT = config.build([{"run": {"clients": 3}, "model": {"feature_dim": 2}, "method": {"name": "fedproto"}}])
DOWN = {"prototypes": np.full((1, 2), 7.0, np.float32), "class_ids": np.array([2], np.int32)}
KINDS = {"prototypes": "prototypes", "class_ids": "index"}


class Half:
    """In the place of a method's client: counts what it is asked to do, and sends that up."""

    def __init__(self) -> None:
        self.num_trained = 0
        self.received: list[tuple[int, dict[str, np.ndarray]]] = []
        self.metrics: dict[str, float] = {"loss": 0.25}
        self.on_train: Callable[[], object] = lambda: None
        self.data = SimpleNamespace(train=range(30), test=range(10))
        self.model = torch.nn.Linear(2, 3)
        self.agreed: dict[str, np.ndarray] = {}

    def setup(self) -> dict[str, np.ndarray]:
        return {}

    def receive_setup(self, down: dict[str, np.ndarray]) -> None:
        self.agreed = down

    def receive(self, round: int, down: dict[str, np.ndarray]) -> None:
        self.received.append((round, down))

    def evaluate(self) -> dict[str, float]:
        return {"correct": 4, "tested": 10}

    def train(self, round: int) -> dict[str, float]:
        self.num_trained += 1
        self.on_train()
        return self.metrics

    def drops(self, round: int) -> bool:
        return False

    def upload(self) -> dict[str, np.ndarray]:
        trained = np.full((1, 2), self.num_trained, np.float32)
        return {"prototypes": trained, "class_ids": np.array([1], np.int32)}

    def state(self) -> dict[str, np.ndarray]:
        return {"num_trained": np.array(self.num_trained)}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self.num_trained = int(state["num_trained"])


class Home:
    """One client and the server's end of its connection. A message to the client is followed by its step."""

    def __init__(self, folder: Path, connected: bool = True, patience: float = 60.0):
        self.clock = Clock()
        self.server = LoopbackServer(self.clock)
        self.socket = LoopbackClient(self.server, 1, connected=connected)
        self.halves: list[Half] = []
        self.states = folder
        options = ClientOptions(connect="tcp://far:1", ids=[1], patience=patience, state_dir=folder)
        placement = Placement("rack 7", 2, cores=(5, 6))
        self.node = ClientNode(
            1, options, placement, self.socket, OwnWorker(1, placement, processes.Turnstile(1)), self.clock
        )

    @property
    def half(self) -> Half:
        return self.halves[-1]

    def tell(self, message: messages.Message, parcel: Parcel = Parcel()) -> list[messages.Message]:  # noqa: B008
        """What the client answers."""
        self.server.send(self.socket.route, message, parcel)
        self.node.step()
        return self.heard()

    def heard(self) -> list[messages.Message]:
        self.arrived = [event for event in self.server.events(0) if not isinstance(event, Lost)]
        assert all(isinstance(event, Arrived) for event in self.arrived)
        return [event.decoded.message for event in self.arrived]

    def welcome(self, run: str = "r", restore: int = -1) -> list[messages.Message]:
        message = messages.Welcome(run=run, states="ab", restore=restore)
        return self.tell(message, pack_experiment(EXPERIMENT))

    def join(self, run: str = "r") -> None:
        self.node.step()
        assert [messages.kind_of(message) for message in self.heard()] == ["hello"]
        assert [messages.kind_of(message) for message in self.welcome(run)] == ["ready"]

    def work(self, round: int = 0, attempt: int = 0, **changes: Any) -> list[messages.Message]:
        fields = {"slot": 0, "train": True, "evaluate": True, "save": False, "keep": -1, "run": "r"} | changes
        return self.tell(messages.Work(round=round, attempt=attempt, **fields), pack(DOWN, KINDS))

    def uploaded(self) -> float:
        """What the last answer brought: how often its sender had trained."""
        return float(self.arrived[-1].decoded.arrays["prototypes"][0, 0])

    def deliver(self, round: int = 0, attempt: int = 0, **changes: Any) -> list[messages.Message]:
        """Work whose turn comes later."""
        return self.work(round, attempt, slot=-1, **changes)

    def turn(self, round: int = 0, attempt: int = 0, run: str = "r") -> list[messages.Message]:
        return self.tell(messages.Turn(run=run, round=round, attempt=attempt, slot=1))


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The cores that the client was pinned to, in order; this process stays where it is."""
    cores: list[int] = []
    monkeypatch.setattr(processes, "pin", cores.append)
    return cores


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pinned: list[int]) -> Callable[..., Home]:
    """`home(patience=5.0)`: a client with a stand-in for the method's half."""
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)  # other tests may want theirs

    def build(**options: Any) -> Home:
        made = Home(tmp_path / "states", **options)

        def make_client(*_: object) -> Half:
            made.halves.append(Half())
            return made.half

        monkeypatch.setattr(own, "Federation", lambda _: SimpleNamespace(num_classes=3, input_shape=(1, 4, 4)))
        monkeypatch.setattr(own.likeness, "facts_of", lambda _: {"torch": "2"})
        monkeypatch.setattr(own.assembly, "make_client", make_client)
        return made

    return build


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
