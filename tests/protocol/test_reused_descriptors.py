"""A descriptor's number is used again while messages that came through its old owner still wait to be read."""

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from commands import PATIENCE_SECONDS

from protocol.client_socket import process_of
from protocol.connections import Connection
from protocol.messages import Hello
from protocol.transport import Arrived, Event, Lost, ServerSocket


@pytest.fixture
def hello() -> Callable[[int], Hello]:
    return lambda client: Hello(client=client, place="here", slots=1)


def visit(spawn: Callable[[], Any], server: ServerSocket, *words: Hello) -> None:
    """A peer that connects, speaks and dies before the server looks."""
    peer = spawn()
    peer.connect(server.address, 7)
    peer.wait_for_connects(1)
    for message in words:
        peer.send(message)
    peer.close()  # waits until all was handed over
    peer.kill()


def arrive(peer: Any, server: ServerSocket, greeting: Hello, greeted: int) -> tuple[Arrived, list[Event]]:
    """As a client does: it greets on each connection, until a greeting has come through the one that is there."""
    events: list[Event] = []
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        events += server.events(0.05)
        if (connects := peer.look()) > greeted:
            greeted = connects
            peer.send(greeting)
        for event in events:
            if isinstance(event, Arrived) and event.route == peer.route() and event.connection.is_open:
                return event, events
    raise AssertionError(f"only {events} came")


@pytest.mark.parametrize("num_words", [0, 1, 3])
def test_nobody_is_taken_for_another(
    num_words: int,
    spawn: Callable[[], Any],
    serve: Callable[..., ServerSocket],
    collect: Callable[[ServerSocket, int], list[Event]],
    settle: Callable[[ServerSocket, Connection], None],
    hello: Callable[[int], Hello],
) -> None:
    """Two have had one number and neither was heard of: the living is hung up on, and comes again."""
    living = spawn()
    server = serve()
    visit(spawn, server, *[hello(8)] * num_words)
    living.connect(server.address, 7)
    living.wait_for_connects(1)
    living.send(hello(7))
    arrived, events = arrive(living, server, hello(7), greeted=1)
    assert all(event.route == arrived.route for event in events if isinstance(event, Arrived)), "taken for another"
    dead, confused, *_ = server.connections.all
    assert dead.fd == confused.fd, "the number was not used again"
    assert arrived.decoded.message == hello(7)
    assert arrived.connection is server.connections.all[-1] and arrived.connection.is_open
    assert (dead.route, dead.client) == (None, None)
    settle(server, arrived.connection)


def test_who_said_nothing_is_forgotten_once_all_was_read(
    spawn: Callable[[], Any],
    serve: Callable[..., ServerSocket],
    collect: Callable[[ServerSocket, int], list[Event]],
    until: Callable[[Callable[[], Any]], None],
    hello: Callable[[int], Hello],
) -> None:
    living = spawn()
    server = serve()
    visit(spawn, server)
    until(lambda: not list(server.events(0.05)) and [c for c in server.connections.all if c.ended])
    assert not list(server.events(0.0))
    route = living.connect(server.address, 7)
    living.send(hello(7))
    (arrived,) = collect(server, 1)
    assert isinstance(arrived, Arrived) and arrived.route == route
    assert arrived.connection.fd == server.connections.all[0].fd, "the number was not used again"


@pytest.mark.parametrize(
    "noise", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, bytes(100)], ids=["nothing", "http", "ones", "zeros"]
)
def test_a_port_scanner_keeps_nobody_out(
    noise: bytes,
    spawn: Callable[[], Any],
    serve: Callable[..., ServerSocket],
    hello: Callable[[int], Hello],
) -> None:
    """ZeroMQ does not always say that a handshake failed: the scanner may have been a peer with last words."""
    living = spawn()
    server = serve()
    host, port = server.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as scanner:
        scanner.sendall(noise)
        with contextlib.suppress(OSError):  # zeros make it hang up at once
            scanner.shutdown(socket.SHUT_WR)
            while scanner.recv(1024):  # until the server's end is closed, and its number free
                pass
        living.connect(server.address, 7)
        living.wait_for_connects(1)
        living.send(hello(7))
        arrived, events = arrive(living, server, hello(7), greeted=1)
    noisy, next_one, *_ = server.connections.all
    assert noisy.fd == next_one.fd, "the number was not used again"
    assert arrived.decoded.message == hello(7)
    assert [event.route for event in events if isinstance(event, Arrived)] == [arrived.route]


def test_two_reconnects_in_a_row_while_the_server_is_busy(
    spawn: Callable[[], Any],
    serve: Callable[..., ServerSocket],
    collect: Callable[[ServerSocket, int], list[Event]],
    hello: Callable[[int], Hello],
) -> None:
    """Numbers are used again each time; what was lost is never the route that is there."""
    peer = spawn()
    server = serve()
    peer.connect(server.address, 7)
    peer.send(hello(7))
    (first,) = collect(server, 1)
    for connects in (2, 3):
        peer.wait_for_connects(connects - 1)
        peer.cut(server.address)
        peer.wait_for_connects(connects)
        peer.send(hello(7))
    _, events = arrive(peer, server, hello(7), greeted=3)
    lost = [event.route for event in events if isinstance(event, Lost)]
    assert first.route in lost and peer.route() not in lost
    assert {process_of(route) for route in lost} == {process_of(peer.route())}
    current = server.connections.of_route(peer.route())
    assert current is not None and current.is_open and current is server.connections.all[-1]
    server.send(peer.route(), hello(7))
    assert peer.receive()[0] == hello(7)
