"""Runs over ssh, against a real server on this machine."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import PROJECT, TINY, Run, Start, bits, wait_for_event

from tests.clusters.conftest import Ssh, hosts_of

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(900)]

SLOW = ("--rounds", "6", "--set", "train.local_epochs=20", "--set", "cluster.rejoin_seconds=120")
SAVING = (*SLOW, "--checkpoint-every", "1")


@pytest.fixture
def machines(sshd: Callable[[], Ssh]) -> Ssh:
    return sshd()


@pytest.fixture
def run(python: Start, tmp_path: Path, machines: Ssh) -> Callable[..., Run]:
    def start(*options: str, hosts: str = "one,two") -> Run:
        command = (PROJECT / "run_cluster.py", *TINY, "--hosts", hosts, *options, "--out", tmp_path / "run")
        return Run(python(*command, PATH=machines.path), tmp_path / "run")

    return start


def test_two_hosts_give_the_same_bits(run: Callable[..., Run], reference: Callable[..., Path]) -> None:
    done = run().succeed()
    assert bits(done.folder) == bits(reference())
    assert "2 hosts with clients: one 0-1, two 2-3\n" in done.command.stdout
    assert done.summary["audit"]["agree"] == done.summary["audit"]["connections"] == 4
    assert (done.folder / "logs" / "host-two.log").read_text().count("the run is complete") == 2
    assert not (done.folder / "keys").exists()


def test_own_code_goes_through_the_connection(
    run: Callable[..., Run], tmp_path: Path, reference: Callable[..., Path]
) -> None:
    (tmp_path / "mine.py").write_bytes(b"from fedsim.methods.fedproto import *\r\n")
    done = run("--method", "./mine.py").succeed()
    assert bits(done.folder) == bits(reference())


def test_a_killed_host_is_started_again_and_goes_on(
    run: Callable[..., Run], machines: Ssh, reference: Callable[..., Path]
) -> None:
    going = run(*SAVING)
    wait_for_event(going.folder, "checkpoint", round=1)
    machines.kill_host("two")
    going.succeed()
    assert (
        "host two was killed, or the connection to it broke; clients 2-3 start again on two\n"
        in going.command.stdout
    )
    assert bits(going.folder) == bits(reference(*SLOW))


def test_clients_of_a_machine_that_is_gone_move_to_another(
    run: Callable[..., Run], machines: Ssh, reference: Callable[..., Path]
) -> None:
    going = run(*SAVING, hosts="one,three")
    wait_for_event(going.folder, "checkpoint", round=1)
    machines.close_machine("three")
    going.succeed()
    assert "(machine three is closed)" in going.command.stdout
    assert "clients 2-3 start again on one\n" in going.command.stdout
    assert bits(going.folder) == bits(reference(*SLOW))


def test_without_checkpoints_a_killed_host_is_a_loss_like_any(run: Callable[..., Run], machines: Ssh) -> None:
    going = run(*SLOW)
    wait_for_event(going.folder, "round_finished", round=1)
    machines.kill_host("two")
    assert going.command.wait() == 3
    assert "has no saved state to go on with; use --checkpoint-every" in going.command.stdout


def test_a_killed_launcher_leaves_no_host(run: Callable[..., Run]) -> None:
    going = run(*SLOW)
    wait_for_event(going.folder, "round_finished", round=0)
    assert hosts_of("one") and hosts_of("two")
    going.command.send(signal.SIGKILL)
    going.command.wait_until_gone()


def test_an_interrupted_run_goes_on_over_ssh(
    run: Callable[..., Run], python: Start, machines: Ssh, reference: Callable[..., Path]
) -> None:
    going = run(*SAVING)
    wait_for_event(going.folder, "checkpoint", round=1)
    going.command.send(signal.SIGINT)
    assert going.command.wait() == 1
    words = (PROJECT / "run_cluster.py", "--resume", going.folder, "--hosts", "one,two")
    python(*words, PATH=machines.path).succeed()
    assert bits(going.folder) == bits(reference(*SLOW))


NO_PYTHON = ("--remote-python", "/no/python")
NO_FEDSIM = ("--remote-python", "/usr/bin/python3")
NO_ROUTE = ("--address", "no.invalid")


@pytest.mark.parametrize(
    ("options", "hosts", "sentence"),
    [
        ((), "one,no.invalid", "host no.invalid cannot be reached by ssh (ssh: Could not resolve hostname"),
        (NO_PYTHON, "one", "host one has no /no/python; name its Python with --remote-python."),
        (NO_FEDSIM, "one", "host one has no fedsim of this version in /usr/bin/python3; install it there,"),
        (NO_ROUTE, "two", "no machine is known by that name; name one that it can reach with --address."),
    ],
)
def test_what_cannot_work_is_one_sentence_and_nothing_stays(
    run: Callable[..., Run], options: tuple[str, ...], hosts: str, sentence: str
) -> None:
    refused = run(*options, hosts=hosts)
    assert refused.command.wait() == 2
    assert sentence in refused.command.stderr and refused.command.stderr.count("\n") == 1
    assert not refused.folder.exists()
