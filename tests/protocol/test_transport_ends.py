"""Sockets whose peers are lost, hang, or were never there; options of both ends; how they close."""

import signal

import pytest
import zmq
from wire_samples import SETUP, hello, parcel_of, watch_of, zeros

from protocol.client_socket import ClientSocket, process_of
from protocol.errors import AddressUnusable, PeerUnreachable
from protocol.keys import KeyPair
from protocol.messages import Setup, Stop
from protocol.transport import Arrived, Lost, ServerSocket


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

    def test_a_peer_that_computes_comes_back_at_once_each_time_and_misses_nothing(self, meet, collect, settle):
        peer, server, route = meet()
        peer.wait_for_connects(1)  # or it would greet on this one too
        peer.start("compute_until_connected", 3, hello(7))
        routes = [route]
        for number in (1, 2):
            server.send(routes[-1], Setup(run=str(number)))
            settle(server, server.connections.of_route(routes[-1]))
            server.hang_up(routes[-1])
            lost, back = sorted(collect(server, 2), key=lambda event: isinstance(event, Arrived))
            assert lost == Lost(routes[-1]) and back.decoded.message == hello(7)
            routes.append(back.route)
        peer.result()
        server.send(routes[-1], Setup(run="3"))
        assert [peer.receive()[0].run for _ in range(3)] == ["1", "2", "3"]

    def test_a_peer_that_came_back_has_another_route_than_the_one_that_was_lost(
        self, spawn, serve, collect, until
    ):
        """Both happened while the server did not look: what it hears of the old one does not concern the new."""
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
        after, lost = collect(server, 2)
        assert isinstance(after, Arrived) and process_of(after.route) == process_of(route)
        assert lost == Lost(route) != Lost(after.route)
        assert after.connection is not before.connection and not before.connection.is_open
        server.send(after.route, Stop(reason="good"))
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

    def test_a_peer_that_was_hung_up_on_comes_again(self, meet, collect):
        peer, server, route = meet()
        peer.wait_for_connects(1)
        server.hang_up(route)
        assert collect(server, 1) == [Lost(route)]
        with pytest.raises(PeerUnreachable):
            server.send(route, SETUP)
        peer.wait_for_connects(2)
        peer.send(hello(7))
        (arrived,) = collect(server, 1)
        assert arrived.route == peer.route() != route


class TestOptions:
    """The table of docs/wire.md, as far as ZeroMQ lets options be read."""

    @pytest.mark.parametrize("keyed", [False, True], ids=["plain", "curve"])
    def test_both_ends(self, serve, keyed):
        pair = KeyPair(*zmq.curve_keypair())
        server = serve(**({"keys": pair} if keyed else {}))
        client = ClientSocket(server.address, 7, **({"keys": pair, "server_key": pair.public} if keyed else {}))
        try:
            dealer = client._line._socket
            for end in (server._socket, dealer):
                assert end.maxmsgsize == (1 << 30) + (33 if keyed else 0)
                assert (end.rcvhwm, end.linger) == (64, 1000)
                assert (end.tcp_keepalive, end.tcp_keepalive_idle, end.tcp_keepalive_intvl) == (1, 5, 5)
                assert end.tcp_maxrt == 30_000
                assert end.mechanism == (zmq.CURVE if keyed else zmq.NULL)
            assert server._socket.backlog == 1024
            assert (server._socket.sndhwm, dealer.sndhwm) == (4, 64)
            assert server._socket.heartbeat_ivl == dealer.heartbeat_ivl == 0
            assert dealer.reconnect_ivl == 1_000_000_000
        finally:
            client.close()

    def test_the_kernel_watches_over_both_ends(self, spawn, serve, collect):
        """A connection is dead after six heartbeats in which nothing was acknowledged or answered."""
        peer = spawn()
        server = serve(heartbeat_seconds=2.5)
        peer.connect(server.address, 7, heartbeat_seconds=4)
        peer.send(SETUP)
        collect(server, 1)
        (connection,) = server.connections.all
        assert watch_of(connection.duplicate) == (3, 3, 15_000)
        assert peer.watch(server.address) == (4, 4, 24_000)


class TestEnds:
    @pytest.mark.parametrize("address", ["nonsense", "tcp://127.0.0.1:notaport", "tcp://192.0.2.1:5555"])
    def test_address_that_cannot_be_bound(self, address):
        with pytest.raises(AddressUnusable, match=rf"^cannot listen on {address}: [a-z ]+\.$"):
            ServerSocket(address)

    def test_address_in_use(self, serve):
        server = serve()
        with pytest.raises(AddressUnusable, match="in use"):
            ServerSocket(server.address, keys=KeyPair(*zmq.curve_keypair()), allowed={})

    @pytest.mark.parametrize(
        "address", ["nonsense", "tcp://127.0.0.1:notaport", "tcp://no.such.host.invalid:5555"]
    )
    def test_address_that_cannot_be_connected(self, address):
        with pytest.raises(AddressUnusable, match=f"{address}.*[.]$"):
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
