"""A client that is killed restores itself, and the run ends with the bits of one that was left alone."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import (
    METHODS,
    Run,
    bits,
    events,
    events_of,
    hold,
    reach,
    wait_for_event,
)

ROUNDS = ("--rounds", "12")
Cluster = Callable[..., Run]
Reference = Callable[..., Path]


@pytest.mark.parametrize("method", ["fedtgp", "fedproto"])
@pytest.mark.parametrize("client", [0, 2])
def test_a_client_killed_in_the_middle_of_a_round_restores_itself(
    method: str, client: int, cluster: Cluster, reference: Reference
) -> None:
    options = (*METHODS[method], "--rounds", "25")
    run = cluster(*options, "--checkpoint-every", "1")
    wait_for_event(run.folder, "checkpoint", round=2)
    process, round = hold(run, client)
    os.kill(process, signal.SIGKILL)
    restored = wait_for_event(run.folder, "restored", client=client)
    assert restored["round"] == round - 1
    run.succeed()
    assert bits(run.folder) == bits(reference(*options))
    assert f"client {client} was started again and restored from round {round - 1}" in run.command.stdout
    assert len(list(events_of(run.folder, "asked", round=round, client=client))) == 2


def test_a_client_killed_after_its_answer_goes_on_from_that_round(cluster: Cluster, reference: Reference) -> None:
    """It comes back before the round is over: the state that it has saved in this round is the one that counts."""
    options = ("--rounds", "25")
    run = cluster(*options, "--checkpoint-every", "1")
    wait_for_event(run.folder, "checkpoint", round=2)
    slow, round = hold(run, 3)
    wait_for_event(run.folder, "answered", client=0, round=round)
    os.kill(run.command.role("client-00000"), signal.SIGKILL)
    wait_for_event(run.folder, "restored", client=0)
    os.kill(slow, signal.SIGCONT)
    run.succeed()
    assert len(list(events_of(run.folder, "asked", round=round, client=0))) == 1
    assert bits(run.folder) == bits(reference(*options))


def test_a_client_killed_in_the_first_round_starts_afresh(cluster: Cluster, reference: Reference) -> None:
    options = ROUNDS
    run = cluster(*options, "--checkpoint-every", "1")
    last = run.command.role("client-00003")
    os.kill(last, signal.SIGSTOP)  # so that the round cannot begin yet
    wait_for_event(run.folder, "client_ready", client=1)
    process = run.command.role("client-00001")
    os.kill(process, signal.SIGSTOP)
    os.kill(last, signal.SIGCONT)
    wait_for_event(run.folder, "asked", client=1, round=0)
    os.kill(process, signal.SIGKILL)
    run.succeed()
    assert bits(run.folder) == bits(reference(*options))


@pytest.mark.parametrize("seed", [1, 2])
def test_clients_killed_again_and_again_at_random_moments_change_nothing(
    seed: int, cluster: Cluster, reference: Reference
) -> None:
    draw = random.Random(seed)
    options = (*METHODS["fedtgp"], "--rounds", "30")
    run = cluster(*options, "--checkpoint-every", "1")
    wait_for_event(run.folder, "checkpoint", round=0)
    for _ in range(5):
        if not reach(run, len(events(run.folder)) + draw.randrange(1, 40)):
            break
        victim = run.command.roles().get(f"client-{draw.randrange(4):05d}")
        if victim is not None:
            os.kill(victim, signal.SIGKILL)
    run.succeed()
    assert list(events_of(run.folder, "restored"))
    assert bits(run.folder) == bits(reference(*options))


def test_a_client_without_saved_state_is_not_taken_back(cluster: Cluster) -> None:
    """The first checkpoint lies ahead: going on from nothing would quietly change the result."""
    options = ("--rounds", "25", "--set", "cluster.rejoin_seconds=0.5", "--set", "cluster.quorum=0.5")
    run = cluster(*options, "--checkpoint-every", "20")
    wait_for_event(run.folder, "round_finished", round=1)
    process, round = hold(run, 1)
    os.kill(process, signal.SIGKILL)
    run.succeed()
    refused = wait_for_event(run.folder, "refused")
    assert refused["reason"].startswith("client 1 has no saved state to go on with")
    assert wait_for_event(run.folder, "left_out", client=1)["round"] == round
