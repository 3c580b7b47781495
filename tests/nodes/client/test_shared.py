"""Clients whose work others do: the same bits as if they did it themselves, whoever does it in whatever order."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import bits

from fedsim import config, methods
from fedsim.contract import Arrays
from fedsim.method import Client
from fedsim.metrics import GPU_PEAK_BYTES
from nodes.border import pack_experiment
from nodes.checkpoint import client_files
from nodes.client.errands import Done, Errand, Note, Trouble
from nodes.client.executor import Bench
from nodes.client.nameless import Nameless
from nodes.client.own import OwnWorker
from nodes.client.shared import SharedWorker, WorkFailed
from nodes.client.worker import CannotTakePart
from nodes.launchers.gpus import Device
from nodes.launchers.placement import Placement
from nodes.launchers.processes import Turnstile
from nodes.tools.check import small_experiment
from nodes.work import Order


class AtBench(SharedWorker):
    """Hands its errands straight to benches in this process, to one after the other."""

    def __init__(self, client: int, placement: Placement, benches: Sequence[Bench]):
        super().__init__(client, placement.place, "")
        self._benches = itertools.cycle([*benches[client % len(benches) :], *benches[: client % len(benches)]])

    def _ask(self, errand: Errand, files: Sequence[Nameless]) -> tuple[Note, list[Nameless]] | None:
        return next(self._benches).take(errand, files)


@pytest.fixture
def benches(monkeypatch: pytest.MonkeyPatch, command_cache: Path) -> list[Bench]:
    monkeypatch.setenv("FEDSIM_CACHE", str(command_cache))
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)  # other tests may want theirs
    return [Bench(Device("cpu")), Bench(Device("cpu"))]


@pytest.mark.parametrize("method", methods.names())
def test_every_method_gives_the_bits_of_the_oracle(method: str, benches: list[Bench], play, oracle) -> None:
    """No client meets the same executor twice in a row, and no executor the same client."""
    experiment = small_experiment([{"method": {"name": method}}])
    folder = play(experiment, make_worker=lambda client, placement: AtBench(client, placement, benches))
    assert bits(folder) == bits(oracle(experiment))


SENT = {"public_data": "sent", "public_dtype": "uint8"}


@pytest.mark.parametrize("method", [{"name": "fed2pkd", **SENT}, {"name": "fedprotokd", **SENT}])
def test_what_was_agreed_at_set_up_is_there_in_every_round(method, benches: list[Bench], play, oracle) -> None:
    experiment = small_experiment([{"method": method}])
    folder = play(experiment, make_worker=lambda client, placement: AtBench(client, placement, benches))
    assert bits(folder) == bits(oracle(experiment))


def test_an_answer_that_was_lost_is_given_again_without_work(benches: list[Bench], play, oracle) -> None:
    experiment = small_experiment([{"method": {"name": "fedavg"}}])
    folder = play(experiment, cut=1, make_worker=lambda client, placement: AtBench(client, placement, benches))
    assert bits(folder) == bits(oracle(experiment))


# ------------------------------------------------------------------------------------------- one worker

EXPERIMENT = config.build(
    [
        {
            "run": {"clients": 3},
            "data": {"dataset": "spiral", "samples_per_class": 20},
            "method": {"name": "local"},
        },
        {"model": {"group": "MLP", "feature_dim": 3}},
    ]
)
TRAIN = Order(0, train=True, evaluate=False)


def welcome() -> Arrays:
    parcel = pack_experiment(EXPERIMENT)
    return {
        spec.name: np.frombuffer(frame, np.uint8) for spec, frame in zip(parcel.specs, parcel.frames, strict=True)
    }


@pytest.fixture
def worker(benches: list[Bench]) -> AtBench:
    return AtBench(1, Placement("here", 1), benches)


def weights(worker: SharedWorker) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in worker._files["state"].arrays().items()}


def test_a_saved_state_is_a_checkpoint_that_another_worker_takes_up(worker, benches, tmp_path: Path) -> None:
    states = client_files(tmp_path, "ab", 1)
    worker.join(welcome(), states, -1)
    worker.work(TRAIN, {}, 0)
    worker.save(0, -1)
    kept = weights(worker)
    assert {name: array.tobytes() for name, array in states.load(0).items()} == kept
    report = worker.work(Order(1, train=True, evaluate=True), {}, 0)
    assert weights(worker) != kept
    other = AtBench(1, Placement("here", 1), benches)
    other.join(welcome(), states, 0)
    again = other.work(Order(1, train=True, evaluate=True), {}, 0)
    assert (again.metrics, weights(other)) == (report.metrics, weights(worker))


def test_work_that_fails_leaves_the_client_as_it_was(
    worker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    worker.join(welcome(), client_files(tmp_path, "ab", 1), -1)
    worker.work(TRAIN, {}, 0)
    before = weights(worker)

    def fall_ill(self: Client, round: int) -> None:
        self.model.head.weight.data.zero_()
        raise ValueError("ill")

    with monkeypatch.context() as patch:
        patch.setattr(Client, "train", fall_ill)
        with pytest.raises(WorkFailed, match="ValueError: ill"):
            worker.work(Order(1, train=True, evaluate=False), {}, 0)
    assert weights(worker) == before
    assert "in fall_ill" in capsys.readouterr().err  # the traceback is where the client prints
    worker.work(Order(1, train=True, evaluate=False), {}, 0)
    assert weights(worker) != before


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_memory_that_gives_out_is_nobody_s_failure(worker, error, monkeypatch, tmp_path: Path) -> None:
    worker.join(welcome(), client_files(tmp_path, "ab", 1), -1)

    def give_out(*_: object) -> None:
        raise error

    monkeypatch.setattr(Client, "train", give_out)
    with pytest.raises(CannotTakePart):
        worker.work(TRAIN, {}, 0)


class Measured(Device):
    """On the CPU, with the memory of a GPU."""

    def memory(self) -> dict[str, float]:
        return {GPU_PEAK_BYTES: 4096.0}


def test_the_peak_memory_of_a_gpu_is_reported_and_nothing_of_a_cpu(worker, tmp_path: Path) -> None:
    states = client_files(tmp_path, "ab", 1)
    on_gpu = AtBench(1, Placement("here", 1), [Bench(Measured("cpu"))])
    alone = OwnWorker(1, Placement("here", 1), Turnstile(1))
    alone._device = Measured("cpu")
    for each in (worker, on_gpu, alone):
        each.join(welcome(), states, -1)
    order = Order(0, train=False, evaluate=True)
    assert [each.work(order, {}, 0).seconds[GPU_PEAK_BYTES] for each in (on_gpu, alone)] == [4096.0, 4096.0]
    assert GPU_PEAK_BYTES not in worker.work(order, {}, 0).seconds


def test_a_state_that_cannot_be_read_is_named(worker, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"round-000003\.safetensors cannot be read"):
        worker.join(welcome(), client_files(tmp_path, "ab", 1), 3)


def test_one_client_leaves_no_trace_in_the_next(benches: list[Bench], monkeypatch, tmp_path: Path) -> None:
    """Whatever a half does to its process's generators and models, the next client does not see it."""
    calm = AtBench(1, Placement("here", 1), benches[:1])
    calm.join(welcome(), client_files(tmp_path, "ab", 1), -1)
    expected = calm.work(TRAIN, {}, 0).metrics, weights(calm)

    restless = AtBench(2, Placement("here", 1), benches[1:])
    restless.join(welcome(), client_files(tmp_path, "ab", 2), -1)
    train = Client.train

    def disturb(self: Client, round: int) -> dict[str, float]:
        torch.manual_seed(7)
        np.random.seed(7)
        for parameter in self.model.parameters():
            parameter.data.fill_(3.0)
        return train(self, round)

    with monkeypatch.context() as patch:
        patch.setattr(Client, "train", disturb)
        restless.work(TRAIN, {}, 0)
    after = AtBench(1, Placement("here", 1), benches[1:])
    after.join(welcome(), client_files(tmp_path, "ab", 1), -1)
    assert (after.work(TRAIN, {}, 0).metrics, weights(after)) == expected


def test_notes_say_what_they_are() -> None:
    errand = Errand(client=3, place="here", order=TRAIN, files=("welcome",))
    assert errand.name == "client 3, round 0"
    assert Errand(client=3, place="here", order=None, files=()).name == "client 3, on joining"
    assert isinstance(Done(), Note) and isinstance(Trouble(kind="short", sentence="x"), Note)
