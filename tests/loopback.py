"""Both ends of the wire without a network: frames pass in memory, and time passes only while somebody waits.

The doubles have the interface of `protocol.transport` and use its codec, so what passes are real bytes with real
receipts. Everything happens in one thread: when the server waits, its peers have their turns, one after the other.
"""

import contextlib
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from protocol import wire
from protocol.codec import Decoded, Parcel, decode, encode
from protocol.connections import Connection
from protocol.errors import AdmissionRefused, DecodeError, PeerUnreachable
from protocol.kernel import TcpCounters
from protocol.ledger import Receipt, receipt_of
from protocol.limits import DEFAULT_LIMITS, Limits
from protocol.messages import Message, kind_of
from protocol.transport import Arrived, Event, Lost, Rejected


class Clock:
    """Stands still unless somebody waits; what was planned then happens on the way."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._plans: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._plans, (self.now + seconds, next(self._numbers), action))

    def wait(self, seconds: float) -> None:
        """As long as said, or until the first plan was carried out."""
        end = self.now + max(0.0, seconds)
        if self._plans and self._plans[0][0] <= end:
            self.now, _, action = heapq.heappop(self._plans)
            action()
        else:
            self.now = end


@dataclass(eq=False)
class LoopbackConnection(Connection):
    """A connection without a kernel under it, which counts what passes in the kernel's place."""

    carried_down: int = 0
    carried_up: int = 0
    peer: "LoopbackClient | None" = None

    def read(self) -> TcpCounters:
        return TcpCounters(self.carried_down, self.carried_up, peer_closed=self.ended)

    def hang_up(self) -> None:
        """The peer and the server notice it like any other end."""
        if self.peer is not None and self.peer.connection is self:
            self.peer.cut()

    def close(self) -> None:
        self.duplicate = None

    def identify(self, route: bytes) -> None:
        super().identify(route)
        self.carried_down += wire.server_handshake_bytes()
        self.carried_up += wire.client_handshake_bytes(route)


class Connections:
    """As much of `protocol.connections.Connections` as the server's parts look at."""

    def __init__(self) -> None:
        self.all: list[LoopbackConnection] = []
        self.by_route: dict[bytes, LoopbackConnection] = {}

    def accept(self) -> LoopbackConnection:
        number = len(self.all)
        self.all.append(LoopbackConnection(number, fd=number, duplicate=number, curve=False))
        return self.all[-1]

    def of_route(self, route: bytes) -> LoopbackConnection | None:
        return self.by_route.get(route)


@dataclass(frozen=True)
class _Passing:
    """Frames on their way up."""

    sender: "LoopbackClient"
    route: bytes
    connection: LoopbackConnection
    frames: list[bytes]


class LoopbackServer:
    """In the place of a ServerSocket."""

    address = "tcp://loopback:1"
    curve = False

    def __init__(self, clock: Clock | None = None, *, limits: Limits = DEFAULT_LIMITS):
        self.clock = clock or Clock()
        self.connections = Connections()
        self.turns: list[Callable[[], object]] = []
        """What peers do while the server waits."""
        self.peers: dict[bytes, LoopbackClient] = {}
        self._limits = limits
        self._passing: deque[_Passing] = deque()
        self._ended: deque[LoopbackConnection] = deque()

    def events(self, timeout_seconds: float) -> Iterator[Event]:
        for turn in list(self.turns):
            turn()
        if not self._passing and not self._ended:
            self.clock.wait(timeout_seconds)
        while self._passing:
            yield self._arrival(self._passing.popleft())
        while self._ended:
            if route := self._ended.popleft().route:
                yield Lost(route)

    def send(self, route: bytes, message: Message, parcel: Parcel = Parcel()) -> Receipt:  # noqa: B008
        frames = [bytes(frame) for frame in encode(message, parcel)]
        connection = self.connections.of_route(route)
        if connection is None or connection.ended:
            raise PeerUnreachable(f"{route.decode(errors='replace')}: no route to host")
        receipt = receipt_of(kind_of(message), list(map(len, frames)), parcel.specs, curve=False)
        connection.sent_bytes += receipt.wire_bytes
        connection.carried_down += sum(wire.frame_bytes(len(frame)) for frame in frames)
        self.peers[route].inbox.append(frames)
        return receipt

    def hang_up(self, route: bytes) -> None:
        if (connection := self.connections.of_route(route)) is not None:
            connection.hang_up()

    def close(self) -> None:
        for peer in self.peers.values():
            peer.cut()

    def take(self, passing: _Passing) -> None:
        self._passing.append(passing)

    def lose(self, connection: LoopbackConnection, *, noticed: bool, lossy: bool) -> None:
        connection.ended = True
        if lossy:
            self._passing = deque(item for item in self._passing if item.connection is not connection)
        if noticed:
            connection.close()
            self._ended.append(connection)

    def _arrival(self, passing: _Passing) -> Event:
        route, connection, lengths = passing.route, passing.connection, list(map(len, passing.frames))
        connection.carried_up += sum(map(wire.frame_bytes, lengths))
        if connection.route is None:
            connection.identify(route)
            self.connections.by_route[route] = connection
        try:
            decoded = decode(passing.frames, self._limits)
        except DecodeError as error:
            receipt = receipt_of("rejected", lengths, (), curve=False)
            connection.received_bytes += receipt.wire_bytes
            return Rejected(route, error, receipt, connection)
        receipt = receipt_of(kind_of(decoded.message), lengths, decoded.specs, curve=False)
        connection.received_bytes += receipt.wire_bytes
        return Arrived(route, passing.sender.key_owner, decoded, receipt, connection)


class LoopbackClient:
    """In the place of a ClientSocket; connected at once, unless the test wants to `connect` it later."""

    _numbers = itertools.count()

    def __init__(
        self,
        server: LoopbackServer,
        client: int,
        *,
        limits: Limits = DEFAULT_LIMITS,
        key_owner: int | None = None,
        connected: bool = True,
    ):
        self.num_connects = 0
        self.connected = False
        self.connection: LoopbackConnection | None = None
        self._process = f"{client}.{next(self._numbers):016x}"
        self.route = b""
        self.key_owner = key_owner
        self.inbox: deque[list[bytes]] = deque()
        self._server, self._limits = server, limits
        self._refusal: str | None = None
        self._greet: Callable[[], None] = lambda: None
        if connected:
            self.connect()

    def receive(self, timeout_seconds: float) -> Decoded | None:
        if self._refusal is not None:
            raise AdmissionRefused(self._refusal)
        if self.inbox:
            return decode(self.inbox.popleft(), self._limits)
        self._server.clock.wait(timeout_seconds)
        return None

    def send(self, message: Message, parcel: Parcel = Parcel()) -> None:  # noqa: B008
        self.send_frames([bytes(frame) for frame in encode(message, parcel)])

    @contextlib.contextmanager
    def kept(self, greet: Callable[[], None]) -> Iterator[None]:
        self._greet = greet
        yield
        self._greet = lambda: None

    def diagnose(self) -> str:
        return "nothing listens there"

    def close(self) -> None:
        self.cut()

    # ---------------------------------------------------------------------------- what only a test can do

    def send_frames(self, frames: list[bytes]) -> None:
        """Anything at all; lost where there is no connection."""
        if self.connected:
            self._server.take(_Passing(self, self.route, self.connection, frames))

    def connect(self) -> None:
        """For the first time or again."""
        self.route = f"{self._process}.{self.num_connects:04x}".encode()
        self._server.peers[self.route] = self
        self.connected, self.num_connects = True, self.num_connects + 1
        self.connection = self._server.connections.accept()
        self.connection.peer = self
        self._greet()

    def cut(self, *, noticed: bool = True, lossy: bool = False) -> None:
        """The connection ends, and if it is `lossy` so does what the server has not read yet.

        Not `noticed`, the server learns of it when it next sends something.
        """
        if self.connected:
            self.connected = False
            self._server.lose(self.connection, noticed=noticed, lossy=lossy)

    def refuse(self, reason: str) -> None:
        """The handshake fails for good."""
        self._refusal = reason
