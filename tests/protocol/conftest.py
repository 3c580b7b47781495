"""Real peers for the tests of the wire: forked processes that do what they are told, under a deadline.

A process must not be forked while a ServerSocket with keys exists: the child would inherit the lock of an
authenticator thread that does not run in it. So a test first calls `spawn`, then `serve`.
"""

import contextlib
import multiprocessing
import os
import signal
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from cable import enter
from wire_samples import SETUP, borrowed, route_of, watch_of

from protocol.client_socket import ClientSocket
from protocol.codec import Decoded, pack
from protocol.connections import Connection
from protocol.messages import Message
from protocol.transport import Event, ServerSocket

DEADLINE_SECONDS = 60.0


class Remote:
    """What runs in the forked process; every method is called through a `Peer`."""

    client: ClientSocket
    raw: "zmq.Socket[bytes]"

    def connect(self, address: str, client: int, **options: Any) -> bytes:
        self.client = ClientSocket(address, client, **options)
        return route_of(self.client)

    def route(self) -> bytes:
        return route_of(self.client)

    def enter(self, holder: int) -> None:
        """Into the network namespace of another process, for good."""
        with Path(f"/proc/{holder}/ns/net").open() as namespace:
            enter(namespace.fileno())

    def send(self, message: Message, arrays: dict[str, np.ndarray] | None = None) -> None:
        arrays = arrays or {}
        self.client.send(message, pack(arrays, dict.fromkeys(arrays, "prototypes")))

    def receive(self, seconds: float = DEADLINE_SECONDS) -> tuple[Message, dict[str, np.ndarray]]:
        """The next message; its arrays are copied because they travel on through a pipe."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            decoded: Decoded | None = self.client.receive(0.2)
            if decoded is not None:
                return decoded.message, {name: array.copy() for name, array in decoded.arrays.items()}
        raise TimeoutError("no message came")

    def join(self, message: Message, seconds: float = DEADLINE_SECONDS) -> tuple[Message, dict[str, np.ndarray]]:
        """Say who we are and wait for an answer."""
        self.send(message)
        return self.receive(seconds)

    def num_connects(self) -> int:
        return self.client.num_connects

    def look(self) -> int:
        """Take note of what became of the connection; returns how many there have been."""
        assert self.client.receive(0.01) is None, "a message came that the test did not expect"
        return self.client.num_connects

    def wait_for_connects(self, count: int) -> None:
        end = time.monotonic() + DEADLINE_SECONDS
        while self.client.num_connects < count:
            assert self.client.receive(0.05) is None, "a message came that the test did not expect"
            assert time.monotonic() < end, f"{self.client.num_connects} connects"

    def compute_until_connected(self, count: int, greeting: Message) -> None:
        """Be busy until so many connections have been made, and greet on each."""
        end = time.monotonic() + DEADLINE_SECONDS
        with self.client.kept(lambda: self.client.send(greeting)):
            while self.client.num_connects < count:
                assert time.monotonic() < end, f"{self.client.num_connects} connects"
                time.sleep(0.01)

    def cut(self, address: str) -> None:
        """End the TCP connection as a broken network would, without telling ZeroMQ."""
        with borrowed(_descriptor(address)) as connection:
            connection.shutdown(socket.SHUT_RDWR)

    def watch(self, address: str) -> tuple[int, ...]:
        return watch_of(_descriptor(address))

    def close(self) -> None:
        self.client.close()

    def connect_raw(self, address: str, identity: bytes) -> None:
        """A DEALER that speaks ZeroMQ, but not our messages."""
        self.raw = zmq.Context().socket(zmq.DEALER)
        self.raw.linger = 0
        self.raw.identity = identity
        self.raw.connect(address)

    def send_raw(self, frames: list[bytes]) -> None:
        self.raw.send_multipart(frames)


def _descriptor(address: str) -> int:
    """This process's TCP connection to that address."""
    port = int(address.rpartition(":")[2])
    for fd in (int(entry.name) for entry in Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError), borrowed(fd) as connection:
            if connection.family == socket.AF_INET and connection.getpeername()[1] == port:
                return fd
    raise ConnectionError(f"no connection to {address}")


def _obey(pipe: Any, parents_end: Any) -> None:
    parents_end.close()  # so that the pipe ends, and with it this process, when the parent dies
    remote = Remote()
    while True:
        try:
            name, args, options = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((getattr(remote, name)(*args, **options), None))
        except Exception as error:
            pipe.send((None, error))


class Peer:
    """The handle of a forked process. `peer.connect(...)` runs `Remote.connect(...)` over there."""

    def __init__(self) -> None:
        fork = multiprocessing.get_context("fork")
        self._pipe, theirs = fork.Pipe()
        self.process = fork.Process(target=_obey, args=(theirs, self._pipe), daemon=True)
        with warnings.catch_warnings():
            # Newer Pythons warn of threads at a fork; numpy's are idle and the child does no linear algebra.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        theirs.close()

    def start(self, name: str, *args: Any, **options: Any) -> None:
        self._pipe.send((name, args, options))

    def result(self) -> Any:
        assert self._pipe.poll(DEADLINE_SECONDS + 5), "the peer does not answer"
        value, error = self._pipe.recv()
        if error is not None:
            raise error
        return value

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not hasattr(Remote, name):
            raise AttributeError(name)

        def call(*args: Any, **options: Any) -> Any:
            self.start(name, *args, **options)
            return self.result()

        return call

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid or 0, number)

    def kill(self) -> None:
        self.process.kill()  # also ends a stopped process
        self.process.join(DEADLINE_SECONDS)
        assert self.process.exitcode is not None, "the peer survived SIGKILL"


@pytest.fixture
def spawn() -> Iterator[Callable[[], Peer]]:
    peers: list[Peer] = []

    def start() -> Peer:
        peers.append(Peer())
        return peers[-1]

    try:
        yield start
    finally:
        for peer in peers:
            peer.kill()
            peer._pipe.close()
            peer.process.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., ServerSocket]]:
    servers: list[ServerSocket] = []

    def start(*addresses: str, **options: Any) -> ServerSocket:
        servers.append(ServerSocket(*(addresses or ("tcp://127.0.0.1:*",)), **options))
        return servers[-1]

    try:
        yield start
    finally:
        for server in servers:
            server.close()


@pytest.fixture
def meet(
    spawn: Callable[[], Peer], serve: Callable[..., ServerSocket], collect: Callable[..., list[Event]]
) -> Callable[..., tuple[Peer, ServerSocket, bytes]]:
    """`peer, server, route = meet()`: a peer whose first message has arrived; options are those of its socket."""

    def start(**options: Any) -> tuple[Peer, ServerSocket, bytes]:
        peer, server = spawn(), serve()
        route = peer.connect(server.address, 7, **options)
        peer.send(SETUP)
        collect(server, 1)
        return peer, server, route

    return start


@pytest.fixture
def collect() -> Callable[[ServerSocket, int], list[Event]]:
    """`collect(server, 3)`: the next events, at least three of them."""

    def take(server: ServerSocket, count: int) -> list[Event]:
        events: list[Event] = []
        end = time.monotonic() + DEADLINE_SECONDS
        while len(events) < count and time.monotonic() < end:
            events += server.events(0.1)
        assert len(events) >= count, f"only {events} came"
        return events

    return take


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], None]:
    """`until(condition)`: wait for what another process or the I/O thread does."""

    def wait(condition: Callable[[], Any]) -> None:
        end = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < end, "the condition never came true"
            time.sleep(0.01)

    return wait


@pytest.fixture
def settle() -> Callable[[ServerSocket, Connection], None]:
    """`settle(server, connection)`: our count and the kernel's agree as soon as the I/O thread is idle."""

    def wait(server: ServerSocket, connection: Connection) -> None:
        end = time.monotonic() + DEADLINE_SECONDS
        while not connection.audit().agrees:
            assert not list(server.events(0.01)), "a message came that the test did not expect"
            assert time.monotonic() < end, f"{connection.audit()} never agreed"

    return wait
