"""The byte model against the kernel: real TCP connections, each peer a process of its own, no byte left over."""

import os
import signal
import socket

import numpy as np
import pytest
import zmq

from protocol.audit import Verdict
from protocol.client_socket import process_of
from protocol.codec import pack
from protocol.kernel import TcpCounters, read_counters
from protocol.keys import KeyPair
from protocol.limits import Limits
from protocol.messages import Ready, Setup, Stop, Work
from protocol.transport import Arrived, Lost

# 222/223: the last short and the first long frame under CURVE; 255/256: the same in plain text.
SIZES = [0, 1, 29, 30, 221, 222, 223, 224, 254, 255, 256, 257, 8191, 8192, 8193, 65_536, 1_000_003]
SETUP = Setup(run="a-run")


def secure(curve):
    """(options of the server, options of client 7), with fresh keys where wanted."""
    if not curve:
        return {}, {}
    server, client = (KeyPair(*zmq.curve_keypair()) for _ in range(2))
    return (
        {"keys": server, "allowed": {client.public.decode(): 7}},
        {"keys": client, "server_key": server.public},
    )


def array_of(num_bytes):
    return {"prototypes": np.arange(num_bytes, dtype=np.uint8)}


def parcel_of(num_bytes):
    return pack(array_of(num_bytes), {"prototypes": "prototypes"})


@pytest.fixture(params=[False, True], ids=["plain", "curve"])
def curve(request):
    return request.param


class TestCounters:
    def test_plain_tcp_connection(self):
        """The witness itself, against bytes that no library framed."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            near = socket.create_connection(listener.getsockname())
            far, _ = listener.accept()
            with near, far:
                assert read_counters(far.fileno()) == TcpCounters(0, 0)
                near.sendall(b"x" * 1000)
                assert len(far.recv(1000, socket.MSG_WAITALL)) == 1000
                far.sendall(b"y" * 70)
                assert len(near.recv(70, socket.MSG_WAITALL)) == 70
                assert read_counters(far.fileno()) == TcpCounters(sent=70, received=1000, acknowledged=70)
                assert read_counters(near.fileno()) == TcpCounters(sent=1000, received=70, acknowledged=1000)
                near.close()
                assert far.recv(1) == b""
                # The peer's FIN is no byte of anybody's.
                assert read_counters(far.fileno()) == TcpCounters(70, 1000, acknowledged=70, peer_closed=True)

    def test_reading_leaves_the_descriptor_open(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            assert read_counters(listener.fileno()) is not None
            assert os.fstat(listener.fileno())

    def test_what_is_not_tcp_has_no_counters(self, tmp_path):
        with (tmp_path / "file").open("w") as file:
            assert read_counters(file.fileno()) is None
            assert not file.closed and os.fstat(file.fileno())
        left, right = socket.socketpair()
        with left, right:
            assert read_counters(left.fileno()) is None
        assert read_counters(1_000_000) is None


def test_every_frame_size_both_ways(spawn, serve, collect, settle, curve):
    peer = spawn()
    server_options, client_options = secure(curve)
    server = serve(**server_options)
    route = peer.connect(server.address, 7, **client_options)
    down, up = 0, 0
    for size in SIZES:
        peer.send(SETUP, array_of(size))
        (arrived,) = collect(server, 1)
        assert isinstance(arrived, Arrived) and arrived.route == route
        assert np.array_equal(arrived.decoded.arrays["prototypes"], array_of(size)["prototypes"])
        up += arrived.receipt.wire_bytes
        down += server.send(route, SETUP, parcel_of(size)).wire_bytes
        message, arrays = peer.receive()
        assert message == SETUP and np.array_equal(arrays["prototypes"], array_of(size)["prototypes"])
        settle(server, arrived.connection)
    (connection,) = server.connections.all
    audit = connection.audit()
    assert audit.agrees
    # An independent statement of the model: the framing of each of the messages, and the handshake.
    header = len(b"\x84\xa1v\x01\xa4kind\xa5setup\xa3run\xa5a-run\xa6arrays\x91") + len(
        b"\x94\xaaprototypes\xaaprototypes\xa2u1\x91"
    )
    shapes = [1 if size < 128 else 2 if size < 256 else 3 if size < 65_536 else 5 for size in SIZES]
    bodies = [header + shape for shape in shapes] + SIZES
    if curve:
        bodies = [body + 33 for body in bodies]
    framed = sum(body + (9 if body > 255 else 2) for body in bodies)
    assert framed == up == down
    identity = len(route)
    handshake = (301, 575 - 8 + identity) if curve else (107, 107 + identity)
    assert (audit.kernel.sent, audit.kernel.received) == (framed + handshake[0], framed + handshake[1])


def test_every_header_size_around_the_long_frame(spawn, serve, collect, settle, curve):
    peer = spawn()
    server_options, client_options = secure(curve)
    server = serve(**server_options)
    route = peer.connect(server.address, 7, **client_options)
    lengths = set()
    for text in range(195, 245):
        peer.send(Stop(reason="x" * text))
        (arrived,) = collect(server, 1)
        server.send(route, Stop(reason="y" * text))
        peer.receive()
        settle(server, arrived.connection)
        lengths.add(arrived.receipt.parts[0].message_bytes)
    assert {222, 223, 255, 256} <= lengths


def test_connection_of_a_killed_peer_agrees_after_its_end(spawn, serve, collect, settle, curve):
    peer = spawn()
    server_options, client_options = secure(curve)
    server = serve(**server_options)
    route = peer.connect(server.address, 7, **client_options)
    peer.send(SETUP, array_of(100_000))
    (arrived,) = collect(server, 1)
    server.send(route, SETUP, parcel_of(70_000))
    peer.receive()
    settle(server, arrived.connection)
    peer.signal(signal.SIGKILL)
    assert collect(server, 1) == [Lost(route)]
    assert not arrived.connection.is_open and arrived.connection.ended
    assert arrived.connection.audit().agrees
    assert arrived.connection.audit().kernel == arrived.connection.final


def test_peer_that_closes_at_once_agrees(spawn, serve, collect, curve):
    """The socket is closed right behind the last message: nothing is lost, all is counted."""
    peer = spawn()
    server_options, client_options = secure(curve)
    server = serve(**server_options)
    route = peer.connect(server.address, 7, **client_options)
    peer.send(SETUP)
    (first,) = collect(server, 1)
    peer.send(SETUP, array_of(500_000))
    peer.close()
    last, lost = collect(server, 2)
    assert last.connection is first.connection
    assert lost == Lost(route)
    assert first.connection.audit().agrees


def test_peer_that_went_before_it_read_shows_what_it_missed(spawn, serve, collect):
    """What was handed over but never left is the difference, and only in that direction."""
    peer = spawn()
    server = serve()
    route = peer.connect(server.address, 7)
    peer.send(SETUP)
    (arrived,) = collect(server, 1)
    peer.signal(signal.SIGSTOP)
    for _ in range(3):
        server.send(route, SETUP, parcel_of(8_000_000))
    peer.kill()
    assert collect(server, 1) == [Lost(route)]
    audit = arrived.connection.audit(must_agree=False)
    assert audit.verdict is Verdict.CUT
    assert audit.difference.received == 0
    assert -3 * 8_100_000 < audit.difference.sent < 0
    assert 0 < audit.kernel.acknowledged <= audit.kernel.sent < audit.counted.sent


def test_each_connection_of_a_reconnecting_peer_agrees(spawn, serve, collect, settle, curve):
    peer = spawn()
    server_options, client_options = secure(curve)
    server = serve(**server_options)
    peer.connect(server.address, 7, **client_options)
    routes = []
    for attempt in range(3):
        route = peer.route()
        routes.append(route)
        peer.send(SETUP, array_of(10_000 + attempt))
        (arrived,) = collect(server, 1)
        assert arrived.route == route and arrived.connection.number == attempt
        server.send(route, SETUP, parcel_of(300 + attempt))
        peer.receive()
        settle(server, arrived.connection)
        peer.cut(server.address)
        peer.wait_for_connects(attempt + 2)
        assert Lost(route) in collect(server, 1)
    first, second, third, fourth = server.connections.all
    assert all(connection.audit().agrees for connection in (first, second, third))
    assert [connection.route for connection in (first, second, third)] == routes
    assert len(set(routes)) == 3 and len(set(map(process_of, routes))) == 1
    assert fourth.route is None  # it has not spoken yet


def test_last_words_are_counted_on_the_connection_they_came_through(spawn, serve, collect, until):
    """A descriptor's number is used again at once, while its last message still waits to be read."""
    dying, living = spawn(), spawn()
    server = serve()
    old = dying.connect(server.address, 1)
    dying.send(SETUP)
    (hello,) = collect(server, 1)
    dying.send(SETUP, array_of(1000))
    dying.close()  # lingers until the message has left
    until(lambda: is_closed(hello.connection.fd))
    new = living.connect(server.address, 2)
    living.send(Stop(reason="here I am"))
    living.wait_for_connects(1)
    until(lambda: not is_closed(hello.connection.fd))
    events = collect(server, 3)
    arrived = {event.route: event for event in events if isinstance(event, Arrived)}
    assert arrived[new].connection.fd == arrived[old].connection.fd
    assert arrived[old].connection is hello.connection
    assert arrived[new].connection is not hello.connection
    order = [(type(event), event.route) for event in events]
    assert order.index((Arrived, old)) < order.index((Lost, old))
    assert all(connection.audit().agrees for connection in server.connections.all)


def test_peer_that_came_and_went_before_the_server_looked(spawn, serve, collect, until):
    peer = spawn()
    server = serve()
    route = peer.connect(server.address, 1)
    peer.send(Work(run="r", round=1, attempt=0, slot=0, train=True, evaluate=True, save=False, keep=-1))
    peer.close()
    until(lambda: server.connections.monitor.poll(0))
    arrived, lost = collect(server, 2)
    assert isinstance(arrived, Arrived) and arrived.route == route
    assert lost == Lost(route)
    assert len(server.connections.all) == 1


def test_connections_are_counted_apart(spawn, serve, collect, settle):
    peers = [spawn() for _ in range(3)]
    server = serve(limits=Limits(max_frame_bytes=50_000))
    routes = [peer.connect(server.address, client) for client, peer in enumerate(peers)]
    for size, peer in zip((10, 1000, 40_000), peers, strict=True):
        peer.send(
            Ready(run="r", num_train=1, num_test=1, num_parameters=1, start_seconds=0.5, pss_bytes=1),
            array_of(size),
        )
    events = collect(server, 3)
    received = {event.route: event.connection.received_bytes for event in events}
    header = events[0].receipt.parts[0].message_bytes
    assert received[routes[1]] - received[routes[0]] == 1000 + 9 - (10 + 2) + 2  # a two byte longer shape
    assert received[routes[2]] - received[routes[1]] == 40_000 - 1000
    assert header < 255
    for event in events:
        settle(server, event.connection)


def is_closed(fd):
    try:
        os.fstat(fd)
    except OSError:
        return True
    return False
