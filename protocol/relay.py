"""A relay that makes a fast connection a slow one: what goes through it arrives as over a link, byte for byte.

Between clients and a server on one machine, in a process of its own, without rights and without the kernel's help.
Each client has a port of its own, so that the relay knows whose link it is without a look at what it carries: keys
stay between the two ends.

    client ──► port + id │ bucket: leaves at the rate │ air: under way for the delay │ ──► server     and back

A byte's arrival is worked out when it comes in, from when those before it have left, and never from when the relay
got round to it: being late once makes nothing after it late. While more than a moment's worth waits to leave,
nothing more is read, so the sender feels the link.
"""

import contextlib
import errno
import heapq
import itertools
import math
import random
import secrets
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protocol import kernel
from protocol.addresses import host_of
from protocol.errors import AddressUnusable

CAPACITY_BYTES = 100_000_000
"""A second, of all connections together; beyond it a relay falls behind."""
LATE_SECONDS = 0.005
"""What may be put down to the machine; what is later than this is told."""

_QUANTUM_SECONDS = 0.02  # read and passed on together
_LEAST_BYTES, _MOST_BYTES = 1500, 1 << 18
_BUFFER_BYTES = 1 << 16  # of the kernel, on the side that reads
_PORTS = range(10_240, 32_000)  # below those that the kernel deals out
_BIND_ATTEMPTS = 100
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: hang up as a connection that was cut does


@dataclass(frozen=True)
class Shape:
    """One direction of a link."""

    bytes_per_second: float
    delay_seconds: float = 0.0
    jitter_seconds: float = 0.0


Shapes = tuple[Shape | None, Shape | None]
"""Up to the server, and down to the client; None: as fast as it goes."""


@dataclass
class Books:
    """What one connection has carried. Of one that ended in order, as much went out as came in."""

    client: int
    bytes_in: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    bytes_out: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    was_cut: bool = False
    kernel_agrees: bool = True
    """Whether the kernel has counted the same on both sides, where it counts."""

    @property
    def agrees(self) -> bool:
        return self.was_cut or (self.bytes_in == self.bytes_out and self.kernel_agrees)


class _Way:
    """One direction of one connection."""

    def __init__(self, name: str, books: Books, source: socket.socket, target: socket.socket, shape: Shape | None):
        self.name, self.books, self.source, self.target, self.shape = name, books, source, target, shape
        self.waiting: deque[tuple[float, memoryview]] = deque()
        """Bytes, and when they arrive."""
        self.free_at = self.last_arrival = self.offset = 0.0
        self.reads, self.ended, self.is_shut, self.is_blocked = True, False, False, False
        self.timer = math.inf
        """When the relay will look here at the latest, whatever sockets tell."""
        rate = shape.bytes_per_second if shape else _MOST_BYTES / _QUANTUM_SECONDS
        self.chunk = int(min(max(rate * _QUANTUM_SECONDS, _LEAST_BYTES), _MOST_BYTES))

    def take(self, now: float, luck: Callable[[float, float], float], *, has_waited: bool) -> None:
        """What has come, and when it will arrive. What waited for us leaves as soon as what was before it has."""
        size = self.chunk
        if has_waited and self.shape:  # and so long that more could have left meanwhile: nothing is lost by that
            size += int(max(0.0, now - self.free_at) * self.shape.bytes_per_second)
        part = self.source.recv(min(size, _MOST_BYTES))
        if not part:
            self.ended, self.reads = True, False
            return
        self.books.bytes_in[self.name] += len(part)
        arrives = now
        if self.shape:
            if self.free_at <= now and not has_waited:  # a new burst
                self.free_at, self.offset = now, luck(-self.shape.jitter_seconds, self.shape.jitter_seconds)
            self.free_at += len(part) / self.shape.bytes_per_second
            arrives = self.free_at + self.shape.delay_seconds + self.offset
        self.last_arrival = max(arrives, self.last_arrival)  # none overtakes another
        self.waiting.append((self.last_arrival, memoryview(part)))

    def give(self, now: float) -> float:
        """Whatever has arrived; returns by how many seconds the relay was late."""
        late = 0.0
        self.is_blocked = False
        while self.waiting and self.waiting[0][0] <= now:
            due, part = self.waiting[0]
            try:
                sent = self.target.send(part)
            except BlockingIOError:
                self.is_blocked = True  # the receiver's fault
                return late
            late = max(late, now - due)
            self.books.bytes_out[self.name] += sent
            if sent == len(part):
                self.waiting.popleft()
            else:
                self.waiting[0] = (due, part[sent:])
        if self.ended and not self.waiting and not self.is_shut:
            self.is_shut = True
            self.target.shutdown(socket.SHUT_WR)
        return late

    def has_room(self, now: float) -> bool:
        """Whether more may be read: otherwise the sender is to feel that nothing leaves."""
        return not self.is_blocked and self.free_at - now <= _QUANTUM_SECONDS

    def next_event(self, now: float) -> float:
        """When there is something to do that no socket tells of."""
        if self.is_blocked:
            return math.inf
        arrival = self.waiting[0][0] if self.waiting else math.inf
        return arrival if self.ended or self.reads else min(arrival, max(self.free_at - _QUANTUM_SECONDS, now))


class Relay:
    """Listens as soon as it is made; `serve` does the work."""

    def __init__(
        self, server: str, links: Sequence[Shapes], seed: int = 0, clock: Callable[[], float] = time.monotonic
    ):
        """`links` has one for each client, in the order of their ids."""
        self.books: list[Books] = []
        self.latest_seconds = 0.0
        """The latest that anything was passed on."""
        self._server = (host_of(server, listens=False), int(server.rpartition(":")[2]))
        self._links = links
        self._luck = random.Random(seed).uniform
        self._clock = clock
        self._listeners, port = _listen(len(links))
        self.address = f"tcp://127.0.0.1:{port}"
        """Of client 0; the next one's port is one higher."""
        self._selector: selectors.BaseSelector
        self._ends: dict[socket.socket, dict[str, _Way]] = {}
        self._timers: list[tuple[float, int, _Way]] = []
        self._order = itertools.count()

    @property
    def nominal_bytes_per_second(self) -> float:
        """Of all links together, in their busier direction."""
        ways = zip(*self._links, strict=True)
        return max((sum(shape.bytes_per_second for shape in way if shape) for way in ways), default=0.0)

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()

    def serve(self, is_over: Callable[[], bool]) -> None:
        """Until somebody says that it is over; then whatever is still open is cut."""
        with selectors.DefaultSelector() as self._selector:
            for client, listener in enumerate(self._listeners):
                self._selector.register(listener, selectors.EVENT_READ, client)
            while not is_over():
                self._step()
            while self._ends:
                self._cut(next(iter(self._ends)))

    def _step(self) -> None:
        wait = min(max(self._timers[0][0] - self._clock(), 0.0), 0.2) if self._timers else 0.2
        for key, mask in self._selector.select(wait):
            end = key.fileobj
            assert isinstance(end, socket.socket)
            if key.data is not None:
                self._accept(end, key.data)
                continue
            ways = self._ends.get(end, {})
            if mask & selectors.EVENT_READ and "in" in ways:
                self._advance(ways["in"], has_come=True)
            if mask & selectors.EVENT_WRITE and "out" in ways:
                self._advance(ways["out"])
        now = self._clock()
        while self._timers and self._timers[0][0] <= now:
            due, _, way = heapq.heappop(self._timers)
            if due == way.timer:
                way.timer = math.inf
                self._advance(way)

    def _accept(self, listener: socket.socket, client: int) -> None:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(self._server, timeout=5)
        except OSError:  # the server has gone; whoever came will see it so
            near.close()
            return
        books = Books(client)
        self.books.append(books)
        for end in (near, far):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        up, down = self._links[client]
        ways = _Way("up", books, near, far, up), _Way("down", books, far, near, down)
        self._ends[near], self._ends[far] = {"in": ways[0], "out": ways[1]}, {"in": ways[1], "out": ways[0]}
        for end in (near, far):
            self._selector.register(end, selectors.EVENT_READ)

    def _advance(self, way: _Way, *, has_come: bool = False) -> None:
        """Take and give what there is, and see to being called again."""
        if way.source not in self._ends:
            return
        now = self._clock()
        may_resume = not way.reads and not way.ended and way.has_room(now)
        try:
            if has_come or may_resume:
                with contextlib.suppress(BlockingIOError):
                    way.take(now, self._luck, has_waited=may_resume)
            self.latest_seconds = max(self.latest_seconds, way.give(now))
        except OSError as error:
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN, errno.ETIMEDOUT):
                raise
            self._cut(way.source)
            return
        way.reads = not way.ended and way.has_room(now)
        if all(other.is_shut for other in self._ends[way.source].values()):
            self._finish(way)
            return
        for end in (way.source, way.target):
            self._watch(end)
        if (due := way.next_event(now)) < way.timer:
            way.timer = due
            heapq.heappush(self._timers, (due, next(self._order), way))

    def _watch(self, end: socket.socket) -> None:
        """Be told of what matters now, and of nothing else."""
        ways = self._ends[end]
        wanted = selectors.EVENT_READ * ways["in"].reads | selectors.EVENT_WRITE * ways["out"].is_blocked
        known = self._selector.get_map().get(end)
        if known is None and wanted:
            self._selector.register(end, wanted)
        elif known is not None and not wanted:
            self._selector.unregister(end)
        elif known is not None and known.events != wanted:
            self._selector.modify(end, wanted)

    def _finish(self, way: _Way) -> None:
        """Both sides have hung up and everything has been passed on: ask the kernel whether it saw the same."""
        ways = self._ends[way.source].values()
        way.books.kernel_agrees = all(map(_kernel_agrees, ways))
        self._forget(way)

    def _cut(self, end: socket.socket) -> None:
        way = self._ends[end]["in"]
        way.books.was_cut = True
        for side in (way.source, way.target):
            with contextlib.suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._forget(way)

    def _forget(self, way: _Way) -> None:
        for end in (way.source, way.target):
            with contextlib.suppress(KeyError):
                self._selector.unregister(end)
            del self._ends[end]
            end.close()


def _kernel_agrees(way: _Way) -> bool:
    """The end of a stream is one byte more to the kernel, as long as it remembers it."""
    source, target = (kernel.read_counters(end.fileno()) for end in (way.source, way.target))
    if source is None or target is None:
        return True
    received = source.received - way.books.bytes_in[way.name]
    return received in (0, 1) and target.sent == way.books.bytes_out[way.name]


def _listen(number: int) -> tuple[list[socket.socket], int]:
    """As many ports in a row; the first of them."""
    for _ in range(_BIND_ATTEMPTS):
        first = _PORTS.start + secrets.randbelow(max(1, len(_PORTS) - number))
        found: list[socket.socket] = []
        try:
            for port in range(first, first + number):
                found.append(socket.create_server(("127.0.0.1", port)))
        except (OSError, OverflowError):
            for listener in found:
                listener.close()
            continue
        return found, first
    raise AddressUnusable(f"no {number} free ports in a row were found for the relay; use fewer clients.")
