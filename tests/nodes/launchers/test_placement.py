"""Which core or GPU a client gets, and what its process must see before CUDA is touched."""

import os
import subprocess

import pytest
import torch

from fedsim.config import Cluster
from nodes.launchers import placement
from nodes.launchers.placement import place_client, use_server_device, use_server_threads, visible_gpus


def test_without_gpus_all_clients_share_the_host_and_its_cores():
    placed = [place_client(client, host="h", gpus=[], cores=[2, 5, 7], slots=0) for client in range(4)]
    assert {item.place for item in placed} == {"h"}
    assert {item.slots for item in placed} == {3}  # 0 slots: one per core
    assert {item.cores for item in placed} == {(2, 5, 7)}  # slot 1 is core 5, whoever works in it
    assert placed[0].device == "cpu"
    assert placed[0].environment == {"CUDA_VISIBLE_DEVICES": ""}  # also hides GPUs that exist


@pytest.mark.parametrize(("slots", "cores"), [(1, (2,)), (2, (2, 5)), (5, (2, 5, 7, 2, 5))])
def test_each_slot_has_a_core_and_more_slots_than_cores_share_them(slots, cores):
    placed = place_client(0, host="h", gpus=[], cores=[2, 5, 7], slots=slots)
    assert (placed.slots, placed.cores) == (slots, cores)


def test_with_gpus_a_client_has_one_for_life():
    placed = [place_client(client, host="h", gpus=["0", "3"], cores=[0, 1], slots=0) for client in range(5)]
    assert [item.environment for item in placed] == [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in "03030"]
    assert [item.place for item in placed] == [f"h/gpu{gpu}" for gpu in "03030"]
    assert {item.slots for item in placed} == {1}  # 0 slots: one per GPU
    assert {item.cores for item in placed} == {()} and {item.device for item in placed} == {"cuda"}


def test_slots_are_counted_per_gpu():
    placed = [place_client(client, host="h", gpus=["0", "1"], cores=[0], slots=3) for client in range(2)]
    assert [(item.place, item.slots) for item in placed] == [("h/gpu0", 3), ("h/gpu1", 3)]


def no_query(*args, **options):
    raise AssertionError("nvidia-smi must not be asked")


@pytest.mark.parametrize(
    ("listed", "gpus"),
    [
        ("", []),
        ("0", ["0"]),
        ("1, 3,", ["1", "3"]),
        ("GPU-8932f937,GPU-1a2b3c4d", ["GPU-8932f937", "GPU-1a2b3c4d"]),
        ("-1", []),  # CUDA sees the devices before the first that does not exist
        ("2,-1,0", ["2"]),
    ],
)
def test_the_environment_says_which_gpus_there_are(monkeypatch, listed, gpus):
    monkeypatch.setattr(placement.subprocess, "run", no_query)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": listed}) == gpus


def test_otherwise_the_driver_is_asked(monkeypatch):
    asked = []

    def answer(command, **options):
        asked.append(command[0])
        return subprocess.CompletedProcess(command, 0, stdout="0\n1\n")

    monkeypatch.setattr(placement.subprocess, "run", answer)
    assert visible_gpus({}) == ["0", "1"] and asked == ["nvidia-smi"]


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("nvidia-smi"),
        PermissionError("nvidia-smi"),
        subprocess.TimeoutExpired("nvidia-smi", 10),
        subprocess.CalledProcessError(9, "nvidia-smi"),
    ],
)
def test_no_driver_is_no_gpu(monkeypatch, error):
    def fail(*args, **options):
        raise error

    monkeypatch.setattr(placement.subprocess, "run", fail)
    assert visible_gpus({}) == []


@pytest.mark.parametrize(
    ("listed", "wanted", "device", "seen"),
    [("3,1", "auto", "cuda", "3"), ("3,1", "cpu", "cpu", ""), ("", "auto", "cpu", "")],
)
def test_the_server_takes_the_first_gpu_or_none(monkeypatch, listed, wanted, device, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    monkeypatch.setattr(torch.version, "cuda", "12.1")
    assert use_server_device(Cluster(device=wanted)) == torch.device(device)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


@pytest.mark.parametrize("wanted", [1, 2])
def test_the_server_s_threads_are_as_configured(wanted):
    before = torch.get_num_threads()
    try:
        use_server_threads(Cluster(server_threads=wanted))
        assert torch.get_num_threads() == wanted
    finally:
        torch.set_num_threads(before)
