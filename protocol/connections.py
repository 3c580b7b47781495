"""The server's TCP connections: their numbers, their counters, and which peer is behind each.

ZeroMQ hides connections behind one ROUTER socket. Its monitor tells the file descriptor of every connection
that is accepted, and each received message tells the descriptor it came through, so no guessing is needed.
A duplicate of the descriptor is kept, because ZeroMQ closes its own before we hear of it, and the final
counters can only be read from an open one.
"""

import os
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from protocol import wire
from protocol.kernel import TcpCounters, read_counters
from protocol.ledger import Audit, Heartbeats, solve_heartbeats

_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED


@dataclass
class Connection:
    """One accepted TCP connection: our count of its bytes, and the kernel's as the witness."""

    number: int
    fd: int
    duplicate: int | None
    curve: bool
    route: bytes | None = None
    client: int | None = None
    sent_bytes: int = 0
    received_bytes: int = 0
    final: TcpCounters | None = None
    ended: bool = False
    unheard: "Connection | None" = None
    """The connection that had this descriptor before, if it ended before a message of it was read."""

    @property
    def is_open(self) -> bool:
        return self.duplicate is not None

    def identify(self, route: bytes) -> None:
        """The first message came: the handshake is over and its length is known."""
        self.route = route
        self.sent_bytes += wire.server_handshake_bytes(curve=self.curve)
        self.received_bytes += wire.client_handshake_bytes(route, curve=self.curve)

    def yield_to(self, older: "Connection") -> None:
        """What was counted here came through an older connection."""
        older.route, older.client = self.route, self.client
        older.sent_bytes, older.received_bytes = self.sent_bytes, self.received_bytes
        self.route = self.client = None
        self.sent_bytes = self.received_bytes = 0

    def read(self) -> TcpCounters | None:
        return self.final if self.duplicate is None else read_counters(self.duplicate)

    def close(self) -> None:
        """Keep the final counters and let go of the descriptor; until then the connection cannot end."""
        if self.duplicate is not None:
            self.final = read_counters(self.duplicate)
            os.close(self.duplicate)
            self.duplicate = None

    def framing_bytes(self, heartbeats: Heartbeats) -> dict[tuple[str, str], int]:
        """Bytes that belong to no message, by (kind, direction)."""
        route = self.route or b""
        return {
            ("handshake", "down"): wire.server_handshake_bytes(curve=self.curve),
            ("handshake", "up"): wire.client_handshake_bytes(route, curve=self.curve),
            ("heartbeat", "down"): heartbeats.pongs * wire.pong_bytes(curve=self.curve),
            ("heartbeat", "up"): heartbeats.pings * wire.ping_bytes(curve=self.curve),
        }

    def audit(self, *, closed_early: bool = False) -> Audit:
        counted = TcpCounters(self.sent_bytes, self.received_bytes)
        plain = Audit(self.number, self.client, counted, self.read(), closed_early=closed_early)
        if (difference := plain.difference) is None or plain.agrees:
            return plain
        heartbeats = solve_heartbeats(difference.sent, difference.received, curve=self.curve)
        with_heartbeats = TcpCounters(
            counted.sent + heartbeats.pongs * wire.pong_bytes(curve=self.curve),
            counted.received + heartbeats.pings * wire.ping_bytes(curve=self.curve),
        )
        return Audit(self.number, self.client, with_heartbeats, plain.kernel, heartbeats, closed_early)


class Connections:
    """All connections since the server started, in the order they were accepted."""

    def __init__(self, socket: "zmq.Socket[bytes]", *, curve: bool):
        self._curve = curve
        self._socket = socket
        self._by_fd: dict[int, Connection] = {}
        self._by_route: dict[bytes, Connection] = {}
        self._lost: list[Connection] = []
        self.all: list[Connection] = []
        # A monitor that fills up stops the I/O thread: two events only, and a queue without bound.
        address = f"inproc://connections-{id(self):x}"
        socket.monitor(address, _EVENTS)
        self.monitor = socket.context.socket(zmq.PAIR)
        self.monitor.rcvhwm = 0
        self.monitor.connect(address)

    def take_events(self) -> None:
        """Take note of connections that came and went."""
        events = []
        while self.monitor.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            event = parse_monitor_message(self.monitor.recv_multipart())
            events.append((event["event"] == zmq.EVENT_ACCEPTED, int(event["value"])))
        last_end = {fd: place for place, (accepted, fd) in enumerate(events) if not accepted}
        for place, (accepted, fd) in enumerate(events):
            if accepted:
                self._accept(fd, gone=last_end.get(fd, -1) > place)
            elif (connection := self._by_fd.get(fd)) is not None and not connection.ended:
                connection.close()
                connection.ended = True
                if connection.route is not None:
                    self._lost.append(connection)

    def drain(self) -> list[bytes]:
        """The routes that were lost since the last call, without those that have come back."""
        self.take_events()
        lost, self._lost = self._lost, []
        return [ended.route for ended in lost if ended.route and self._by_route[ended.route] is ended]

    def of_message(self, route: bytes, fd: int, num_bytes: int) -> Connection:
        """The connection that a message of this many bytes on the wire came through."""
        self.take_events()
        known = self._by_route.get(route)
        newest = self._by_fd.get(fd) or self._accept(fd)
        if known is newest or (known is not None and known.fd == fd and self._are_last_words(known, newest)):
            return known
        if newest.route is None:
            newest.identify(route)
            if newest.ended:
                self._lost.append(newest)
        elif newest.unheard is not None:
            return self._tell_apart(newest.unheard, newest, route, num_bytes)
        if known is None or known.number < newest.number:
            self._by_route[route] = newest
        return newest

    def _are_last_words(self, known: Connection, newest: Connection) -> bool:
        """Whether a message from a peer we know belongs to its old connection, not to the newest.

        A descriptor's number is free as soon as ZeroMQ closed it, while messages that came through it may
        still wait to be read. If nobody has spoken on the newest connection yet, the message may also be the
        first after a reconnect: then the old connection lacks nothing.
        """
        return known.ended and (newest.route is not None or _lacks_bytes(known.audit()))

    def _tell_apart(self, older: Connection, newest: Connection, route: bytes, num_bytes: int) -> Connection:
        """A second peer has spoken on one connection, so one of the two came through the older one.

        A peer that has just connected has said nothing but this message, and the kernel knows how long that
        is. If both are alike, the first to be read is the older.
        """
        newest.unheard = older.unheard
        counters = newest.read()
        expected = wire.client_handshake_bytes(route, curve=self._curve) + num_bytes
        is_newest = counters is not None and counters.received == expected
        if is_newest and newest.route is not None:
            self._by_route[newest.route] = older
            newest.yield_to(older)
        owner = newest if is_newest else older
        owner.identify(route)
        self._by_route[route] = owner
        self._lost.append(older)
        return owner

    def of_route(self, route: bytes) -> Connection | None:
        return self._by_route.get(route)

    def close(self) -> None:
        self._socket.disable_monitor()
        self.monitor.close(linger=0)
        for connection in self.all:
            connection.close()

    def _accept(self, fd: int, gone: bool = False) -> Connection:
        """`gone`: it has ended since, so that the number may be another's by now."""
        try:
            duplicate = None if gone else os.dup(fd)
        except OSError:  # gone before we looked
            duplicate = None
        connection = Connection(len(self.all), fd, duplicate, self._curve)
        before = self._by_fd.get(fd)
        if before is not None and before.ended and before.route is None:
            connection.unheard = before
        self.all.append(connection)
        self._by_fd[fd] = connection  # stays after its end, until the number is used again
        return connection


def _lacks_bytes(audit: Audit) -> bool:
    return audit.difference is not None and audit.difference.received > 0
