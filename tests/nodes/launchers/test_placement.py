"""Which core or GPU a client gets, and what its process must see before CUDA is touched."""

import os
import subprocess
import sys

import pytest
import torch
from commands import PROJECT

from fedsim.config import Cluster
from fedsim.errors import UserError
from nodes.launchers import gpus as gpu_facts
from nodes.launchers import host, placement
from nodes.launchers.gpus import Gpu, look_up, other_accelerator, torch_cuda, usable_gpus, visible_gpus
from nodes.launchers.placement import (
    cut,
    deal,
    host_name,
    place_clients,
    use_server_device,
    use_server_threads,
)


def test_without_gpus_all_clients_share_the_host_and_its_cores():
    placed = place_clients(range(4), host="h", cores=[2, 5, 7])
    assert len(set(map(id, placed.values()))) == 1 and list(placed) == [0, 1, 2, 3]
    assert (placed[0].place, placed[0].slots) == ("h", 3)  # 0 slots: one per core
    assert placed[0].cores == (2, 5, 7)  # slot 1 is core 5, whoever works in it
    assert placed[0].device == "cpu"
    assert placed[0].environment == {"CUDA_VISIBLE_DEVICES": ""}  # also hides GPUs that exist


@pytest.mark.parametrize(("slots", "cores"), [(1, (2,)), (2, (2, 5)), (5, (2, 5, 7, 2, 5))])
def test_each_slot_has_a_core_and_more_slots_than_cores_share_them(slots, cores):
    placed = place_clients([0], host="h", cores=[2, 5, 7], slots=slots)[0]
    assert (placed.slots, placed.cores) == (slots, cores)


def test_with_gpus_a_client_has_one_for_life_by_its_rank_on_the_host():
    placed = place_clients([10, 12, 14, 16, 18], host="h", names=["0", "3"], cores=[0, 1])
    seen = [item.environment["CUDA_VISIBLE_DEVICES"] for item in placed.values()]
    assert seen == ["0", "3", "0", "3", "0"]
    assert [item.place for item in placed.values()] == [f"h/gpu{gpu}" for gpu in seen]
    assert {item.slots for item in placed.values()} == {1}  # 0 slots: one per GPU
    assert {item.cores for item in placed.values()} == {()} and placed[10].device == "cuda"
    assert placed[10].environment["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_slots_are_counted_per_gpu():
    placed = place_clients([0, 1], host="h", names=["0", "1"], cores=[0], slots=3)
    assert [(item.place, item.slots) for item in placed.values()] == [("h/gpu0", 3), ("h/gpu1", 3)]


def test_gpus_have_about_as_much_to_do():
    """Eight architectures over eight GPUs by number would put every largest model on one of them."""
    sizes = [0.5, 6, 11, 21, 25, 44, 60, 7]
    work = {client: sizes[client % 8] * (1 + client % 3) for client in range(100)}
    dealt = deal(range(100), 8, work)
    loads = [sum(work[client] for client, place in dealt.items() if place == gpu) for gpu in range(8)]
    assert max(loads) / min(loads) < 1.15
    by_number = [sum(work[client] for client in range(100) if client % 8 == gpu) for gpu in range(8)]
    assert max(by_number) / min(by_number) > 50


def test_names_are_short_and_differ_where_machines_do(monkeypatch):
    monkeypatch.setattr(placement.socket, "gethostname", lambda: "node")
    names = set()
    for machine in ("a", "b"):
        monkeypatch.setattr(placement.Path, "read_text", lambda path, machine=machine: machine)
        names.add(host_name())
    assert len(names) == 2 and all(name.startswith("node-") and len(name) == 11 for name in names)
    long = [cut("x" * 70 + end) for end in "ab"]
    assert len(set(long)) == 2 and {len(name) for name in long} == {64} and cut("h/gpu0") == "h/gpu0"
    for where in ({"cores": [0]}, {"names": ["0"]}):  # as --place or a machine is called
        assert len(place_clients([0], host=f"rack {80 * 'x'}", **where)[0].place) == 64


SMI = "0, GPU-8932f937-d72c, 80000\n1, GPU-1a2b3c4d-0000, 100\n"


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
    monkeypatch.setattr(gpu_facts.subprocess, "run", no_query)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": listed}) == gpus


def test_otherwise_the_driver_is_asked(monkeypatch):
    asked = []

    def answer(command, **options):
        asked.append(command[0])
        return subprocess.CompletedProcess(command, 0, stdout=SMI)

    monkeypatch.setattr(gpu_facts.subprocess, "run", answer)
    assert visible_gpus({}) == ["0", "1"] and asked == ["nvidia-smi"]


def test_a_gpu_whose_free_memory_is_not_told_is_one_all_the_same(monkeypatch):
    """Such as those that share the memory of their machine."""
    told = subprocess.CompletedProcess([], 0, stdout="0, GPU-8932f937-d72c, [N/A]\n1, GPU-1a2b3c4d-0000, 100\n")
    monkeypatch.setattr(gpu_facts.subprocess, "run", lambda *_, **__: told)
    assert visible_gpus({}) == ["0", "1"]
    assert look_up(["0"]) == {"0": Gpu("0", "GPU-8932f937-d72c", None)}


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

    monkeypatch.setattr(gpu_facts.subprocess, "run", fail)
    assert visible_gpus({}) == []


@pytest.mark.parametrize(
    ("listed", "wanted", "device", "seen"),
    [("3,1", "auto", "cuda", "3"), ("3,1", "cpu", "cpu", ""), ("", "auto", "cpu", "")],
)
def test_the_server_takes_the_first_gpu_or_none(monkeypatch, listed, wanted, device, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    monkeypatch.setattr(gpu_facts, "torch_cuda", lambda: "12.1")
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


@pytest.fixture
def driver(monkeypatch):
    """A driver that answers; nothing else is started."""
    answer = subprocess.CompletedProcess([], 0, stdout=SMI)
    monkeypatch.setattr(gpu_facts.subprocess, "run", lambda *_, **__: answer)


def test_a_host_whose_torch_has_no_cuda_has_no_gpus(driver, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for cuda, known in (("12.1", ["0", "1"]), (None, [])):
        monkeypatch.setattr(gpu_facts, "torch_cuda", lambda cuda=cuda: cuda)
        assert usable_gpus() == known and host.facts().gpus == len(known)


@pytest.mark.process
def test_what_torch_is_built_for_is_known_without_loading_it():
    assert torch_cuda() == torch.version.cuda
    lines = "import sys; from nodes.launchers.host import facts; facts(); print('torch' in sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", lines], capture_output=True, text=True, cwd=PROJECT, check=True
    )
    assert process.stdout == "False\n"


def test_gpus_are_known_by_number_and_by_uuid(driver):
    first = Gpu("0", "GPU-8932f937-d72c", 80000 << 20)
    assert look_up(["0", "GPU-1a2b"]).keys() == {"0", "GPU-1a2b"}
    assert look_up(["0"]) == look_up(["0"]) == {"0": first} and look_up(["GPU-8932f937-d72c"])
    assert look_up([]) == {}


def test_a_gpu_that_does_not_exist_is_refused_with_those_that_do(driver):
    with pytest.raises(
        UserError, match=r"names GPU 7, but this machine has 0 \(GPU-8932f937-d72c\), 1 .*device=cpu"
    ):
        look_up(["0", "7"])


def test_torch_for_another_accelerator_is_named(monkeypatch):
    assert other_accelerator() == ""
    monkeypatch.setattr(torch.version, "hip", "6.1")
    assert other_accelerator() == "ROCm"
    monkeypatch.setattr(gpu_facts, "torch_cuda", lambda: "12.1")
    assert other_accelerator() == ""
