"""How clients are shared among the machines of a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.launchers.bundle import share
from nodes.launchers.ray import lack, reserved
from nodes.launchers.slurm import cpus_per_node


def test_clients_are_shared_in_proportion():
    assert share(8, [2, 6]) == [[0, 1], [2, 3, 4, 5, 6, 7]]


def test_machines_without_weight_get_none():
    assert share(3, [0, 1]) == [[], [0, 1, 2]]


@given(
    num_clients=st.integers(1, 60),
    cores=st.lists(st.integers(1, 64), min_size=1, max_size=6),
)
def test_every_client_runs_on_exactly_one_machine_and_shares_are_fair(num_clients, cores):
    blocks = share(num_clients, cores)
    assert [client for ids in blocks for client in ids] == list(range(num_clients))
    for count, ids in zip(cores, blocks, strict=True):
        assert len(ids) == pytest.approx(num_clients * count / sum(cores), abs=1)


@pytest.mark.parametrize(
    ("resources", "slots", "device", "kept"),
    [
        ({"CPU": 8.0}, 0, "auto", {"num_cpus": 8}),
        ({"CPU": 8.0}, 3, "auto", {"num_cpus": 3}),
        ({"CPU": 2.0}, 3, "auto", {"num_cpus": 2}),
        ({"CPU": 8.0, "GPU": 2.0}, 0, "auto", {"num_gpus": 2.0, "num_cpus": 0}),
        ({"CPU": 8.0, "GPU": 2.0}, 0, "cpu", {"num_cpus": 8}),
    ],
)
def test_ray_keeps_what_the_run_will_use(resources, slots, device, kept):
    assert reserved(resources, slots, device) == kept


@pytest.mark.parametrize(("text", "cpus"), [("2", [2]), ("4(x2),8", [4, 4, 8]), ("", [])])
def test_slurm_tells_the_cores_of_each_node(text, cpus):
    assert cpus_per_node(text) == cpus


def test_cores_that_others_have_are_not_waited_for():
    assert lack({"num_cpus": 2}, {"CPU": 2.0}) == ""
    assert lack({"num_cpus": 2}, {"CPU": 1.0}) == "has 1 free cores and this run would keep 2"
    assert lack({"num_gpus": 2.0, "num_cpus": 0}, {}) == "has 0 free GPUs and this run would keep 2"
