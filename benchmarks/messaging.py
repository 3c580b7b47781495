"""What our messages cost beside a bare ZeroMQ exchange of the same frames.

    python -m benchmarks.messaging [--clients 20] [--rounds 30] [--blocks 5]

In a round every client, a process of its own, gets one array (100 × 512 float32, the prototypes of CIFAR-100)
and sends one back. Ours encodes, decodes, checks the contract on both sides, copies at the border and keeps
the books to the byte; the bare exchange hands the same frames over and does nothing with them. Both take
turns in blocks of rounds, so that other work on the machine hits them alike.

Aims: at most 1.5 times the bare exchange, at most 0.15 % more bytes on the wire than the arrays have, and less
than 20 ms a round.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import zmq

from benchmarks._common import machine_load, show, workers
from benchmarks._ports import free_port
from fedsim.contract import Contract, Field, Payload
from nodes.border import Border, Passage
from nodes.launchers.processes import keep_freed_memory
from nodes.server.accounts import Accounts
from protocol import messages
from protocol.client_socket import ClientSocket
from protocol.codec import encode
from protocol.transport import Arrived, ServerSocket

NUM_CLASSES, FEATURE_DIM = 100, 512
RUN = "b" * 8
WARM_UP_ROUNDS = 3
FIELDS = {"prototypes": Field(Payload.PROTOTYPES, "C K")}
RESULT = messages.Result(
    run=RUN,
    round=123,
    attempt=0,
    metrics={"correct": 301.0, "tested": 412.0, "loss": 0.123456},
    seconds={"receive": 0.01, "evaluate": 0.1, "train": 1.2, "upload": 0.01},
)
WORK = messages.Work(run=RUN, round=123, attempt=0, slot=1, train=True, evaluate=True, save=False, keep=-1)


def make_border() -> Border:
    return Border(Contract(up=FIELDS, down=FIELDS), {"C": NUM_CLASSES, "K": FEATURE_DIM})


def make_prototypes() -> dict[str, np.ndarray]:
    values = np.random.default_rng(0).normal(size=(NUM_CLASSES, FEATURE_DIM))
    return {"prototypes": values.astype(np.float32)}


class Ours:
    """A server and clients as in `nodes`, without events, state machine and learning."""

    def __init__(self, address: str, num_clients: int):
        self.socket = ServerSocket(address)
        self.accounts = Accounts(self.socket)
        self._border = make_border()
        self._down = make_prototypes()
        self._routes: dict[int, bytes] = {}
        while len(self._routes) < num_clients:
            for event in self.socket.events(1.0):
                if isinstance(event, Arrived) and isinstance(event.decoded.message, messages.Hello):
                    client = event.decoded.message.client
                    self._routes[client] = event.route
                    event.connection.client = client
        self._clients = {route: client for client, route in self._routes.items()}

    def round(self) -> None:
        parcel = self._border.outgoing(self._down, Passage("down"))
        for client, route in self._routes.items():
            self.accounts.sent(self.socket.send(route, WORK, parcel), client, "method")
        uploads = {}
        while len(uploads) < len(self._routes):
            for event in self.socket.events(1.0):
                if isinstance(event, Arrived) and isinstance(event.decoded.message, messages.Result):
                    client = self._clients[event.route]
                    self.accounts.received(event.receipt, client, "method")
                    uploads[client] = self._border.incoming(
                        event.decoded.arrays, Passage("up", client, event.decoded.message.round)
                    )

    @staticmethod
    def client(address: str, client: int) -> int:
        socket, border, arrays = ClientSocket(address, client), make_border(), make_prototypes()
        while not socket.num_connects:
            socket.receive(0.1)
        socket.send(messages.Hello(client=client, place="here", slots=1))
        while True:
            decoded = socket.receive(1.0)
            if decoded is not None and isinstance(decoded.message, messages.Work):
                round = decoded.message.round
                border.incoming(decoded.arrays, Passage("down", client, round))
                socket.send(RESULT, border.outgoing(arrays, Passage("up", client, round)))


class Bare:
    """The same frames through the same kinds of sockets, as short as it can be written."""

    def __init__(self, address: str, num_clients: int):
        self.socket = zmq.Context().socket(zmq.ROUTER)
        self.socket.bind(address)
        self._frames = encode(WORK, make_border().outgoing(make_prototypes(), Passage("up")))
        self._routes = [self.socket.recv_multipart()[0] for _ in range(num_clients)]

    def round(self) -> None:
        for route in self._routes:
            self.socket.send_multipart([route, *self._frames], copy=False)
        for _ in self._routes:
            self.socket.recv_multipart(copy=False)

    @staticmethod
    def client(address: str, client: int) -> int:
        socket = zmq.Context().socket(zmq.DEALER)
        socket.connect(address)
        frames = encode(RESULT, make_border().outgoing(make_prototypes(), Passage("up")))
        socket.send(b"hello")
        while True:
            socket.recv_multipart(copy=False)
            socket.send_multipart(frames, copy=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30, help="rounds in a block")
    parser.add_argument("--blocks", type=int, default=5, help="blocks of each kind")
    arguments = parser.parse_args()
    keep_freed_memory()  # as every node does
    ours_at, bare_at = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    mains = [lambda i=i: Ours.client(ours_at, i) for i in range(arguments.clients)]
    mains += [lambda i=i: Bare.client(bare_at, i) for i in range(arguments.clients)]
    with workers(mains):  # forked before this process has a ZeroMQ context
        ours, bare = Ours(ours_at, arguments.clients), Bare(bare_at, arguments.clients)
        for _ in range(WARM_UP_ROUNDS):
            bare.round()
            ours.round()
        ours_seconds, bare_seconds = [], []
        for _ in range(arguments.blocks):
            bare_seconds += _timed(bare.round, arguments.rounds)
            ours_seconds += _timed(ours.round, arguments.rounds)
        total = ours.accounts.ledger.total()
        audits = [connection.audit() for connection in ours.socket.connections.all]
    _report(ours_seconds, bare_seconds, arguments.clients)
    extra = total.wire_bytes / total.payload_bytes - 1
    print(f"bytes on the wire beyond the arrays: {extra:.3%} (aim: at most 0.15 %)")
    num_agree = sum(audit.agrees for audit in audits)
    print(f"the kernel agrees on {num_agree} of {len(audits)} connections; {machine_load()}")


def _timed(play: Callable[[], None], num_rounds: int) -> list[float]:
    seconds = []
    for _ in range(num_rounds):
        started = time.perf_counter()
        play()
        seconds.append(time.perf_counter() - started)
    return seconds


def _report(ours: list[float], bare: list[float], num_clients: int) -> None:
    rows = []
    for name, pick in (("median", statistics.median), ("minimum", min)):
        mine, theirs = pick(ours), pick(bare)
        rows.append((name, f"{1000 * theirs:.2f} ms", f"{1000 * mine:.2f} ms", f"{mine / theirs:.2f}"))
    title = f"{num_clients} clients, {NUM_CLASSES} × {FEATURE_DIM} float32 down and up, {len(ours)} rounds each"
    show(title, ("a round", "bare ZeroMQ", "fedsim", "ratio (aim 1.5)"), rows)


if __name__ == "__main__":
    main()
