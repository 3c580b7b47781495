"""A descriptor's number is used again while messages that came through its old owner still wait to be read."""

from collections.abc import Callable
from typing import Any

import pytest

from protocol.connections import Connection
from protocol.messages import Hello
from protocol.transport import Arrived, Event, Lost, ServerSocket
from protocol.wire import client_handshake_bytes

HANDSHAKE = client_handshake_bytes(b"7.0123456789abcdef")


@pytest.fixture
def hello() -> Callable[[int], Hello]:
    return lambda client: Hello(client=client, place="here", slots=1)


def visit(spawn: Callable[[], Any], server: ServerSocket, *words: Hello) -> None:
    """A peer that connects, speaks and dies before the server looks."""
    peer = spawn()
    peer.connect(server.address, words[0].client)
    for message in words:
        peer.send(message)
    peer.wait_for_connects(1)
    peer.close()  # waits until all was handed over
    peer.kill()


@pytest.mark.parametrize("num_words", [1, 3])
@pytest.mark.parametrize("dead", [7, 8])
def test_the_living_is_not_taken_for_the_dead(
    num_words: int,
    dead: int,
    spawn: Callable[[], Any],
    serve: Callable[..., ServerSocket],
    collect: Callable[[ServerSocket, int], list[Event]],
    settle: Callable[[ServerSocket, Connection], None],
    hello: Callable[[int], Hello],
) -> None:
    living = spawn()
    server = serve()
    visit(spawn, server, *[hello(dead)] * num_words)
    route = living.connect(server.address, 7)
    living.send(hello(7))
    living.wait_for_connects(1)
    events = collect(server, num_words + 2)
    (ghost,) = {event.route for event in events if isinstance(event, Arrived)} - {route}
    first, second = server.connections.all
    assert first.fd == second.fd, "the number was not used again"
    assert (server.connections.of_route(ghost), server.connections.of_route(route)) == (first, second)
    assert second.is_open and not first.is_open
    assert [event for event in events if isinstance(event, Lost)] == [Lost(ghost)]
    assert first.received_bytes == num_words * (second.received_bytes - HANDSHAKE) + HANDSHAKE
    settle(server, second)


def test_a_visitor_whose_words_are_read_second_does_not_take_the_connection(
    spawn: Callable[[], Any],
    serve: Callable[..., ServerSocket],
    collect: Callable[[ServerSocket, int], list[Event]],
) -> None:
    """As ZeroMQ may well do with several peers: the newest is read first."""
    living = spawn()
    server = serve()
    connections = server.connections
    route = living.connect(server.address, 7)
    living.send(Hello(client=7, place="here", slots=1))
    (arrived,) = collect(server, 1)
    assert isinstance(arrived, Arrived)
    # What `take_events` would have noted: a visitor had the number before and was gone before we looked.
    visitor = Connection(9, arrived.connection.fd, None, False, ended=True)
    arrived.connection.unheard = visitor
    assert connections.of_message(b"visitor", arrived.connection.fd, 5000) is visitor
    assert connections.of_route(route) is arrived.connection and arrived.connection.route == route
    assert connections.drain() == [b"visitor"]
