"""Every method on a device that refuses to mix with the CPU: the same bits, without waiting in every batch."""

from pathlib import Path

import pytest
import torch
from device_double import DeviceDouble, There

from fedsim import methods
from fedsim.config import Experiment
from fedsim.metrics import Row
from fedsim.results.folder import RunFolder
from nodes import inprocess
from nodes.inprocess import Oracle
from nodes.tools.check import small_experiment

TINY = {"run": {"clients": 2, "rounds": 1}, "train": {"batch_size": 4}, "data": {"samples_per_class": 8}}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)  # other tests may want theirs


def play(experiment: Experiment, folder: Path, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    monkeypatch.setattr(inprocess, "use_server_device", lambda cluster: device)
    oracle = Oracle(RunFolder.create(folder, experiment))
    oracle.set_up()
    return [oracle.play(round) for round in range(experiment.run.rounds + 1)]


@pytest.mark.parametrize("method", methods.names())
def test_halves_keep_to_their_device(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = small_experiment([TINY, {"method": {"name": method}}])
    here = play(experiment, tmp_path / "here", torch.device("cpu"), monkeypatch)
    with DeviceDouble() as double:
        there = play(experiment, tmp_path / "there", double.device, monkeypatch)
    assert repr(there) == repr(here)


@pytest.mark.parametrize("method", ["fedproto", "fedtgp"])
def test_training_does_not_wait_for_the_device_in_every_batch(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []
    for epochs in (1, 3):
        training = {"train": {"batch_size": 4, "local_epochs": epochs}}
        experiment = small_experiment([TINY, training, {"method": {"name": method}}])
        with DeviceDouble() as double:
            play(experiment, tmp_path / str(epochs), double.device, monkeypatch)
        waits.append(double.num_waits)
    assert waits[0] == waits[1] > 0


def test_the_double_refuses_what_a_gpu_refuses() -> None:
    with DeviceDouble() as double:
        there = torch.ones(3, device=double.device)
        assert isinstance(there, There) and isinstance(torch.zeros(3).to(double.device), There)
        for mixed in (
            lambda: there + torch.ones(3),
            lambda: torch.cat([there, torch.ones(3)]),
            lambda: torch.ones(3)[torch.zeros(1, dtype=torch.int64, device=double.device)],
            lambda: torch.randn(3, device=double.device, generator=torch.Generator()),
            there.numpy,
        ):
            with pytest.raises((RuntimeError, TypeError)):
                mixed()
        assert (there + torch.tensor(1.0)).cpu().tolist() == [2.0, 2.0, 2.0]  # a number is at home everywhere
        assert there[torch.zeros(1, dtype=torch.int64)].cpu().tolist() == [1.0]
        there[1:] = 5.0
        assert there.cpu().tolist() == [1.0, 5.0, 5.0]
        assert double.num_waits == 0 and there.sum().item() == 11.0 and double.num_waits == 1
