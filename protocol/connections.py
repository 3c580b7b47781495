"""The server's TCP connections: their numbers, their counters, and which peer is behind each.

A route is one connection: a client makes a new routing id for each. So a message whose route is known needs no
further question, and the first message of a route opens the connection it came through. ZeroMQ tells that by
its descriptor, whose number another connection may have by then; where two that nobody has heard of had the
same number, neither is guessed at: both are hung up on, and whoever is still there connects again.

A duplicate of each descriptor is kept, because ZeroMQ closes its own before we hear of it, and the final
counters can only be read from an open one.
"""

import contextlib
import os
import socket
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from protocol import wire
from protocol.audit import Audit, Traffic
from protocol.kernel import TcpCounters, read_counters

_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _FAILED


@dataclass(eq=False)
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
    final_inode: int | None = None
    ended: bool = False

    @property
    def is_open(self) -> bool:
        return self.duplicate is not None

    @property
    def inode(self) -> int | None:
        """Which socket it is, whatever number it has."""
        return None if self.duplicate is None else os.fstat(self.duplicate).st_ino

    def identify(self, route: bytes) -> None:
        """The first message came: the handshake is over and its length is known."""
        self.route = route
        self.sent_bytes += wire.server_handshake_bytes(curve=self.curve)
        self.received_bytes += wire.client_handshake_bytes(route, curve=self.curve)

    def read(self) -> TcpCounters | None:
        return self.final if self.duplicate is None else read_counters(self.duplicate)

    def hang_up(self) -> None:
        """End it for both sides, whatever is still under way; ZeroMQ notices and says so."""
        if self.duplicate is not None:
            borrowed = socket.socket(fileno=self.duplicate)
            with contextlib.suppress(OSError):  # it has ended by itself
                borrowed.shutdown(socket.SHUT_RDWR)
            borrowed.detach()

    def close(self) -> None:
        """Keep the final counters and let go of the descriptor; until then the connection cannot end."""
        if self.duplicate is not None:
            self.final, self.final_inode = read_counters(self.duplicate), self.inode
            os.close(self.duplicate)
            self.duplicate = None

    def handshake_bytes(self) -> Traffic:
        return Traffic(
            wire.server_handshake_bytes(curve=self.curve),
            wire.client_handshake_bytes(self.route or b"", curve=self.curve),
        )

    def audit(self, *, must_agree: bool = True) -> Audit:
        counted = Traffic(self.sent_bytes, self.received_bytes)
        return Audit(self.number, self.client, counted, self.read(), must_agree)


class Connections:
    """All connections since the server started, in the order they were accepted."""

    def __init__(self, socket: "zmq.Socket[bytes]", *, curve: bool):
        self._curve = curve
        self._socket = socket
        self._by_fd: dict[int, Connection] = {}
        self._by_route: dict[bytes, Connection] = {}
        self._unheard: dict[int, list[Connection]] = {}
        """By descriptor: those whose first message is still to come; all but the last have ended."""
        self._lost: list[bytes] = []
        self._has_failed = False
        """Whether the last event was a failed handshake; its connection's end is always the next."""
        self.all: list[Connection] = []
        # A monitor that fills up stops the I/O thread: few kinds of events, and a queue without bound.
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
            events.append((int(event["event"]), int(event["value"])))
        last_end = {fd: place for place, (kind, fd) in enumerate(events) if kind == zmq.EVENT_DISCONNECTED}
        for place, (kind, fd) in enumerate(events):
            if kind == zmq.EVENT_ACCEPTED:
                self._accept(fd, gone=last_end.get(fd, -1) > place)
            elif kind == zmq.EVENT_DISCONNECTED:
                self._end(fd)
            self._has_failed = bool(kind & _FAILED)

    def drain(self) -> list[bytes]:
        """The routes that were lost since the last call."""
        self.take_events()
        lost, self._lost = self._lost, []
        return lost

    def of_message(self, route: bytes, fd: int) -> Connection | None:
        """The connection that a message came through; None where that cannot be told, and then it has ended."""
        self.take_events()
        if (known := self._by_route.get(route)) is not None:
            return known
        candidates = self._unheard.get(fd, [])
        if len(candidates) != 1:
            # They stay: what one has said may come after its end, and must not be taken for its successor's.
            for candidate in candidates:
                candidate.hang_up()
            return None
        (connection,) = self._unheard.pop(fd)
        connection.identify(route)
        self._by_route[route] = connection
        if connection.ended:
            self._lost.append(route)
        return connection

    def silent(self) -> list[Connection]:
        """Those that have ended and were never heard of: whatever they said is waiting to be read."""
        return [connection for those in self._unheard.values() for connection in those if connection.ended]

    def forget(self, silent: list[Connection]) -> None:
        """All that was waiting has been read, and these had said nothing."""
        for connection in silent:
            left = [other for other in self._unheard.pop(connection.fd, []) if other is not connection]
            if left:
                self._unheard[connection.fd] = left

    def _end(self, fd: int) -> None:
        connection = self._by_fd.get(fd)
        if connection is None or connection.ended:
            return
        connection.close()
        connection.ended = True
        if connection.route is not None:
            self._lost.append(connection.route)
        elif self._has_failed:  # before the handshake was over, so that there cannot be a message
            self.forget([connection])

    def of_route(self, route: bytes) -> Connection | None:
        return self._by_route.get(route)

    def close(self) -> None:
        self._socket.disable_monitor()
        self.monitor.close(linger=0)
        for connection in self.all:
            connection.close()

    def _accept(self, fd: int, gone: bool) -> None:
        """`gone`: it has ended since, so that the number may be another's by now."""
        try:
            duplicate = None if gone else os.dup(fd)
        except OSError:  # gone before we looked
            duplicate = None
        connection = Connection(len(self.all), fd, duplicate, self._curve)
        before = self._by_fd.get(fd)
        if before is not None and duplicate is not None and before.final_inode == connection.inode:
            before.final = None  # it had gone before we looked, and what we duplicated was this one
        self.all.append(connection)
        self._by_fd[fd] = connection  # stays after its end, until the number is used again
        self._unheard.setdefault(fd, []).append(connection)
