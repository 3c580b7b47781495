"""The two ends of the wire: a ROUTER for the server, a DEALER for each client. Every option has a reason.

A client's routing id is its number and a random part: "7.9f3c...". A client that is started again gets a new
one, so an old connection can never swallow its messages, and nobody can take over a routing id by guessing
it. Which client a route belongs to is decided by its Hello and, with keys, by the key it joined with.
"""

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import parse_monitor_message

from protocol import wire
from protocol.codec import Buffer, Decoded, Parcel, decode, encode
from protocol.connections import Connection, Connections
from protocol.errors import AddressUnusable, AdmissionRefused, DecodeError, PeerUnreachable
from protocol.keys import KeyPair
from protocol.ledger import Receipt, receipt_of
from protocol.limits import DEFAULT_LIMITS, Limits
from protocol.messages import Message, kind_of

_QUEUED_MESSAGES = 64  # a peer has one request under way; a longer queue only hides a peer that does not read
_LINGER_MS = 1000  # long enough to hand over a Stop, short enough not to hang on a dead peer
_HEARTBEAT_LIVES = 6  # missed heartbeats until a peer counts as gone
_MAX_TTL_MS = 60_000  # larger values overflow in ZMTP's PING
_COPIED_BYTES = 1 << 20  # a client copies frames up to this size: cheaper than being told when one was sent
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
        address: str,
        *,
        limits: Limits = DEFAULT_LIMITS,
        keys: KeyPair | None = None,
        allowed: Mapping[str, int] | None = None,
    ):
        self.curve = keys is not None
        self._limits = limits
        self._allowed = dict(allowed or {})
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        _set_common_options(self._socket, limits, curve=self.curve)
        self._socket.router_mandatory = True  # an unknown peer is an error, not a silent loss
        self._socket.router_handover = True  # the same process reconnecting takes its route back
        self._socket.backlog = 1024
        self._authenticator = self._require_keys(keys) if keys else None
        self.connections = Connections(self._socket, curve=self.curve)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise AddressUnusable(f"cannot listen on {address}: {_reason(error)}.") from None
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self.connections.monitor, zmq.POLLIN)

    def events(self, timeout_seconds: float) -> Iterator[Event]:
        """Wait at most this long, then yield all that came. Losses come last: a peer's last words count."""
        self._poller.poll(max(0, round(timeout_seconds * 1000)))
        self.connections.take_events()
        while True:
            try:
                frames = _receive_frames(self._socket)
            except zmq.Again:
                break
            yield self._arrival(frames)
        yield from (Lost(route) for route in self.connections.drain())

    def send(self, route: bytes, message: Message, parcel: Parcel = Parcel()) -> Receipt:  # noqa: B008
        """Hand a message over without waiting. Raises PeerUnreachable when it cannot be."""
        frames = encode(message, parcel)
        connection = self.connections.of_route(route)
        if connection is not None and connection.ended:  # ZeroMQ may not have noticed yet
            raise PeerUnreachable(f"{route.decode(errors='replace')}: the connection has closed")
        try:
            # Large frames are not copied; pyzmq copies small ones because that is faster.
            _send_frames(self._socket, [route, *frames])
        except zmq.ZMQError as error:
            raise PeerUnreachable(f"{route.decode(errors='replace')}: {error.strerror}") from None
        receipt = receipt_of(kind_of(message), list(map(len, frames)), parcel.specs, curve=self.curve)
        if connection is not None:
            connection.sent_bytes += receipt.wire_bytes
        return receipt

    def close(self) -> None:
        self.connections.close()
        self._socket.close(linger=_LINGER_MS)
        if self._authenticator:
            self._authenticator.stop()
        self._context.term()

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
        try:
            fd = frames[1].get(zmq.SRCFD)
        except zmq.ZMQError:
            # ZMTP before 3.0 has no such property; to ZeroMQ any stray bytes (a web browser's) look like it.
            error = DecodeError("the peer speaks no ZMTP 3")
            return Rejected(route, error, receipt_of("rejected", lengths, (), curve=self.curve), None)
        num_bytes = wire.message_bytes(lengths, curve=self.curve)
        connection = self.connections.of_message(route, fd, num_bytes)
        try:
            decoded = decode(buffers, self._limits)
        except DecodeError as error:
            receipt = receipt_of("rejected", lengths, (), curve=self.curve)
            connection.received_bytes += receipt.wire_bytes
            return Rejected(route, error, receipt, connection)
        receipt = receipt_of(kind_of(decoded.message), lengths, decoded.specs, curve=self.curve)
        connection.received_bytes += receipt.wire_bytes
        owner = self._allowed.get(str(frames[1].get("User-Id"))) if self.curve else None
        return Arrived(route, owner, decoded, receipt, connection)


class ClientSocket:
    """One client's end. Reconnects by itself; `num_connects` tells that it did."""

    def __init__(
        self,
        address: str,
        client: int,
        *,
        limits: Limits = DEFAULT_LIMITS,
        keys: KeyPair | None = None,
        server_key: bytes | None = None,
        heartbeat_seconds: float = 0.0,
    ):
        self.num_connects = 0
        self.connected = False
        self._limits = limits
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        _set_common_options(self._socket, limits, curve=keys is not None)
        self._socket.copy_threshold = _COPIED_BYTES
        self._socket.identity = f"{client}.{secrets.token_hex(8)}".encode()
        self._socket.reconnect_ivl = 100
        self._socket.reconnect_ivl_max = 2000  # back off, but notice a restarted server soon
        if keys is not None:
            assert server_key is not None, "a client with keys knows the server's key"
            self._socket.curve_publickey, self._socket.curve_secretkey = keys.public, keys.secret
            self._socket.curve_serverkey = server_key
        if heartbeat_seconds:
            # Only clients ping: it tells both ends, and the ledger can solve for the number of heartbeats.
            lifetime_ms = round(heartbeat_seconds * 1000 * _HEARTBEAT_LIVES)
            interval_ms = round(heartbeat_seconds * 1000)
            self._socket.heartbeat_ivl = interval_ms
            self._socket.heartbeat_timeout = lifetime_ms
            # Pings that are too rare for any time-to-live carry none; then TCP keep-alive must do.
            fits = 2 * interval_ms <= _MAX_TTL_MS
            self._socket.heartbeat_ttl = min(lifetime_ms, _MAX_TTL_MS) if fits else 0
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_DISCONNECTED
        )
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise AddressUnusable(f"cannot connect to {address}: {_reason(error)}.") from None
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def receive(self, timeout_seconds: float) -> Decoded | None:
        """The next message, or None when none came in time. AdmissionRefused: joining is hopeless."""
        ready = dict(self._poller.poll(max(0, round(timeout_seconds * 1000))))
        if self._monitor in ready:
            self._watch()
        if self._socket not in ready:
            return None
        frames = _receive_frames(self._socket)
        return decode([frame.buffer for frame in frames], self._limits)

    def send(self, message: Message, parcel: Parcel = Parcel()) -> None:  # noqa: B008
        """Queue a message; it leaves as soon as there is a connection.

        A refused client has no queue any more, and waiting for one would never end.
        """
        frames: list[Buffer] = encode(message, parcel)
        try:
            _send_frames(self._socket, frames)
        except zmq.Again:
            self._watch()  # knows why, unless it has said so already
            raise PeerUnreachable("the server takes no messages from this client") from None

    def close(self) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)  # the context would wait for it for ever
        self._socket.close(linger=_LINGER_MS)
        self._context.term()

    def _watch(self) -> None:
        while self._monitor.poll(0):
            event = parse_monitor_message(self._monitor.recv_multipart())["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.connected, self.num_connects = True, self.num_connects + 1
            elif event == zmq.EVENT_DISCONNECTED:
                self.connected = False
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise AdmissionRefused("the server does not admit this key")
            elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                # Said once: ZeroMQ does not try again. A server that is just going away is another event.
                raise AdmissionRefused("the server and this client do not agree on using keys")


# pyzmq's own send_multipart and recv_multipart work out flags and options anew for every frame, and its flags
# are slow enums: a third of the Python code that a message went through.
_LAST, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)


def _send_frames(socket: "zmq.Socket[bytes]", frames: Sequence[Buffer]) -> None:
    for frame in frames[:-1]:
        socket.send(frame, _MORE, copy=False)
    socket.send(frames[-1], _LAST, copy=False)


def _receive_frames(socket: "zmq.Socket[bytes]") -> list[zmq.Frame]:
    frame = socket.recv(_LAST, copy=False)
    frames = [frame]
    while frame.more:
        frame = socket.recv(_LAST, copy=False)
        frames.append(frame)
    return frames


class _Admission:
    """What ZeroMQ's authenticator asks: may this public key join?"""

    def __init__(self, allowed: Mapping[str, int]):
        self._allowed = allowed

    def callback(self, domain: str, key: bytes) -> bool:
        return key.decode() in self._allowed


def _reason(error: zmq.ZMQError) -> str:
    """In the system's words; pyzmq's own repeat the address."""
    return zmq.strerror(error.errno or 0).lower()


def _set_common_options(socket: "zmq.Socket[bytes]", limits: Limits, *, curve: bool) -> None:
    # Refused before it is allocated; the connection is dropped. ZeroMQ compares what travels.
    socket.maxmsgsize = limits.max_frame_bytes + (wire.CURVE_OVERHEAD if curve else 0)
    socket.sndhwm = socket.rcvhwm = _QUEUED_MESSAGES
    socket.linger = _LINGER_MS
    socket.tcp_keepalive = 1  # a host that vanished is noticed even without heartbeats
    socket.tcp_keepalive_idle = 30
