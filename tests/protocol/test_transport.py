"""Server and clients over real sockets: what arrives, what is refused, and what happens to the others."""

import socket

import msgpack
import numpy as np
import pytest
import zmq
from wire_samples import SETUP, hello, parcel_of, route_of, zeros

from protocol.client_socket import ClientSocket, process_of
from protocol.codec import encode, pack
from protocol.errors import DecodeError, LimitExceeded, PeerUnreachable, VersionMismatch
from protocol.keys import KeyPair
from protocol.limits import Limits
from protocol.messages import VERSION, Setup, Stop
from protocol.transport import Arrived, Lost, Rejected, ServerSocket


class TestExchange:
    def test_both_ways_with_arrays(self, spawn, serve, collect):
        peer = spawn()
        server = serve()
        arrays = {
            "scalar": np.array(2.5),
            "empty": np.zeros((0, 3), np.float32),
            "prototypes": np.arange(20, dtype=np.float32).reshape(4, 5),
        }
        route = peer.connect(server.address, 7)
        peer.send(SETUP, arrays)
        (arrived,) = collect(server, 1)
        assert arrived.decoded.message == SETUP and arrived.route == route
        assert arrived.receipt.message == "setup"
        assert [part.elements for part in arrived.receipt.parts] == [0, 1, 0, 20]
        server.send(route, Stop(reason="back"), pack(arrays, dict.fromkeys(arrays, "prototypes")))
        message, came_back = peer.receive()
        assert message == Stop(reason="back")
        for name, array in arrays.items():
            for seen in (arrived.decoded.arrays[name], came_back[name]):
                assert seen.dtype == array.dtype and seen.shape == array.shape
                assert np.array_equal(seen, array)
        assert not arrived.decoded.arrays["prototypes"].flags.writeable

    def test_receipts_of_both_ends_are_the_same(self, spawn, serve, collect):
        peer = spawn()
        server = serve()
        route = peer.connect(server.address, 7)
        peer.send(SETUP, zeros(1000))
        (arrived,) = collect(server, 1)
        sent = server.send(route, SETUP, parcel_of(**zeros(1000)))
        assert sent == arrived.receipt
        assert sum(part.message_bytes for part in sent.parts) == sum(
            map(len, encode(SETUP, parcel_of(**zeros(1000))))
        )

    def test_a_broadcast_reaches_everybody_with_the_same_bytes(self, spawn, serve, collect):
        peers = [spawn() for _ in range(4)]
        server = serve()
        for client, peer in enumerate(peers):
            peer.connect(server.address, client)
            peer.send(hello(client))
        routes = [event.route for event in collect(server, 4)]
        parcel = parcel_of(**zeros(50_000))
        assert len({server.send(route, SETUP, parcel).wire_bytes for route in routes}) == 1
        for peer in peers:
            message, arrays = peer.receive()
            assert message == SETUP and arrays["a"].nbytes == 50_000

    def test_order_is_kept(self, spawn, serve, collect):
        peer = spawn()
        server = serve()
        peer.connect(server.address, 7)
        for number in range(50):
            peer.send(Setup(run=str(number)))
        assert [event.decoded.message.run for event in collect(server, 50)] == [str(n) for n in range(50)]

    def test_route_is_the_client_and_chance(self):
        routes = set()
        for _ in range(3):
            client = ClientSocket("tcp://127.0.0.1:9", 42)
            routes.add(route_of(client))
            client.close()
        assert len(routes) == 3
        assert all(route.startswith(b"42.") and len(route) == 3 + 16 + 5 for route in routes)

    def test_nothing_came(self, serve):
        server = serve()
        assert list(server.events(0.0)) == list(server.events(0.01)) == list(server.events(-1.0)) == []

    def test_client_may_come_before_the_server(self, spawn, serve, collect):
        peer = spawn()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        peer.connect(address, 7)
        server = serve(address)
        peer.wait_for_connects(1)
        peer.send(SETUP)
        (arrived,) = collect(server, 1)
        assert arrived.decoded.message == SETUP

    def test_client_finds_a_server_that_was_started_again(self, spawn, serve, collect):
        peer = spawn()
        first = ServerSocket("tcp://127.0.0.1:*")
        try:
            route = peer.connect(first.address, 7)
            peer.send(SETUP)
            collect(first, 1)
        finally:
            first.close()
        second = serve(first.address)
        peer.wait_for_connects(2)
        peer.send(Setup(run="second"))
        (arrived,) = collect(second, 1)
        assert arrived.decoded.message.run == "second"
        assert arrived.route != route and process_of(arrived.route) == process_of(route)
        second.send(arrived.route, Stop(reason="found"))
        assert peer.receive()[0] == Stop(reason="found")
        assert peer.num_connects() == 2


class TestRefusedMessages:
    @pytest.mark.parametrize(
        ("frames", "error"),
        [
            ([b""], DecodeError),
            ([b"hello"], DecodeError),
            ([b"", b""], DecodeError),
            ([b"\x81\xa1v" + b"\x91" * 1000 + b"\xc0"], VersionMismatch),
            ([msgpack.packb({"v": VERSION + 1})], VersionMismatch),
            ([b"x"] * 40, LimitExceeded),
            ([bytes(70_000)], LimitExceeded),
            ([*encode(SETUP), b"one too many"], DecodeError),
        ],
    )
    def test_counted_and_dropped_and_the_connection_kept(self, spawn, serve, collect, settle, frames, error):
        peer = spawn()
        server = serve()
        peer.connect_raw(server.address, b"foreign")
        peer.send_raw(frames)
        (rejected,) = collect(server, 1)
        assert isinstance(rejected, Rejected) and rejected.route == b"foreign"
        assert type(rejected.error) is error
        assert rejected.receipt.message == "rejected"
        assert [part.message_bytes for part in rejected.receipt.parts] == list(map(len, frames))
        peer.send_raw(encode(SETUP))
        (arrived,) = collect(server, 1)
        assert isinstance(arrived, Arrived) and arrived.connection is rejected.connection
        settle(server, arrived.connection)

    def test_client_tells_what_is_no_message(self):
        context = zmq.Context()
        router = context.socket(zmq.ROUTER)
        router.linger = 0
        port = router.bind_to_random_port("tcp://127.0.0.1")
        client = ClientSocket(f"tcp://127.0.0.1:{port}", 7)
        try:
            client.send(SETUP)
            assert router.poll(20_000)
            route = router.recv_multipart()[0]
            router.send_multipart([route, b"nonsense"])
            with pytest.raises(DecodeError):
                receive(client)
            router.send_multipart([route, *encode(Stop(reason="sense"))])
            assert receive(client).message == Stop(reason="sense")
        finally:
            client.close()
            router.close()
            context.term()


class TestOversizeFrames:
    @pytest.mark.parametrize("keyed", [False, True], ids=["plain", "curve"])
    def test_only_that_connection_is_dropped(self, spawn, serve, collect, keyed):
        greedy, modest = spawn(), spawn()
        pairs = [KeyPair(*zmq.curve_keypair()) for _ in range(3)]
        allowed = {pair.public.decode(): client for client, pair in enumerate(pairs[:2])}
        server = serve(
            limits=Limits(max_frame_bytes=10_000), **({"keys": pairs[2], "allowed": allowed} if keyed else {})
        )
        routes = {}
        for client, peer in enumerate((greedy, modest)):
            options = {"keys": pairs[client], "server_key": pairs[2].public} if keyed else {}
            routes[client] = peer.connect(server.address, client, **options)
            peer.send(hello(client))
            collect(server, 1)
        greedy.send(SETUP, zeros(10_001))
        assert collect(server, 1) == [Lost(routes[0])]
        modest.send(SETUP, zeros(9_900))
        (arrived,) = collect(server, 1)
        assert arrived.route == routes[1] and arrived.decoded.arrays["a"].nbytes == 9_900
        with pytest.raises(PeerUnreachable):
            server.send(routes[0], SETUP)
        # The refused message is not sent again; the peer comes back and can go on.
        greedy.wait_for_connects(2)
        greedy.send(Setup(run="again"))
        (again,) = collect(server, 1)
        assert again.decoded.message == Setup(run="again") and process_of(again.route) == process_of(routes[0])
        assert modest.num_connects() <= 1

    @pytest.mark.parametrize("keyed", [False, True], ids=["plain", "curve"])
    def test_largest_frame_passes(self, spawn, serve, collect, keyed):
        """The limit is on the frame as it was handed over, not on what encryption makes of it."""
        peer, limits = spawn(), Limits(max_frame_bytes=10_000)
        server_pair, pair = (KeyPair(*zmq.curve_keypair()) for _ in range(2))
        if keyed:
            server = serve(limits=limits, keys=server_pair, allowed={pair.public.decode(): 7})
            peer.connect(server.address, 7, keys=pair, server_key=server_pair.public)
        else:
            server = serve(limits=limits)
            peer.connect(server.address, 7)
        peer.send(SETUP, zeros(10_000))
        (arrived,) = collect(server, 1)
        assert arrived.decoded.arrays["a"].nbytes == 10_000

    def test_client_is_protected_too(self, meet, collect):
        peer, server, route = meet(limits=Limits(max_frame_bytes=10_000))
        server.send(route, SETUP, parcel_of(**zeros(10_001)))
        assert collect(server, 1) == [Lost(route)]
        with pytest.raises(TimeoutError):
            peer.receive(0.3)

    def test_a_claimed_size_is_not_allocated(self, serve, collect):
        """A frame header that announces 2^62 bytes ends the connection, nothing else."""
        server = serve()
        host, port = server.address.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as peer:
            peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32))
            read(peer, 64)
            peer.sendall(b"\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00")
            read(peer, 43)  # a message that comes before our READY has left would be taken for a second READY
            peer.sendall(b"\x00" + bytes([len(encode(SETUP)[0])]) + encode(SETUP)[0])
            (arrived,) = collect(server, 1)
            assert arrived.decoded.message == SETUP
            peer.sendall(b"\x02" + (1 << 62).to_bytes(8, "big") + b"x" * 100)
            assert collect(server, 1) == [Lost(arrived.route)]


def receive(client):
    for _ in range(200):
        if (decoded := client.receive(0.1)) is not None:
            return decoded
    raise TimeoutError("no message came")


def read(connection, num_bytes):
    while num_bytes:  # the socket's timeout is the deadline
        part = connection.recv(num_bytes)
        assert part, "the connection ended"
        num_bytes -= len(part)
