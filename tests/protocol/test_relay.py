"""The relay: every byte, in order, never before its time; a cut is a cut, and an end an end.

How exact it is in time is for benchmarks/relay.py to say.
"""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np
import pytest

from protocol.relay import Relay, Shape, Shapes

WAIT_SECONDS = 30


@contextmanager
def relayed(*links: Shapes) -> Iterator[tuple[Relay, socket.socket]]:
    """A relay at work, and the socket on which the server listens."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(WAIT_SECONDS)
        relay, over = Relay(f"tcp://127.0.0.1:{server.getsockname()[1]}", links), threading.Event()
        thread = threading.Thread(target=relay.serve, args=(over.is_set,))
        thread.start()
        try:
            yield relay, server
        finally:
            over.set()
            thread.join()
            relay.close()


def joined(relay: Relay, server: socket.socket, client: int = 0) -> tuple[socket.socket, socket.socket]:
    """The two ends of a client's connection."""
    port = int(relay.address.rpartition(":")[2]) + client
    near = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
    far, _ = server.accept()
    far.settimeout(WAIT_SECONDS)
    return near, far


def received(end: socket.socket, number: int) -> bytes:
    parts = b""
    while len(parts) < number and (part := end.recv(1 << 16)):
        parts += part
    return parts


def wait_until_known(relay: Relay, is_true: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not all(getattr(books, is_true) for books in relay.books) and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize("shape", [None, Shape(2e6, 0.03, 0.02)])
def test_everything_arrives_in_order_both_ways_and_the_books_agree(shape: Shape | None) -> None:
    content = np.random.default_rng(1).bytes(200_000)
    with relayed((shape, shape)) as (relay, server):
        near, far = joined(relay, server)
        sender = threading.Thread(target=near.sendall, args=(content,))
        sender.start()
        far.sendall(content[:7])
        assert received(near, 7) == content[:7]
        assert received(far, len(content)) == content
        sender.join()
        near.close()
        assert far.recv(1) == b"", "an end is passed on, behind all that came before it"
        far.close()
        deadline = time.monotonic() + WAIT_SECONDS
        while relay._ends and time.monotonic() < deadline:
            time.sleep(0.01)
        assert relay.books[0].bytes_in == relay.books[0].bytes_out == {"up": 200_000, "down": 7}
        assert relay.books[0].agrees and not relay.books[0].was_cut


def test_nothing_comes_before_its_time_and_ways_do_not_share_their_rates() -> None:
    slow, slower = Shape(50_000, 0.1), Shape(25_000)
    with relayed((slow, slower), (None, None)) as (relay, server):
        near, far = joined(relay, server)
        started = time.monotonic()
        near.sendall(bytes(10_000))
        far.sendall(bytes(10_000))
        received(far, 10_000)
        up = time.monotonic() - started
        received(near, 10_000)
        down = time.monotonic() - started
        assert up >= 10_000 / 50_000 + 0.1 and down >= 10_000 / 25_000
        other_near, other_far = joined(relay, server, client=1)
        other_near.sendall(b"x")
        assert other_far.recv(1) == b"x"
        for end in (near, far, other_near, other_far):
            end.close()


def test_a_sender_feels_the_link() -> None:
    """What has not left stays with the sender, but for what the kernel holds."""
    with relayed((Shape(1000), None)) as (relay, server):
        near, far = joined(relay, server)
        near.settimeout(0.5)
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 50_000_000:
                sent += near.send(bytes(1 << 16))
        assert relay.books[0].bytes_in["up"] < 100_000
        near.close()
        far.close()


def test_a_connection_that_is_cut_is_cut_on_the_other_side_too() -> None:
    with relayed((None, None)) as (relay, server):
        near, far = joined(relay, server)
        near.sendall(b"x")
        assert far.recv(1) == b"x"
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        near.close()
        with pytest.raises(ConnectionResetError):
            far.recv(1)
        wait_until_known(relay, "was_cut")
        assert relay.books[0].was_cut and relay.books[0].agrees
        far.close()


def test_without_a_server_whoever_comes_is_sent_away() -> None:
    with relayed((None, None)) as (relay, server):
        server.close()
        with socket.create_connection(("127.0.0.1", int(relay.address.rpartition(":")[2])), timeout=5) as near:
            assert near.recv(1) == b""
