"""How clients are shared among the machines of a Ray cluster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.launchers.ray import assign


def test_clients_are_shared_in_proportion_to_cores():
    assert assign(8, [{"CPU": 2.0}, {"CPU": 6.0}]) == [[0, 1], [2, 3, 4, 5, 6, 7]]


def test_machines_without_a_gpu_get_none_where_others_have_one():
    assert assign(3, [{"CPU": 64.0}, {"CPU": 4.0, "GPU": 1.0}]) == [[], [0, 1, 2]]


@given(
    num_clients=st.integers(1, 60),
    cores=st.lists(st.integers(1, 64), min_size=1, max_size=6),
)
def test_every_client_runs_on_exactly_one_machine_and_shares_are_fair(num_clients, cores):
    blocks = assign(num_clients, [{"CPU": float(count)} for count in cores])
    assert [client for ids in blocks for client in ids] == list(range(num_clients))
    for count, ids in zip(cores, blocks, strict=True):
        assert len(ids) == pytest.approx(num_clients * count / sum(cores), abs=1)
