"""Sockets whose peers are lost, hang, or were never there; options of both ends; how they close."""

import signal
import time

import pytest
import zmq
from wire_samples import SETUP, hello, parcel_of, zeros

from protocol.errors import AddressUnusable, PeerUnreachable
from protocol.keys import KeyPair
from protocol.messages import Setup, Stop
from protocol.transport import Arrived, ClientSocket, Lost, ServerSocket


class TestLostPeers:
    def test_unknown_route(self, serve):
        with pytest.raises(PeerUnreachable, match="nobody"):
            serve().send(b"nobody", SETUP)

    def test_killed_peer(self, spawn, serve, collect):
        peer, other = spawn(), spawn()
        server = serve()
        routes = [peer.connect(server.address, 0), other.connect(server.address, 1)]
        for client, one in enumerate((peer, other)):
            one.send(hello(client))
        collect(server, 2)
        peer.signal(signal.SIGKILL)
        assert collect(server, 1) == [Lost(routes[0])]
        with pytest.raises(PeerUnreachable, match=routes[0].decode()):
            server.send(routes[0], SETUP)
        server.send(routes[1], SETUP)
        assert other.receive()[0] == SETUP

    def test_last_words_come_before_the_loss(self, meet, collect):
        peer, server, route = meet()
        for number in range(3):
            peer.send(Setup(run=str(number)), zeros(100_000))
        peer.close()
        events = collect(server, 4)
        assert [event.decoded.message.run for event in events[:3]] == ["0", "1", "2"]
        assert events[3:] == [Lost(route)]

    def test_a_peer_that_came_back_is_not_lost(self, spawn, serve, collect, until):
        """Both happened while the server did not look: it hears of the message only."""
        peer = spawn()
        server = serve()
        route = peer.connect(server.address, 7)
        peer.send(SETUP)
        (before,) = collect(server, 1)
        peer.wait_for_connects(1)
        peer.cut(server.address)
        peer.wait_for_connects(2)
        peer.send(Setup(run="back"))
        until(lambda: server._socket.poll(0))
        (after,) = collect(server, 1)
        assert isinstance(after, Arrived) and after.route == route
        assert after.connection is not before.connection and not before.connection.is_open
        server.send(route, Stop(reason="good"))
        assert peer.receive()[0] == Stop(reason="good")

    def test_a_loss_survives_an_abandoned_loop(self, spawn, serve, collect, until):
        """A caller that stops in the middle of the events hears of the loss the next time."""
        leaving, staying = spawn(), spawn()
        server = serve()
        lost = leaving.connect(server.address, 0)
        leaving.send(SETUP)
        collect(server, 1)
        staying.connect(server.address, 1)
        staying.send(SETUP)
        leaving.kill()
        until(lambda: server._socket.poll(0) and server.connections.monitor.poll(0))
        for event in server.events(1.0):
            assert isinstance(event, Arrived)
            break
        assert Lost(lost) in collect(server, 1)

    def test_peer_that_does_not_read(self, meet, collect):
        """The queue is short: the sender learns of it instead of filling its memory."""
        peer, server, route = meet()
        peer.signal(signal.SIGSTOP)
        with pytest.raises(PeerUnreachable):
            for _ in range(1000):
                server.send(route, SETUP, parcel_of(**zeros(1_000_000)))

    def test_a_hanging_peer_is_noticed_by_its_heartbeat(self, meet, collect):
        peer, server, route = meet(heartbeat_seconds=0.2)
        peer.wait_for_connects(1)
        time.sleep(0.5)  # two pings, which tell the server how long to wait
        peer.signal(signal.SIGSTOP)
        assert collect(server, 1) == [Lost(route)]

    @pytest.mark.parametrize(
        ("heartbeat_seconds", "time_to_live_ms"),
        [(0.0, 0), (0.5, 3000), (5.0, 30_000), (10.0, 60_000), (30.0, 60_000), (31.0, 0), (600.0, 0)],
    )
    def test_time_to_live_is_longer_than_the_interval(self, heartbeat_seconds, time_to_live_ms):
        client = ClientSocket("tcp://127.0.0.1:9", 7, heartbeat_seconds=heartbeat_seconds)
        try:
            assert client._socket.heartbeat_ttl == time_to_live_ms
            assert client._socket.heartbeat_ivl == heartbeat_seconds * 1000
        finally:
            client.close()


class TestOptions:
    """The table of docs/wire.md, as far as ZeroMQ lets options be read."""

    @pytest.mark.parametrize("keyed", [False, True], ids=["plain", "curve"])
    def test_both_ends(self, serve, keyed):
        pair = KeyPair(*zmq.curve_keypair())
        server = serve(**({"keys": pair} if keyed else {}))
        client = ClientSocket(server.address, 7, **({"keys": pair, "server_key": pair.public} if keyed else {}))
        try:
            for end in (server._socket, client._socket):
                assert end.maxmsgsize == (1 << 30) + (33 if keyed else 0)
                assert (end.sndhwm, end.rcvhwm, end.linger) == (64, 64, 1000)
                assert (end.tcp_keepalive, end.tcp_keepalive_idle) == (1, 30)
                assert end.mechanism == (zmq.CURVE if keyed else zmq.NULL)
            assert server._socket.backlog == 1024
            assert server._socket.heartbeat_ivl == client._socket.heartbeat_ivl == 0
            assert (client._socket.reconnect_ivl, client._socket.reconnect_ivl_max) == (100, 2000)
        finally:
            client.close()

    def test_heartbeats(self):
        client = ClientSocket("tcp://127.0.0.1:9", 7, heartbeat_seconds=5.0)
        try:
            options = client._socket
            assert (options.heartbeat_ivl, options.heartbeat_timeout, options.heartbeat_ttl) == (
                5000,
                30_000,
                30_000,
            )
        finally:
            client.close()


class TestEnds:
    @pytest.mark.parametrize("address", ["nonsense", "tcp://127.0.0.1:notaport", "tcp://192.0.2.1:5555"])
    def test_address_that_cannot_be_bound(self, address):
        with pytest.raises(AddressUnusable, match=rf"^cannot listen on {address}: [a-z ]+\.$"):
            ServerSocket(address)

    def test_address_in_use(self, serve):
        server = serve()
        with pytest.raises(AddressUnusable, match="in use"):
            ServerSocket(server.address, keys=KeyPair(*zmq.curve_keypair()), allowed={})

    @pytest.mark.parametrize("address", ["nonsense", "tcp://127.0.0.1:notaport"])
    def test_address_that_cannot_be_connected(self, address):
        with pytest.raises(AddressUnusable, match=rf"^cannot connect to {address}: [a-z ]+\.$"):
            ClientSocket(address, 7)

    def test_client_closes_without_a_server(self, spawn, serve, collect):
        peer = spawn()
        peer.connect("tcp://127.0.0.1:9", 7)
        peer.send(Setup(run="never leaves"))  # closing waits for it, but not for ever
        peer.close()
        server = serve()
        peer.connect(server.address, 7)
        peer.send(SETUP)
        assert [event.decoded.message for event in collect(server, 1)] == [SETUP]

    def test_server_closes_with_clients_connected(self, spawn, collect):
        peer = spawn()
        server = ServerSocket("tcp://127.0.0.1:*")
        try:
            route = peer.connect(server.address, 7)
            peer.send(SETUP)
            collect(server, 1)
            server.send(route, Stop(reason="last"), parcel_of(**zeros(1_000_000)))
        finally:
            server.close()
        message, arrays = peer.receive()
        assert message == Stop(reason="last") and arrays["a"].nbytes == 1_000_000
        assert all(not connection.is_open for connection in server.connections.all)
