"""How clients are shared among the machines of a Ray cluster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.launchers.ray import RayNode, assign


def test_clients_are_shared_in_proportion_to_cores():
    small, large = RayNode("a", 2), RayNode("b", 6)
    assert assign(8, [small, large]) == [(small, [0, 1]), (large, [2, 3, 4, 5, 6, 7])]


def test_machines_without_a_gpu_get_none_where_others_have_one():
    plain, fast = RayNode("a", 64), RayNode("b", 4, num_gpus=1)
    assert assign(3, [plain, fast]) == [(fast, [0, 1, 2])]


@given(
    num_clients=st.integers(1, 60),
    cores=st.lists(st.integers(1, 64), min_size=1, max_size=6),
)
def test_every_client_runs_on_exactly_one_machine_and_shares_are_fair(num_clients, cores):
    assignments = assign(num_clients, [RayNode(str(i), count) for i, count in enumerate(cores)])
    assert [client for _, ids in assignments for client in ids] == list(range(num_clients))
    for node, ids in assignments:
        fair = num_clients * node.num_cpus / sum(cores)
        assert len(ids) == pytest.approx(fair, abs=1)
