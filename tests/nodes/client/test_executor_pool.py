"""The pool of a host's executors: who gets which piece of work, and what happens when executors die."""

import itertools
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from nodes.client import errands
from nodes.client.errands import Done, Errand, Note, Trouble
from nodes.client.nameless import Nameless
from nodes.client.pool import Pool
from nodes.launchers import zygote
from nodes.launchers.placement import Placement

PLACE = "here"


def heard_by(end: socket.socket) -> Note | None:
    """What has come, if anything has."""
    end.setblocking(False)
    with suppress(BlockingIOError):
        received = errands.receive(end)
        assert received is not None
        return received[0]
    return None


class Client:
    def __init__(self, number: int, address: str):
        self.number = number
        self.end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.end.connect(address)

    def ask(self) -> None:
        errands.send(self.end, Errand(client=self.number, place=PLACE, order=None, files=()))


class Host:
    """A pool with one place. Executors are ends that the test answers or closes, and each look at all that has
    happened, in one batch, is the test's decision."""

    def __init__(self, slots: int):
        self._processes = itertools.count(1 << 30)
        self._executors: dict[int, socket.socket] = {}
        self._working: dict[int, int] = {}
        self.pool = Pool({PLACE: Placement(PLACE, slots)}, self._start)
        self.clients = [Client(number, self.pool.addresses[PLACE]) for number in range(3)]
        self.settle()

    def _start(self, end: socket.socket, slot: int, placement: Placement) -> int:
        self._executors[slot] = end.dup()
        return next(self._processes)

    def look(self) -> None:
        for key, _ in self.pool._selector.select(0):
            key.data()

    def settle(self) -> None:
        while self.pool._selector.select(0):
            self.look()

    def ask(self, *clients: int) -> None:
        for client in clients:
            self.clients[client].ask()
        self.settle()

    def working(self) -> dict[int, int]:
        """Slot -> the client whose piece is at work there."""
        for slot, end in self._executors.items():
            if (errand := heard_by(end)) is not None:
                assert isinstance(errand, Errand) and slot not in self._working, "one piece at a time"
                self._working[slot] = errand.client
        return self._working.copy()

    def answer(self, slot: int) -> None:
        self.working()
        del self._working[slot]
        errands.send(self._executors[slot], Done())
        self.settle()

    def kill(self, slot: int) -> None:
        """Nobody has noticed yet."""
        self.working()
        self._working.pop(slot, None)
        self._executors.pop(slot).close()

    def heard(self, client: int) -> Note | None:
        return heard_by(self.clients[client].end)

    def close(self) -> None:
        self.pool.close()
        for end in (*self._executors.values(), *(client.end for client in self.clients)):
            end.close()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Host]]:
    """`host(2)`: with so many slots, and without processes."""
    monkeypatch.setattr(os, "waitpid", lambda process, flags: (process, int(signal.SIGKILL)))
    monkeypatch.setattr(os, "kill", lambda process, number: None)
    hosts: list[Host] = []

    def make(slots: int) -> Host:
        hosts.append(Host(slots))
        return hosts[-1]

    yield make
    for made in hosts:
        made.close()


def test_as_many_pieces_are_at_work_as_there_are_slots(host: Callable[[int], Host]) -> None:
    at = host(2)
    at.ask(0, 1, 2)
    assert at.working() == {0: 0, 1: 1}
    at.answer(1)
    assert at.working() == {0: 0, 1: 2}
    assert (at.heard(0), at.heard(1)) == (None, Done())


def test_an_executor_that_died_while_it_was_idle_costs_nothing(host: Callable[[int], Host]) -> None:
    """Its death is noticed only when a piece was handed to it, which has both its tries before it all the same."""
    at = host(1)
    at.ask(0)
    at.answer(0)
    assert at.heard(0) == Done()
    at.clients[1].ask()
    at.kill(0)
    at.look()  # first at the errand, then at the end of the executor
    at.settle()
    assert at.working() == {0: 1}
    at.kill(0)
    at.settle()
    assert at.working() == {0: 1} and at.heard(1) is None
    at.answer(0)
    assert at.heard(1) == Done()


def test_what_is_tried_again_is_alone_until_it_is_done(host: Callable[[int], Host]) -> None:
    at = host(2)
    at.ask(0, 1)
    at.kill(0)
    at.ask(2)
    assert at.working() == {1: 1}, "it waits for whoever is at work"
    at.answer(1)
    assert at.working() == {0: 0}, "whoever waits does not begin beside it"
    at.ask(1)
    assert at.working() == {0: 0}, "nor does who comes meanwhile"
    at.answer(0)
    assert at.heard(0) == Done() and sorted(at.working().values()) == [1, 2]


def test_what_fails_twice_is_told_to_its_client_and_the_others_go_on(host: Callable[[int], Host]) -> None:
    at = host(2)
    at.ask(0, 1)
    at.kill(0)
    at.settle()
    at.answer(1)
    assert at.working() == {0: 0}
    at.ask(1, 2)
    at.kill(0)
    at.settle()
    told = at.heard(0)
    assert isinstance(told, Trouble) and told.kind == "short"
    assert "an executor was killed by signal 9 (SIGKILL), twice, the second time alone; " in told.sentence
    assert sorted(at.working().values()) == [1, 2]


def test_a_client_that_has_gone_meanwhile_costs_nothing(host: Callable[[int], Host]) -> None:
    at = host(1)
    at.ask(0, 1)
    at.clients[0].end.close()
    at.answer(0)
    assert at.working() == {0: 1}
    at.answer(0)
    assert at.heard(1) == Done()


def open_here() -> set[str]:
    """What this process has open of the files and sockets that are passed around, by what they are."""
    names = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return {name for name in names if name.startswith(("socket:", "/memfd:fedsim"))}


@pytest.mark.process
def test_an_executor_that_is_forked_in_mid_run_holds_nothing_of_the_others() -> None:
    """Or their files would take memory as long as it lives, and nobody would learn that a client has hung up."""

    def start(end: socket.socket, slot: int, placement: Placement) -> int:
        def main() -> int:
            pool.let_go()
            os.write(told, f"{' '.join(open_here() - before)}\n".encode())
            signal.pause()  # at work, until the pool is closed
            return 0

        return zygote.fork(main)

    before = open_here()
    heard, told = os.pipe()
    with os.fdopen(heard) as lines, closing(Pool({PLACE: Placement(PLACE, 3)}, start)) as pool:
        for slot in range(3):
            with closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as client:
                client.connect(pool.addresses[PLACE])
                file = Nameless.of({"state": np.zeros(9)})
                errands.send(client, Errand(client=slot, place=PLACE, order=None, files=("state",)), [file])
                file.close()
            for _ in range(2):  # the connection, then what came through it
                for key, _ in pool._selector.select():
                    key.data()
            held = lines.readline().split()
            assert len(held) == 1 and held[0].startswith("socket:"), "its own end"
    os.close(told)
