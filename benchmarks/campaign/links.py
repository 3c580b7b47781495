"""A relay on loopback between a server and its clients: it delays, slows, stalls and cuts what passes through it.

Both ends speak TCP with the relay, so what it does is what a bad link does to a connection: bytes come late,
slowly or not at all, connections break with or without a word. A packet that is lost shows as a pause in which TCP
sends it again; so does loss here.

Not `protocol/relay.py`, which a run has for its links: that one has a port for each client, never changes, and
answers for every byte. This one has a single port for all, as a server has, and is told while it works what to
break; what breaks connections on purpose is better not in the code of a run.
"""

import contextlib
import random
import selectors
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from nodes.launchers import zygote

_CHUNK_BYTES = 4096
_HELD_BYTES = 1 << 16  # of each way: a link that is full takes no more
_LOOK_SECONDS = 0.02


@dataclass
class Link:
    """What the link does to each connection and direction."""

    delay_seconds: float = 0.0
    bytes_per_second: float = float("inf")
    loss: float = 0.0
    """The share of chunks that come only after a pause."""
    cut_until: float = 0.0
    """Until then nothing passes, and nobody can connect."""


@dataclass
class _Way:
    """One direction of a connection."""

    source: socket.socket
    sink: socket.socket
    held: deque[tuple[float, bytes]] = field(default_factory=deque)
    held_bytes: int = 0
    free_at: float = 0.0
    """When the link takes the next bytes."""

    def take(self, link: Link, now: float, draw: random.Random) -> bool:
        """Bytes from the source; False when it has closed."""
        if self.held_bytes >= _HELD_BYTES or now < self.free_at:
            return True
        try:
            content = self.source.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        pause = draw.uniform(0.2, 1.0) if draw.random() < link.loss else 0.0
        self.free_at = max(self.free_at, now) + pause + len(content) / link.bytes_per_second
        self.held.append((self.free_at + link.delay_seconds, content))
        self.held_bytes += len(content)
        return bool(content)

    def give(self, now: float) -> bool:
        """Bytes whose time has come to the sink; False when it has closed."""
        while self.held and self.held[0][0] <= now:
            due, content = self.held.popleft()
            try:
                sent = self.sink.send(content)
            except BlockingIOError:
                sent = 0
            except OSError:
                return False
            self.held_bytes -= sent
            if sent < len(content):
                self.held.appendleft((due, content[sent:]))
                break
        return True


class _Relay:
    """The process of a relay: one thread, one loop."""

    def __init__(self, listener: socket.socket, target: tuple[str, int], orders: Connection, seed: int):
        self._listener = listener
        self._target = target
        self._orders = orders
        self._draw = random.Random(seed)
        self._link = Link()
        self._pairs: list[tuple[_Way, _Way]] = []

    def run(self) -> int:
        """Until whoever gives orders has gone."""
        self._listener.setblocking(False)
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._orders, selectors.EVENT_READ)
            while True:
                busy = any(way.held for pair in self._pairs for way in pair)
                waiting.select(0.001 if busy else _LOOK_SECONDS / 4)
                try:
                    while self._orders.poll():
                        self._obey(self._orders.recv())
                except EOFError:
                    return 0
                if time.monotonic() >= self._link.cut_until:
                    self._accept()
                    self._pass_on()

    def _obey(self, order: dict[str, Any]) -> None:
        if order.pop("hang_up", False):
            for pair in self._pairs:
                self._close(pair)
            self._pairs = []
        if (seconds := order.pop("cut_seconds", None)) is not None:
            self._link.cut_until = time.monotonic() + seconds
        for name, value in order.items():
            setattr(self._link, name, value)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._target, timeout=5)
                except OSError:  # nothing listens there: nor here
                    near.close()
                    continue
                for end in (near, far):
                    end.setblocking(False)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._pairs.append((_Way(near, far), _Way(far, near)))

    def _pass_on(self) -> None:
        now, left = time.monotonic(), []
        for pair in self._pairs:
            open_ends = [way.take(self._link, now, self._draw) for way in pair]
            closed = not all(way.give(now) for way in pair)
            over = not all(open_ends) and not any(way.held_bytes for way in pair)
            if closed or over:
                self._close(pair)
            else:
                left.append(pair)
        self._pairs = left

    @staticmethod
    def _close(pair: tuple[_Way, _Way]) -> None:
        for way in pair:
            way.source.close()


class Relay:
    """A relay in a process of its own, which ends with this one."""

    def __init__(self, target: str, seed: int = 0):
        host, _, port = target.removeprefix("tcp://").rpartition(":")
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        theirs, self._orders = Pipe(duplex=False)

        def main() -> int:
            self._orders.close()
            return _Relay(listener, (host, int(port)), theirs, seed).run()

        self._process = zygote.fork(main)
        listener.close()
        theirs.close()

    def set(self, **link: float) -> None:
        """As the fields of `Link` say, from now on."""
        self._orders.send(link)

    def cut(self, seconds: float) -> None:
        """Without a word to anybody; afterwards everything goes on where it was."""
        self._orders.send({"cut_seconds": seconds})

    def hang_up(self, seconds: float = 0.0) -> None:
        """All connections end now, and for a while there are no new ones."""
        self._orders.send({"hang_up": True, "cut_seconds": seconds})

    def close(self) -> None:
        self._orders.close()
        zygote.stop_process(self._process)
