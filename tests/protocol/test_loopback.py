"""The doubles of both sockets do what the sockets do: the same calls, the same events, the same bytes."""

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pytest
from loopback import LoopbackClient, LoopbackServer
from wire_samples import SETUP, hello, parcel_of

from protocol import wire
from protocol.client_socket import ClientSocket, process_of
from protocol.codec import Buffer, Decoded, encode
from protocol.errors import DecodeError, PeerUnreachable
from protocol.limits import Limits
from protocol.messages import Stop
from protocol.transport import Arrived, Event, Lost, Rejected, ServerSocket

SMALL = Limits(max_header_bytes=200)
GARBAGE = [b"\xc1 this is not msgpack", b"1234"]

UP, DOWN = wire.client_handshake_bytes(b"3." + bytes(16) + b".0000"), wire.server_handshake_bytes()
"""What a connection has carried before the first message."""


def on_the_wire(frames: Sequence[Buffer]) -> int:
    return sum(wire.frame_bytes(len(frame)) for frame in frames)


class Pair:
    """A server and a client of either kind, with the network's slowness waited for."""

    def __init__(self, server: Any, client: Any, send_frames: Callable[[list[bytes]], None]):
        self.server, self.client, self.send_frames = server, client, send_frames

    def events(self, count: int) -> list[Event]:
        found: list[Event] = []
        end = time.monotonic() + 20
        while len(found) < count and time.monotonic() < end:
            found += self.server.events(0.05)
        return found

    def receive(self) -> Decoded:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if (decoded := self.client.receive(0.05)) is not None:
                return decoded
        raise TimeoutError


@pytest.fixture(params=["sockets", "doubles"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        if request.param == "doubles":
            server = stack.enter_context(closing(LoopbackServer(limits=SMALL)))
            client = stack.enter_context(closing(LoopbackClient(server, 3, limits=SMALL)))
            yield Pair(server, client, client.send_frames)
        else:
            real = stack.enter_context(closing(ServerSocket("tcp://127.0.0.1:*", limits=SMALL)))
            end = stack.enter_context(closing(ClientSocket(real.address, 3, limits=SMALL)))
            yield Pair(real, end, end._line._socket.send_multipart)


@pytest.mark.parametrize(("real", "double"), [(ServerSocket, LoopbackServer), (ClientSocket, LoopbackClient)])
def test_whatever_a_socket_can_do_its_double_can(real: type, double: type) -> None:
    calls = [name for name, _ in inspect.getmembers(real, inspect.isfunction) if not name.startswith("_")]
    assert calls
    for name in calls:
        assert inspect.signature(getattr(double, name)) == inspect.signature(getattr(real, name)), name


def test_a_message_goes_up(pair: Pair) -> None:
    parcel = parcel_of(a=np.arange(6.0).reshape(2, 3))
    pair.client.send(hello(3), parcel)
    (arrived,) = pair.events(1)
    assert isinstance(arrived, Arrived) and arrived.decoded.message == hello(3) and arrived.key_owner is None
    np.testing.assert_array_equal(arrived.decoded.arrays["a"], [[0, 1, 2], [3, 4, 5]])
    assert not arrived.decoded.arrays["a"].flags.writeable
    assert arrived.route.startswith(b"3.") and len(arrived.route) == 23
    size = on_the_wire(encode(hello(3), parcel))
    assert (arrived.receipt.message, len(arrived.receipt.parts), arrived.receipt.wire_bytes) == ("hello", 2, size)
    connection = pair.server.connections.of_route(arrived.route)
    assert arrived.connection is connection and connection in pair.server.connections.all
    assert (connection.received_bytes, connection.sent_bytes) == (UP + size, DOWN)
    assert connection.is_open and connection.client is None


def test_a_message_goes_down(pair: Pair) -> None:
    pair.client.send(SETUP)
    (arrived,) = pair.events(1)
    parcel = parcel_of(a=np.zeros(300))
    receipt = pair.server.send(arrived.route, Stop(reason="enough"), parcel)
    assert (receipt.message, receipt.wire_bytes) == ("stop", on_the_wire(encode(Stop(reason="enough"), parcel)))
    decoded = pair.receive()
    assert decoded.message == Stop(reason="enough") and decoded.arrays["a"].shape == (300,)
    assert pair.client.connected and pair.client.num_connects == 1
    assert arrived.connection.sent_bytes == DOWN + receipt.wire_bytes
    audit = arrived.connection.audit()
    assert audit.agrees and audit.kernel is not None


def test_what_is_no_message_is_rejected_and_counted(pair: Pair) -> None:
    pair.send_frames(GARBAGE)
    (rejected,) = pair.events(1)
    assert isinstance(rejected, Rejected) and rejected.route.startswith(b"3.")
    assert "header is not msgpack" in str(rejected.error)
    assert (rejected.receipt.message, rejected.receipt.wire_bytes) == ("rejected", on_the_wire(GARBAGE))
    assert rejected.connection is not None and rejected.connection.received_bytes == UP + on_the_wire(GARBAGE)


def test_both_ends_keep_to_their_limits(pair: Pair) -> None:
    pair.client.send(Stop(reason="x" * 300))
    (rejected,) = pair.events(1)
    assert isinstance(rejected, Rejected) and "header of " in str(rejected.error)
    pair.server.send(rejected.route, Stop(reason="x" * 300))
    with pytest.raises(DecodeError, match="header of "):
        pair.receive()


def test_last_words_come_before_the_loss_and_nothing_is_sent_after_it(pair: Pair) -> None:
    pair.client.send(SETUP)
    pair.client.send(Stop(reason="bye"))
    pair.client.close()
    first, last, lost = pair.events(3)
    assert isinstance(first, Arrived) and isinstance(last, Arrived) and lost == Lost(first.route)
    assert not first.connection.is_open
    with pytest.raises(PeerUnreachable, match=first.route.decode()):
        pair.server.send(first.route, SETUP)
    with pytest.raises(PeerUnreachable, match="nobody"):
        pair.server.send(b"nobody", SETUP)


def test_a_double_that_was_cut_off_comes_back_on_a_new_connection() -> None:
    """As a socket does by itself; here the test says when. What it had to say meanwhile is lost."""
    server = LoopbackServer()
    client = LoopbackClient(server, 3)
    client.send(SETUP)
    (before,) = server.events(0)
    client.cut()
    client.send(SETUP)
    assert list(server.events(0)) == [Lost(client.route)]
    client.connect()
    client.send(hello(3))
    (after,) = server.events(0)
    assert isinstance(before, Arrived) and isinstance(after, Arrived) and after.decoded.message == hello(3)
    assert process_of(after.route) == process_of(before.route) and after.route != before.route
    assert client.num_connects == 2
    assert server.connections.of_route(client.route) is after.connection is not before.connection
    client.cut()
    client.connect()
    client.send(SETUP)
    again, lost = server.events(0)  # both while nobody looked
    assert isinstance(again, Arrived) and lost == Lost(after.route)
