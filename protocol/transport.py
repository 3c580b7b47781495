"""The server's end of the wire: a ROUTER whose routes are connections.

A client's routing id is its number, a random part for its process and the number of the connection:
"7.9f3c….0002". A client that is started again gets a new one, so an old connection can never swallow its messages,
and nobody can take over a routing id by guessing it. Which client a route belongs to is decided by its Hello
and, with keys, by the key it joined with.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import zmq
from zmq.auth.thread import ThreadAuthenticator

from protocol import options
from protocol.addresses import is_ipv6
from protocol.codec import Decoded, Parcel, decode, encode
from protocol.connections import Connection, Connections
from protocol.errors import AddressUnusable, DecodeError, PeerUnreachable
from protocol.keys import KeyPair
from protocol.ledger import Receipt, receipt_of
from protocol.limits import DEFAULT_LIMITS, Limits
from protocol.messages import Message, kind_of

_UNSENT_MESSAGES = 4  # a Welcome, a Setup, a Work and a Stop: a longer queue only hides a peer that does not read
_ZAP_DOMAIN = "fedsim"


@dataclass(frozen=True)
class Arrived:
    """A message. `key_owner` is the client id bound to the sender's key, None without keys."""

    route: bytes
    key_owner: int | None
    decoded: Decoded
    receipt: Receipt
    connection: Connection


@dataclass(frozen=True)
class Rejected:
    """Frames that are no message of ours. `connection` is None where ZeroMQ does not tell which it was."""

    route: bytes
    error: DecodeError
    receipt: Receipt
    connection: Connection | None


@dataclass(frozen=True)
class Lost:
    """The connection behind a route has closed."""

    route: bytes


Event = Arrived | Rejected | Lost


class ServerSocket:
    """Receives from and sends to all clients; counts every byte per connection."""

    def __init__(
        self,
        *addresses: str,
        limits: Limits = DEFAULT_LIMITS,
        keys: KeyPair | None = None,
        allowed: Mapping[str, int] | None = None,
        heartbeat_seconds: float = options.HEARTBEAT_SECONDS,
    ):
        self.curve = keys is not None
        self._limits = limits
        self._allowed = dict(allowed or {})
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        options.set_common(self._socket, limits, curve=self.curve, heartbeat_seconds=heartbeat_seconds)
        self._socket.sndhwm = _UNSENT_MESSAGES
        self._socket.router_mandatory = True  # an unknown peer is an error, not a silent loss
        self._socket.backlog = 1024
        self._authenticator = self._require_keys(keys) if keys else None
        self.connections = Connections(self._socket, curve=self.curve)
        self.addresses = [self._bind(address) for address in addresses]
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self.connections.monitor, zmq.POLLIN)

    def events(self, timeout_seconds: float) -> Iterator[Event]:
        """Wait at most this long, then yield all that came. Losses come last: a peer's last words count."""
        self._poller.poll(max(0, round(timeout_seconds * 1000)))
        self.connections.take_events()
        silent = self.connections.silent()
        while True:
            try:
                frames = options.receive_frames(self._socket)
            except zmq.Again:
                break
            yield self._arrival(frames)
        self.connections.forget(silent)
        yield from (Lost(route) for route in self.connections.drain())

    def send(self, route: bytes, message: Message, parcel: Parcel = Parcel()) -> Receipt:  # noqa: B008
        """Hand a message over without waiting. Raises PeerUnreachable when it cannot be."""
        frames = encode(message, parcel)
        connection = self.connections.of_route(route)
        if connection is not None and connection.ended:  # ZeroMQ may not have noticed yet
            raise PeerUnreachable(f"{route.decode(errors='replace')}: the connection has closed")
        try:
            # Large frames are not copied; pyzmq copies small ones because that is faster.
            options.send_frames(self._socket, [route, *frames])
        except zmq.ZMQError as error:
            raise PeerUnreachable(f"{route.decode(errors='replace')}: {error.strerror}") from None
        receipt = receipt_of(kind_of(message), list(map(len, frames)), parcel.specs, curve=self.curve)
        if connection is not None:
            connection.sent_bytes += receipt.wire_bytes
        return receipt

    def hang_up(self, route: bytes) -> None:
        """End a connection that is of no use any more; what is still under way to the peer is dropped."""
        if (connection := self.connections.of_route(route)) is not None:
            connection.hang_up()

    def close(self) -> None:
        self.connections.close()
        self._socket.close(linger=options.LINGER_MS)
        if self._authenticator:
            self._authenticator.stop()
        self._context.term()

    @property
    def address(self) -> str:
        """The first of those it listens on."""
        return self.addresses[0]

    def _bind(self, address: str) -> str:
        self._socket.ipv6 = is_ipv6(address)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise AddressUnusable(f"cannot listen on {address}: {options.reason(error)}.") from None
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def _require_keys(self, keys: KeyPair) -> ThreadAuthenticator:
        self._socket.curve_server = True
        self._socket.curve_publickey, self._socket.curve_secretkey = keys.public, keys.secret
        self._socket.zap_domain = _ZAP_DOMAIN.encode()
        authenticator = ThreadAuthenticator(self._context)
        authenticator.start()
        authenticator.configure_curve_callback(_ZAP_DOMAIN, _Admission(self._allowed))
        return authenticator

    def _arrival(self, frames: Sequence[zmq.Frame]) -> Event:
        route = frames[0].bytes
        buffers = [frame.buffer for frame in frames[1:]]
        lengths = list(map(len, buffers))
        rejected = receipt_of("rejected", lengths, (), curve=self.curve)
        try:
            connection = self.connections.of_message(route, int(frames[1].get(zmq.SRCFD)))
        except zmq.ZMQError:
            # ZMTP before 3.0 has no such property; to ZeroMQ any stray bytes (a web browser's) look like it.
            return Rejected(route, DecodeError("the peer speaks no ZMTP 3"), rejected, None)
        if connection is None:
            return Rejected(route, DecodeError("which connection it came through cannot be told"), rejected, None)
        try:
            decoded = decode(buffers, self._limits)
        except DecodeError as error:
            connection.received_bytes += rejected.wire_bytes
            return Rejected(route, error, rejected, connection)
        receipt = receipt_of(kind_of(decoded.message), lengths, decoded.specs, curve=self.curve)
        connection.received_bytes += receipt.wire_bytes
        owner = self._allowed.get(str(frames[1].get("User-Id"))) if self.curve else None
        return Arrived(route, owner, decoded, receipt, connection)


class _Admission:
    """What ZeroMQ's authenticator asks: may this public key join?"""

    def __init__(self, allowed: Mapping[str, int]):
        self._allowed = allowed

    def callback(self, domain: str, key: bytes) -> bool:
        return key.decode() in self._allowed
