"""Clients that share executors: whatever of them dies, the result is the same or the run says who is missing."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import Run, bits, events_of, hold, rows, wait_for, wait_for_event

from nodes.server.program import EXIT_LACKS_CLIENTS

SHARED = ("--set", "cluster.compute=shared", "--slots", "2")
LONG = ("--rounds", "40")


def kill_executor(run: Run, slot: int) -> None:
    os.kill(run.command.role(f"executor-0-{slot}"), signal.SIGKILL)


def open_files(process: int) -> Iterator[str]:
    """It is at work, so a file may be closed between two looks."""
    for link in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            yield str(link.readlink())


def test_executors_that_are_killed_change_no_bit(
    cluster: Callable[..., Run], reference: Callable[..., Path]
) -> None:
    run = cluster(*LONG, *SHARED)
    for round in (1, 6, 12, 20):
        wait_for_event(run.folder, "round_finished", round=round)
        kill_executor(run, round % 2)
    run.succeed()
    assert bits(run.folder) == bits(reference(*LONG))
    assert list(events_of(run.folder, "lost")) == []  # no client heard of it


@pytest.mark.parametrize("victim", ["client-00002", "clients"])
def test_clients_that_are_killed_go_on_from_their_checkpoint(
    victim: str, cluster: Callable[..., Run], reference: Callable[..., Path]
) -> None:
    """One client, or the parent of all of them, or the host with its executors: whichever prints to that log."""
    run = cluster(*LONG, *SHARED, "--checkpoint-every", "1")
    wait_for_event(run.folder, "round_finished", round=3)
    if victim == "clients":
        os.kill(run.command.role(victim), signal.SIGKILL)
    else:
        os.kill(hold(run, 2)[0], signal.SIGKILL)
    run.succeed()
    assert bits(run.folder) == bits(reference(*LONG))
    assert {event["client"] for event in events_of(run.folder, "restored")} >= {2}


def test_a_client_never_loads_torch_and_its_host_never_computes(cluster: Callable[..., Run]) -> None:
    run = cluster("--rounds", "100000", *SHARED)
    wait_for_event(run.folder, "round_finished", round=1)
    roles = run.command.roles()
    assert set(roles) == {
        *("server", "clients", "executor-0-0", "executor-0-1"),
        *(f"client-0000{client}" for client in range(4)),
    }
    libraries = {name: Path(f"/proc/{process}/maps").read_text() for name, process in roles.items()}
    assert {name for name, mapped in libraries.items() if "libtorch" not in mapped} >= {
        f"client-0000{client}" for client in range(4)
    }
    cores = {os.sched_getaffinity(roles[f"executor-0-{slot}"]).__iter__().__next__() for slot in range(2)}
    assert len(cores) == min(2, len(os.sched_getaffinity(0)))  # one core each
    for slot in range(2):
        sockets = [file for file in open_files(roles[f"executor-0-{slot}"]) if file.startswith("socket:")]
        assert len(sockets) == 1  # to the host: nothing of the other one, nor of clients
    run.command.send(signal.SIGINT)
    run.command.wait()
    run.command.wait_until_gone()


def test_nothing_survives_the_launcher(cluster: Callable[..., Run]) -> None:
    run = cluster("--rounds", "100000", *SHARED)
    wait_for_event(run.folder, "round_finished", round=1)
    run.command.send(signal.SIGKILL)
    run.command.wait_until_gone()
    assert run.command.wait() == -signal.SIGKILL


DEADLY = "import signal; client == 2 and os.kill(os.getpid(), signal.SIGKILL)"


def test_work_that_kills_its_executor_twice_costs_one_client(run_changed: Callable[..., Run]) -> None:
    """As the system's memory killer would: the piece is tried again alone, then its client is lost; with a quorum
    the others go on."""
    run = run_changed(*SHARED, "--set", "cluster.quorum=0.5", client=DEADLY).succeed()
    (lost,) = events_of(run.folder, "lost")
    assert (lost["client"], lost["round"]) == (2, 0)
    assert lost["reason"].startswith("client 2, round 0 with a model of ")
    assert "an executor was killed by signal 9 (SIGKILL), twice, the second time alone; " in lost["reason"]
    assert [int(row["clients"]) for row in rows(run.folder / "metrics.csv")] == [3, 3, 3, 3]
    assert "trying again, alone on" in (run.folder / "logs" / "clients.log").read_text()


def test_without_a_quorum_the_run_ends_and_says_who_is_missing(run_changed: Callable[..., Run]) -> None:
    run = run_changed(*SHARED, client=DEADLY)
    assert run.command.wait() == EXIT_LACKS_CLIENTS
    assert "round 0 lacks 1 of 4 clients (client 2: client 2, round 0 with a model of" in run.command.stdout
    wait_for(lambda: not run.command.alive(), "something is left")


def test_a_method_that_raises_ends_the_run_as_everywhere(run_changed: Callable[..., Run]) -> None:
    run = run_changed(*SHARED, client="assert client != 1, 'ill'")
    assert run.command.wait() == 1
    assert run.summary["reason"] == "client 1 failed in round 0: AssertionError: ill"
    assert "bad.py" in run.command.stdout and "in upload" in run.command.stdout
    assert "client-00001.log" in run.command.stdout
    assert "in upload" in (run.folder / "logs" / "client-00001.log").read_text()
