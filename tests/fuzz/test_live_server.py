"""A live server under fire: strangers and noisy members cannot change a byte of what its honest clients get."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import Run, bits, events_of, hold, wait_for, wait_for_event
from handmade import HandmadeClient

from benchmarks.campaign.hostile import Attacker
from protocol import messages

ROUNDS = ("--rounds", "30", "--set", "cluster.max_frame_mib=1")


@pytest.fixture
def attack() -> Iterator[Callable[[str, int], Attacker]]:
    attackers: list[Attacker] = []

    def start(address: str, seed: int) -> Attacker:
        attackers.append(Attacker(address, seed))
        return attackers[-1]

    try:
        yield start
    finally:
        for attacker in attackers:
            attacker.close()


@pytest.mark.parametrize("options", [(), ("--curve",)], ids=["plain", "keys"])
def test_a_run_under_fire_ends_like_one_that_was_left_alone(
    options: tuple[str, ...],
    cluster: Callable[..., Run],
    attack: Callable[[str, int], Attacker],
    reference: Callable[..., Path],
) -> None:
    run = cluster(*ROUNDS, *options)
    address = wait_for_event(run.folder, "started")["address"]
    wait_for_event(run.folder, "joined")
    # One client is held, so that the run cannot end before the first attack has; the second one meets it running.
    process, _ = hold(run, 2)
    attack(address, 1).do_everything()
    if not options:
        wait_for(lambda: len(list(events_of(run.folder, "rejected"))) > 50, "the attack does not arrive")
        wait_for_event(run.folder, "refused")
    os.kill(process, signal.SIGCONT)
    attack(address, 2).do_everything()
    run.succeed()
    assert bits(run.folder) == bits(reference(*ROUNDS))
    audit = run.summary["audit"]
    assert (audit["connections"], audit["agree"], audit["differences"]) == (4, 4, [])
    assert "Traceback" not in (run.folder / "logs" / "server.log").read_text()


def test_a_run_that_waits_for_its_clients_is_not_disturbed_either(
    cluster: Callable[..., Run], attack: Callable[[str, int], Attacker], reference: Callable[..., Path]
) -> None:
    run = cluster()
    late = run.command.role("client-00003")
    os.kill(late, signal.SIGSTOP)
    address = wait_for_event(run.folder, "started")["address"]
    for client in range(3):  # without keys, whoever comes first is the client: strangers must not come before
        wait_for_event(run.folder, "client_ready", client=client)
    attack(address, 3).do_everything()
    wait_for(lambda: len(list(events_of(run.folder, "rejected"))) > 50, "the attack does not arrive")
    os.kill(late, signal.SIGCONT)
    run.succeed()
    assert bits(run.folder) == bits(reference())
    assert run.summary["audit"]["agree"] == 4


def test_a_member_who_says_too_much_is_heard_once(
    hand_driven_server: Callable[..., tuple[str, Run]], reference: Callable[..., Path]
) -> None:
    """Client 2 belongs to the run and is honest, but greets, answers and chatters far too often."""
    address, run = hand_driven_server()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(HandmadeClient(address, client)) for client in range(4)]
        for client in clients:
            client.join()
        noisy = clients[2]
        for round in range(4):
            for client in (*clients[:2], clients[3]):
                work = client.next_work()
                assert work is not None
                client.answer(work[0], client.do(*work))
            work = noisy.next_work()
            assert work is not None and work[0].round == round
            report = noisy.do(*work)
            attempt = chatter(noisy, work[0])
            noisy.answer(work[0], report, attempt=attempt)
            noisy.answer(work[0], report, attempt=attempt)
            noisy.answer(work[0], report, attempt=attempt + 1)
        for client in clients:
            assert client.next_work() is None
    run.succeed()
    assert bits(run.folder) == bits(reference())
    assert run.summary["audit"]["agree"] == run.summary["audit"]["connections"] == 4


def chatter(noisy: HandmadeClient, work: messages.Work) -> int:
    """Noise that must not count; returns the attempt of the question that is open after it."""
    other = {"run": noisy.run, "metrics": {"tested": 1.0, "correct": 1.0}, "seconds": {}}
    for round, attempt in ((work.round, 7), (work.round + 1, 0), (max(work.round - 1, 0), 5), (1 << 30, 1 << 30)):
        noisy.socket.send(messages.Result(round=round, attempt=attempt, **other))
    noisy.socket.send(
        messages.Work(run=noisy.run, round=0, attempt=0, slot=0, train=True, evaluate=True, save=True, keep=-1)
    )
    noisy.socket.send(messages.Setup(run=noisy.run))
    noisy.socket._line._socket.send_multipart([b"\xc1 this is not msgpack"])
    noisy.say_hello()  # as after a broken connection: the server asks again
    again = noisy.next_work()
    assert again is not None and again[0].round == work.round and again[0].attempt > work.attempt
    return again[0].attempt
