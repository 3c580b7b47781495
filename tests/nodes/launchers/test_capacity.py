"""Own processes or shared executors: decided by the memory that is free, and said."""

from dataclasses import replace

import pytest

from fedsim import assembly, config
from nodes.client.options import ClientOptions
from nodes.launchers import capacity, gpus, processes
from nodes.launchers.capacity import CONTEXT_BYTES, Expected, Need, choose, plan_host
from nodes.launchers.gpus import Gpu
from nodes.tools.doctor import check_capacity

GIBIBYTE = 1 << 30
OPTIONS = ClientOptions(connect="tcp://a:1", ids=list(range(20)))


def test_own_where_all_fit_and_shared_where_not():
    few, many = Need(20, 2), Need(1000, 2)
    assert choose("auto", few, 20 * GIBIBYTE) == ("own", "")
    chosen, why = choose("auto", many, 20 * GIBIBYTE)
    assert chosen == "shared" and why.startswith(
        "1000 clients in processes of their own would take about 31.2 GiB of"
    )
    assert "so they share 2 executors" in why
    assert choose("own", few, 20 * GIBIBYTE) == ("own", "") and choose("shared", few, 20 * GIBIBYTE)[1] == ""


def test_what_does_not_fit_is_said_before_the_start():
    assert (
        "share executors (cluster.compute=shared) or take fewer" in choose("own", Need(1000, 2), 4 * GIBIBYTE)[1]
    )
    chosen, why = choose("auto", Need(1000, 2), 4 * GIBIBYTE)
    assert chosen == "shared" and why.endswith("4.0 GiB are free; take fewer clients or smaller models.")


def test_memory_of_executors_does_not_grow_with_clients_on_a_gpu():
    sizes = {"model_bytes": 100 << 20, "largest_bytes": 100 << 20, "context_bytes": CONTEXT_BYTES}
    few, many = Need(10, 2, **sizes), Need(1000, 2, **sizes)
    assert few.shared_bytes == many.shared_bytes == 2 * CONTEXT_BYTES + 8 * (100 << 20)
    assert many.own_bytes > 100 * few.shared_bytes / 4


@pytest.fixture
def machine(monkeypatch):
    """`machine(free, gpu_free, ...)`: so much memory, and a GPU for each further figure."""

    def make(free: int, *gpu_free: int | None) -> None:
        there = [Gpu(str(n), f"GPU-{n}", size) for n, size in enumerate(gpu_free)]
        monkeypatch.setattr(processes, "available_bytes", lambda: free)
        monkeypatch.setattr(gpus, "described", lambda: there)
        monkeypatch.setattr(
            gpus, "usable_gpus", lambda device: [g.index for g in there] if device == "auto" else []
        )

    return make


def test_a_gpu_whose_clients_do_not_fit_decides_for_the_host(machine):
    machine(60 * GIBIBYTE, 40 * GIBIBYTE, 40 * GIBIBYTE)
    assert plan_host(OPTIONS, Expected()).compute == "own"
    machine(60 * GIBIBYTE, 40 * GIBIBYTE, 2 * GIBIBYTE)  # somebody else uses the second one
    plan = plan_host(OPTIONS, Expected())
    assert plan.compute == "shared" and len(plan.notes) == 1
    assert (
        "10 clients in processes of their own would take about 4.4 GiB of 2.0 GiB of free GPU 1" in plan.notes[0]
    )
    assert {item.environment["CUDA_VISIBLE_DEVICES"] for item in plan.placements.values()} == {"0", "1"}
    plan = plan_host(replace(OPTIONS, device="cpu"), Expected())
    assert plan.compute == "own" and plan.placements[0].device == "cpu"


def test_a_gpu_whose_free_memory_is_not_told_is_used_and_that_is_said(machine):
    machine(60 * GIBIBYTE, None, 40 * GIBIBYTE)
    plan = plan_host(OPTIONS, Expected())
    assert {item.environment["CUDA_VISIBLE_DEVICES"] for item in plan.placements.values()} == {"0", "1"}
    assert [memory.name for memory in plan.memories] == ["GPU 1", "memory"] and plan.compute == "own"
    (note,) = plan.notes
    assert note.startswith("the driver does not tell how much memory is free on GPU 0, so nobody knows")


def test_models_that_fit_no_gpu_are_said(machine):
    machine(60 * GIBIBYTE, GIBIBYTE)
    plan = plan_host(OPTIONS, Expected(model_bytes=dict.fromkeys(range(20), GIBIBYTE)))
    assert plan.compute == "shared" and plan.notes[-1].startswith(
        "20 clients (shared) may take about 4.4 GiB of GPU 0"
    )


def test_what_is_expected_follows_from_shapes_and_samples():
    experiment = config.build(
        [{"run": {"clients": 4}, "model": {"group": "CNN1,CNN2"}, "data": {"partition": "iid"}}]
    )
    federation = assembly.check(experiment)
    expected = Expected.of(experiment, federation)
    halves = [assembly.make_client(experiment, federation, client) for client in range(2)]
    for half, client in zip(halves, (2, 3), strict=True):
        size = sum(array.nbytes for array in half.model.state_dict().values())
        assert expected.model_bytes[client] == expected.model_bytes[client - 2] == size
        samples = len(federation.client(client).train)
        assert expected.work[client] == pytest.approx(size * samples)
    assert capacity.Expected.of(config.build([{"run": {"rehearsal": True}}]), federation) == Expected()


def test_doctor_says_what_would_fit(machine):
    machine(60 * GIBIBYTE, 6 * GIBIBYTE)
    on_gpu, here = (finding.text for finding in check_capacity(20, "CNN1,CNN2"))
    assert on_gpu == "20 clients of CNN1,CNN2 on GPU 0: own processes fit 10, so shared, 1 executor"
    assert here == "20 clients of CNN1,CNN2 on this machine: fit in processes of their own"
    machine(60 * GIBIBYTE, GIBIBYTE // 4)
    finding, _ = check_capacity(20, "CNN1")
    assert finding.level == "note" and "of 0.2 GiB free" in finding.text and finding.remedy
