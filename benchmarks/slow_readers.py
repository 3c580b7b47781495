"""What a server's memory does when some of its clients do not read, and whether the others notice.

    python -m benchmarks.slow_readers [--clients 50] [--silent 10] [--megabytes 20] [--rounds 8] [--curve]

In a round every client, a process of its own, is sent one array, a new one each round, and says that it came. Some
are stopped after they have joined: their kernels take what fits into a buffer, and then nothing. The server asks
them in every round as if nothing were wrong, until ZeroMQ takes no more for them; then they are hung up on.

Aim: memory stays within five messages, however many rounds there are, plus with CURVE one for each silent client.
"""

import argparse
import os
import signal
import time

import numpy as np
import psutil
import zmq

from benchmarks._common import machine_load, show, workers
from benchmarks._ports import free_port
from protocol.client_socket import ClientSocket
from protocol.codec import pack
from protocol.errors import PeerUnreachable
from protocol.keys import KeyPair
from protocol.messages import Hello, Setup
from protocol.transport import Arrived, ServerSocket

MEGABYTE = 1_000_000
_PATIENCE_SECONDS = 300.0


def live(address: str, client: int, keys: KeyPair | None, server_key: bytes | None, *, silent: bool) -> int:
    """A client's process: says hello, and then that something came, each time."""
    end = ClientSocket(address, client, keys=keys, server_key=server_key)
    num_greetings = 0
    while True:
        decoded = end.receive(1.0)
        if end.num_connects > num_greetings:
            num_greetings = end.num_connects
            end.send(Hello(client=client, place="here", slots=1))
        if decoded is not None:
            if silent:
                os.kill(os.getpid(), signal.SIGSTOP)
            end.send(Setup(run="came"))


def gather(server: ServerSocket, routes: set[bytes], what: type, count: int) -> None:
    """Until so many have said it."""
    end, found = time.monotonic() + _PATIENCE_SECONDS, 0
    while found < count:
        for event in server.events(0.1):
            if isinstance(event, Arrived) and isinstance(event.decoded.message, what):
                found += 1
                routes.add(event.route)
        if time.monotonic() > end:
            raise SystemExit(f"only {found} of {count} clients answered")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--silent", type=int, default=10)
    parser.add_argument("--megabytes", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--curve", action="store_true")
    arguments = parser.parse_args()

    address = f"tcp://127.0.0.1:{free_port()}"
    own, *pairs = (KeyPair(*zmq.curve_keypair()) for _ in range(arguments.clients + 1))
    mains = [
        lambda client=client: live(
            address,
            client,
            pairs[client] if arguments.curve else None,
            own.public if arguments.curve else None,
            silent=client < arguments.silent,
        )
        for client in range(arguments.clients)
    ]
    with workers(mains):  # forked before this process has a ZeroMQ context
        allowed = {pair.public.decode(): client for client, pair in enumerate(pairs)}
        server = ServerSocket(address, **({"keys": own, "allowed": allowed} if arguments.curve else {}))
        try:
            play(server, arguments)
        finally:
            server.close()


def play(server: ServerSocket, arguments: argparse.Namespace) -> None:
    routes: set[bytes] = set()
    gather(server, routes, Hello, arguments.clients)
    reading = [route for route in routes if int(route.partition(b".")[0]) >= arguments.silent]
    silent = [route for route in routes if route not in reading]
    for route in silent:
        server.send(route, Setup(run="stop"))
    process, rows = psutil.Process(), []
    before, num_bytes = process.memory_info().rss, int(arguments.megabytes * MEGABYTE)
    for round in range(arguments.rounds):
        content = np.full(num_bytes, round % 251, np.uint8)
        parcel = pack({"a": content}, {"a": "prototypes"})
        started, refused = time.monotonic(), 0
        for route in (*silent, *reading):
            try:
                server.send(route, Setup(run="round"), parcel)
            except PeerUnreachable:
                refused += 1
                server.hang_up(route)
        gather(server, routes, Setup, len(reading))
        seconds, grown = time.monotonic() - started, process.memory_info().rss - before
        del content, parcel
        memory = (f"{grown / MEGABYTE:.0f} MB", f"{grown / num_bytes:.1f}")
        rows.append([str(round), f"{seconds:.2f} s", *memory, str(refused)])
    title = f"{arguments.clients} clients, {arguments.silent} of them silent, {arguments.megabytes:g} MB to each"
    headings = ("round", "until all others have answered", "memory beyond the start", "in messages", "hung up on")
    show(f"{title}{', CURVE' if arguments.curve else ''}", headings, rows)
    print(machine_load())


if __name__ == "__main__":
    main()
