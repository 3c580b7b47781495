"""Same config and same seed give the same bits, however the run is carried out."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import METHODS, Run, bits, events_of, wait_for_event
from handmade import HandmadeClient

CONVOLUTIONS = (
    *METHODS["fedtgp"],
    *("--dataset", "digits", "--model-group", "CNN1,CNN2", "--feature-dim", "16", "--rounds", "2"),
    *("--set", "data.samples_per_class=12"),
)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("slots", ["1", "2"])
@pytest.mark.parametrize("compute", ["own", "shared"])
def test_a_cluster_gives_the_bits_of_the_run_in_one_process(
    method: str, slots: str, compute: str, cluster: Callable[..., Run], reference: Callable[..., Path]
) -> None:
    run = cluster(*METHODS[method], "--slots", slots, "--set", f"cluster.compute={compute}").succeed()
    assert bits(run.folder) == bits(reference(*METHODS[method]))


def test_convolutions_in_a_mixed_group_give_the_same_bits_too(
    cluster: Callable[..., Run], reference: Callable[..., Path]
) -> None:
    run = cluster(*CONVOLUTIONS).succeed()
    assert bits(run.folder) == bits(reference(*CONVOLUTIONS))


def test_neither_encryption_nor_slow_links_change_a_bit(
    cluster: Callable[..., Run], reference: Callable[..., Path]
) -> None:
    """Keys stay between the two ends: the relay passes on what it cannot read."""
    link = "up=2mbit down=4mbit delay=10ms jitter=5ms"
    run = cluster(*METHODS["fedtgp"], "--curve", "--link", link).succeed()
    assert bits(run.folder) == bits(reference(*METHODS["fedtgp"]))
    assert run.summary["audit"]["agree"] == run.summary["audit"]["connections"] == 4
    carried = json.loads((run.folder / "logs" / "relay.json").read_text())["connections"]
    assert sorted(books["client"] for books in carried) == [0, 1, 2, 3]
    assert all(books["agrees"] and not books["was_cut"] for books in carried)
    assert sum(books["bytes_out"]["up"] for books in carried) == run.booked("wire_bytes", direction="up")


@pytest.mark.parametrize("method", METHODS)
def test_another_seed_gives_other_bits(method: str, reference: Callable[..., Path]) -> None:
    ours, others = bits(reference(*METHODS[method])), bits(reference(*METHODS[method], "--seed", "2"))
    assert ours.keys() == others.keys()
    assert all(ours[name] != others[name] for name in ours)


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_the_answers_does_not_change_a_bit(
    method: str, hand_driven_server: Callable[..., tuple[str, Run]], reference: Callable[..., Path]
) -> None:
    """All clients are asked at once and answer one after the other, the last one first."""
    address, run = hand_driven_server(*METHODS[method])
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(HandmadeClient(address, client)) for client in range(4)]
        for client in clients:
            client.join()
        for round in range(4):
            works = [client.next_work() for client in clients]
            for client, work in reversed(list(zip(clients, works, strict=True))):
                assert work is not None and work[0].round == round
                client.answer(work[0], client.do(*work))
                wait_for_event(run.folder, "answered", round=round, client=client.client)
        assert [client.next_work() for client in clients] == [None] * 4
    run.succeed()
    assert [event["client"] for event in events_of(run.folder, "answered")] == [3, 2, 1, 0] * 4
    assert bits(run.folder) == bits(reference(*METHODS[method]))
