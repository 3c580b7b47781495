"""A live server under fire: strangers and noisy members cannot change a byte of what its honest clients get."""

import contextlib
import os
import random
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack
import numpy as np
import pytest
import zmq
from commands import Run, bits, events_of, hold, wait_for, wait_for_event
from handmade import HandmadeClient

from protocol import messages
from protocol.codec import encode, pack

ROUNDS = ("--rounds", "30", "--set", "cluster.max_frame_mib=1")
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + b"\0" + bytes(31)
"""How a peer of ZeroMQ without keys begins."""

Frames = list[bytes]


def hostile_messages(draw: random.Random) -> Iterator[Frames]:
    """Messages that are almost ours: every field that a stranger can fill in, filled in wrongly."""
    yield encode(messages.Hello(client=4, place="x", slots=1))  # there are four clients: 0 to 3
    yield encode(messages.Hello(client=999_999, place="x" * 64, slots=4096))
    yield encode(messages.Hello(client=0, place="elsewhere", slots=1))  # has joined already
    for run in ("", "0" * 32, f"{draw.getrandbits(32):08x}"):
        yield encode(messages.Failure(run=run, round=0, error="stop everything"))
        yield encode(
            messages.Result(run=run, round=draw.randrange(40), attempt=0, metrics={"tested": 1e300}, seconds={})
        )
        yield encode(
            messages.Ready(
                run=run, num_train=1, num_test=1, num_parameters=1 << 60, start_seconds=0, pss_bytes=1 << 60
            )
        )
    yield encode(messages.Stop(reason="stop"))
    yield encode(messages.Work(run="", round=1, attempt=0, slot=0, train=True, evaluate=True, save=True, keep=-1))
    arrays = pack({"weights": np.ones(4000, np.float32)}, {"weights": "parameters"})
    yield encode(messages.Result(run="", round=1, attempt=0, metrics={}, seconds={}), arrays)
    # What our own encoder would never write.
    hello = {"v": 1, "kind": "hello", "client": 1, "place": "x", "slots": 1}
    for change in (
        {"v": 2},
        {"v": "1" * 9000},
        {"client": 10**15},
        {"client": -1},
        {"slots": 0},
        {"slots": 1 << 60},
        {"place": "x" * 70},
        {"kind": "goodbye"},
        {"extra": 1},
        {"arrays": [["a", "p", "f4", [1 << 30, 1 << 30]]]},
        {"arrays": [["a", "p", "O", [1]]]},
        {"arrays": [["a", "p", "f4", [2]]] * 40},
    ):
        yield [msgpack.packb(hello | change), b"\0" * 8]
        yield [msgpack.packb(hello | change)]
    yield [b"\x91" * 60_000]  # a nest of lists
    yield [b"\xdf\xff\xff\xff\xff"]  # a map of four thousand million entries
    yield [b"x" * 70_000]
    yield [b""] * 50


def random_messages(draw: random.Random, count: int) -> Iterator[Frames]:
    valid = encode(messages.Hello(client=1, place="x", slots=1))[0]
    for _ in range(count):
        yield [draw.randbytes(draw.choice([0, 1, 2, 10, 300])) for _ in range(draw.randrange(1, 5))]
        broken = bytearray(valid)
        for _ in range(draw.randrange(1, 4)):
            broken[draw.randrange(len(broken))] = draw.randrange(256)
        broken[broken.find(b"client") + 6] = 0x7F  # whatever else it says, nobody has the number 127
        yield [bytes(broken)]


class Attacker:
    """Strangers who connect to a server in all the wrong ways."""

    def __init__(self, address: str, seed: int):
        self._address = address
        self._draw = random.Random(seed)
        self._context = zmq.Context()
        self._dealers: list[zmq.Socket[bytes]] = []
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._open: list[socket.socket] = []

    def close(self) -> None:
        for connection in self._open:
            connection.close()
        self._context.destroy(linger=0)

    def send_bytes(self) -> None:
        """Connections that speak no ZMTP, or stop speaking it; some stay open and say nothing more."""
        for content in (
            b"",
            b"GET / HTTP/1.1\r\n\r\n",
            self._draw.randbytes(64),
            self._draw.randbytes(5000),
            GREETING[: self._draw.randrange(64)],
            GREETING,
            GREETING + self._draw.randbytes(200),
            GREETING + b"\x04\x19\x05READY" + self._draw.randbytes(19),
            GREETING + b"\x02" + b"\xff" * 8,  # a frame that claims to be 2⁶⁴ bytes long
            GREETING + b"\x00\xff" + self._draw.randbytes(10),
        ):
            connection = socket.create_connection(self._target, timeout=10)
            with contextlib.suppress(OSError):
                connection.sendall(content)
            if self._draw.random() < 0.5:
                connection.close()
            else:
                self._open.append(connection)

    def send_messages(self, frames: Iterator[Frames]) -> None:
        """Each from a stranger of its own or from one who has talked before."""
        for message in frames:
            if not self._dealers or self._draw.random() < 0.2:
                dealer = self._context.socket(zmq.DEALER)
                dealer.linger = 0
                dealer.connect(self._address)
                self._dealers.append(dealer)
            with contextlib.suppress(zmq.ZMQError):
                self._draw.choice(self._dealers).send_multipart(message, zmq.NOBLOCK)

    def send_too_much(self) -> None:
        """A frame above the limit, and a hello whose sender does not wait for the answer."""
        for _ in range(5):
            dealer = self._context.socket(zmq.DEALER)
            dealer.connect(self._address)
            dealer.send_multipart([b"x", bytes(2 << 20)])
            dealer.close(linger=500)
            dealer = self._context.socket(zmq.DEALER)
            dealer.connect(self._address)
            for _ in range(100):
                dealer.send_multipart(encode(messages.Hello(client=77, place="x", slots=1)))
            dealer.close(linger=500)

    def do_everything(self) -> None:
        self.send_bytes()
        self.send_messages(hostile_messages(self._draw))
        self.send_messages(random_messages(self._draw, 100))
        self.send_too_much()


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
    noisy.socket._socket.send_multipart([b"\xc1 this is not msgpack"])
    noisy.say_hello()  # as after a broken connection: the server asks again
    again = noisy.next_work()
    assert again is not None and again[0].round == work.round and again[0].attempt > work.attempt
    return again[0].attempt
