"""Strangers who talk to a live server in all the wrong ways."""

import contextlib
import random
import socket
from collections.abc import Iterator

import msgpack
import numpy as np
import zmq

from protocol import messages
from protocol.codec import encode, pack

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + b"\0" + bytes(31)
"""How a peer of ZeroMQ without keys begins."""

_LAST = 123_456  # nobody's number, and the answer that there is no such client is the last one

Frames = list[bytes]


def hostile_messages(draw: random.Random) -> Iterator[Frames]:
    """Messages that are almost ours: every field that a stranger can fill in, filled in wrongly."""
    yield encode(messages.Hello(client=4, place="x", slots=1))  # there are at most four clients: 0 to 3
    yield encode(messages.Hello(client=999_999, place="x" * 64, slots=4096))
    yield encode(messages.Hello(client=0, place="elsewhere", slots=1))  # has joined already
    for run in ("", "0" * 32, f"{draw.getrandbits(32):08x}"):
        yield encode(messages.Failure(run=run, round=0, error="stop everything"))
        round = draw.randrange(40)
        yield encode(messages.Result(run=run, round=round, attempt=0, metrics={"tested": 1e300}, seconds={}))
        yield encode(messages.Delivered(run=run, round=round, attempt=0))
        yield encode(messages.Done(run=run, round=round, attempt=0))
        yield encode(
            messages.Ready(
                run=run, num_train=1, num_test=1, num_parameters=1 << 60, start_seconds=0, pss_bytes=1 << 60
            )
        )
    yield encode(messages.Stop(reason="stop"))
    yield encode(messages.Turn(run="", round=1, attempt=0, slot=0))
    yield encode(messages.Work(run="", round=1, attempt=0, slot=0, train=True, evaluate=True, save=True, keep=-1))
    arrays = pack({"weights": np.ones(4000, np.float32)}, {"weights": "parameters"})
    yield encode(messages.Result(run="", round=1, attempt=0, metrics={}, seconds={}), arrays)
    # What our own encoder would never write.
    hello = {"v": messages.VERSION, "kind": "hello", "client": 1, "place": "x", "slots": 1}
    for change in (
        {"v": messages.VERSION + 1},
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
    """Uses sockets of its own: none may exist in a process that still forks."""

    def __init__(self, address: str, seed: int):
        self._address = address
        self._draw = random.Random(seed)
        self._context = zmq.Context()
        self._dealers: list[zmq.Socket[bytes]] = []
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._open: list[socket.socket] = []

    def close(self, linger_ms: int = 0) -> None:
        for connection in self._open:
            connection.close()
        self._context.destroy(linger=linger_ms)

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
                self._dealers.append(self._dealer())
            with contextlib.suppress(zmq.ZMQError):
                self._draw.choice(self._dealers).send_multipart(message, zmq.NOBLOCK)

    def send_too_much(self) -> None:
        """A frame above the limit, and a hello whose sender does not wait for the answer."""
        for _ in range(5):
            dealer = self._dealer()
            dealer.send_multipart([b"x", bytes(2 << 20)])
            dealer.close(linger=500)
            dealer = self._dealer()
            for _ in range(100):
                dealer.send_multipart(encode(messages.Hello(client=77, place="x", slots=1)))
            dealer.close(linger=500)

    def do_everything(self) -> None:
        self.send_bytes()
        self.send_messages(hostile_messages(self._draw))
        self.send_messages(random_messages(self._draw, 100))
        self.send_too_much()

    def flood(self, count: int, patience_seconds: float, strangers: int = 8) -> None:
        """As many as this, unless the server takes none for a while; until it has taken the last one."""
        kinds = [*hostile_messages(self._draw), *random_messages(self._draw, 200)]
        kinds = [frames for frames in kinds if sum(map(len, frames)) < 10_000]
        dealers = [self._dealer() for _ in range(strangers)]
        for dealer in dealers:
            dealer.sndtimeo = dealer.rcvtimeo = round(patience_seconds * 1000)
        with contextlib.suppress(zmq.Again):
            for _ in range(count):
                dealer = self._draw.choice(dealers)
                dealer.send_multipart(self._draw.choice(kinds))
                while dealer.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                    dealer.recv_multipart()
            # Who hangs up with an answer unread takes back all that the server has not read.
            for dealer in dealers:
                dealer.send_multipart(encode(messages.Hello(client=_LAST, place="x", slots=1)))
                while str(_LAST).encode() not in b"".join(dealer.recv_multipart()):
                    pass

    def _dealer(self) -> "zmq.Socket[bytes]":
        dealer = self._context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.connect(self._address)
        return dealer
