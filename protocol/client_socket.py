"""A client's end of the wire: one DEALER for each connection, and a new connection whenever one has ended.

ZeroMQ would reconnect by itself and go on under the same routing id; then nobody could tell through which
connection a message came. So each attempt is a socket of its own with a routing id of its own, and what was
still to be sent when its connection ended is gone: after its next Hello the client is asked again.
"""

import contextlib
import itertools
import os
import re
import secrets
import select
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import zmq
from zmq.utils.monitor import parse_monitor_message

from protocol import options
from protocol.addresses import is_ipv6, resolve
from protocol.codec import Buffer, Decoded, Parcel, decode, encode
from protocol.diagnosis import diagnose, mismatch
from protocol.errors import AddressUnusable, AdmissionRefused
from protocol.keys import KeyPair
from protocol.limits import DEFAULT_LIMITS, Limits
from protocol.messages import Message

_NEVER_MS = 1_000_000_000  # eleven days; -1 would be never, but drops what came and was not read yet
_CONNECT_MS = 5000  # then the next address is tried, or the same one anew
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 2.0  # back off, but notice a restarted server soon
_COPIED_BYTES = 1 << 20  # a client copies frames up to this size: cheaper than being told when one was sent
_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
)


_ROUTE = re.compile(rb"([0-9]+\.[0-9a-f]{16})\.[0-9a-f]{4,}")


def process_of(route: bytes) -> bytes:
    """The part of a routing id that all connections of one process have in common; of a foreign one, all of it."""
    match = _ROUTE.fullmatch(route)
    return match.group(1) if match else route


class ClientSocket:
    """Connects again by itself; `num_connects` tells that it did."""

    def __init__(
        self,
        address: str,
        client: int,
        *,
        limits: Limits = DEFAULT_LIMITS,
        keys: KeyPair | None = None,
        server_key: bytes | None = None,
        heartbeat_seconds: float = options.HEARTBEAT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.num_connects = 0
        self.connected = False
        self._address = address
        self._limits, self._keys, self._server_key = limits, keys, server_key
        self._heartbeat_seconds = heartbeat_seconds
        self._clock = clock
        self._process = f"{client}.{secrets.token_hex(8)}"
        self._attempts = itertools.count()
        self._context = zmq.Context()
        self._line: _Line | None = None
        self._unread: deque[list[zmq.Frame]] = deque()
        """What came through connections that have ended since."""
        self._wait_seconds, self._retry_at = _FIRST_WAIT_SECONDS, 0.0
        try:
            self._line = self._connect()
        except AddressUnusable:
            self.close()
            raise

    def receive(self, timeout_seconds: float) -> Decoded | None:
        """The next message, or None when none came in time. AdmissionRefused: joining is hopeless."""
        frames = self._unread.popleft() if self._unread else self._receive_frames(max(0.0, timeout_seconds))
        return decode([frame.buffer for frame in frames], self._limits) if frames else None

    def send(self, message: Message, parcel: Parcel = Parcel()) -> None:  # noqa: B008
        """Queue a message; it leaves as soon as there is a connection, and is lost when that connection is."""
        if self._line is not None:
            self._line.send(encode(message, parcel))
            self._note(self._line)

    @contextlib.contextmanager
    def kept(self, greet: Callable[[], None]) -> Iterator[None]:
        """While the caller is busy, a thread connects anew where a connection ends, and greets; what comes waits.

        Meanwhile nobody may use the socket but `greet`, which is called by the thread.
        """
        readable, writable = os.pipe()
        with ThreadPoolExecutor(1) as thread:
            keeping = thread.submit(self._keep, readable, greet)
            try:
                yield
            finally:
                os.close(writable)
                keeping.exception()  # it has ended
                os.close(readable)
        keeping.result()

    def diagnose(self) -> str:
        """Why there is no connection, in words for the user; takes a few seconds."""
        return diagnose(self._address, has_keys=self._keys is not None)

    def close(self) -> None:
        if self._line is not None:
            self._line.close(options.LINGER_MS)
        self._context.term()

    def _receive_frames(self, seconds: float) -> list[zmq.Frame]:
        if self._line is None:
            wait = self._retry_at - self._clock()
            time.sleep(max(0.0, min(wait, seconds)))
            if wait > seconds or not self._connect_again():
                return []
        assert self._line is not None
        line = self._line
        frames = line.receive(seconds)
        if frames:  # it is not one that hangs up on everybody
            self._wait_seconds = _FIRST_WAIT_SECONDS
        self._note(line)
        return frames

    def _keep(self, until: int, greet: Callable[[], None]) -> None:
        """Until that descriptor has come to its end."""
        num_connects = self.num_connects
        while True:
            line = self._line
            if line is None:
                wait = max(0.0, self._retry_at - self._clock())
                is_over = bool(select.select([until], [], [], wait)[0])
            else:
                is_over = line.wait_for_news(until)
            if is_over:
                return
            if line is None:
                self._connect_again()
            else:
                self._note(line)
            if self.num_connects > num_connects:
                num_connects = self.num_connects
                greet()

    def _connect_again(self) -> bool:
        """Whether there is an attempt under way."""
        try:
            self._line = self._connect()
        except AddressUnusable:  # the name was known when we began: names come back, too
            self._plan_retry()
        return self._line is not None

    def _note(self, line: "_Line") -> None:
        """What became of the connection. One that has ended is dropped; what it brought is kept."""
        line.watch()
        if line.was_up and not line.is_counted:
            line.is_counted = True
            self.num_connects += 1
        self.connected = line.was_up and not line.has_ended
        if line.has_ended:
            while line.has_message():
                self._unread.append(line.receive(0))
            line.close(linger_ms=0)
            self._line = None
            self._plan_retry()

    def _plan_retry(self) -> None:
        self._retry_at = self._clock() + self._wait_seconds
        self._wait_seconds = min(2 * self._wait_seconds, _LONGEST_WAIT_SECONDS)

    def _connect(self) -> "_Line":
        number = next(self._attempts)
        endpoints = resolve(self._address)
        socket = self._context.socket(zmq.DEALER)
        options.set_common(
            socket, self._limits, curve=self._keys is not None, heartbeat_seconds=self._heartbeat_seconds
        )
        socket.copy_threshold = _COPIED_BYTES
        socket.reconnect_ivl = _NEVER_MS
        socket.connect_timeout = _CONNECT_MS
        if self._keys is not None:
            assert self._server_key is not None, "a client with keys knows the server's key"
            socket.curve_publickey, socket.curve_secretkey = self._keys.public, self._keys.secret
            socket.curve_serverkey = self._server_key
        route = f"{self._process}.{number:04x}".encode()  # of equal length, so that each handshake costs the same
        return _Line(socket, endpoints[number % len(endpoints)], route, has_keys=self._keys is not None)


class _Line:
    """One attempt at a connection and, where it succeeds, that connection: never a second one."""

    def __init__(self, socket: "zmq.Socket[bytes]", endpoint: str, route: bytes, *, has_keys: bool):
        self.route = socket.identity = route
        self.was_up = self.has_ended = self.is_counted = False
        self._socket, self._endpoint, self._has_keys = socket, endpoint, has_keys
        self._monitor = socket.get_monitor_socket(_EVENTS)
        socket.ipv6 = is_ipv6(endpoint)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close(linger_ms=0)
            raise AddressUnusable(f"cannot connect to {endpoint}: {options.reason(error)}.") from None
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def receive(self, timeout_seconds: float) -> list[zmq.Frame]:
        """The frames of the next message; none where none came in time."""
        self._poller.poll(max(0, round(timeout_seconds * 1000)))
        return options.receive_frames(self._socket) if self.has_message() else []

    def wait_for_news(self, until: int) -> bool:
        """Until the connection begins or ends; True where `until` has come to its end instead."""
        news = zmq.Poller()
        news.register(self._monitor, zmq.POLLIN)
        news.register(until, zmq.POLLIN)
        return until in dict(news.poll())

    def has_message(self) -> bool:
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)

    def send(self, frames: list[Buffer]) -> None:
        with contextlib.suppress(zmq.Again):  # the connection has just ended; the monitor says so
            options.send_frames(self._socket, frames)

    def watch(self) -> None:
        """Take note of what the monitor tells."""
        while self._monitor.poll(0):
            event = parse_monitor_message(self._monitor.recv_multipart())["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.was_up = True
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                raise AdmissionRefused("the server does not admit this key")
            elif event & (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL):
                # Which of the two depends on who hangs up first; the latter also when a server goes away.
                if (words := mismatch(self._endpoint, has_keys=self._has_keys)) is not None:
                    raise AdmissionRefused(words)
            else:
                self.has_ended = True

    def close(self, linger_ms: int) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._monitor.close(linger=0)  # the context would wait for it for ever
        self._socket.close(linger=linger_ms)
