"""Messages and arrays that the tests of the wire send, and a look at the kernel's end of a connection."""

import contextlib
import socket
from collections.abc import Iterator

import msgpack
import numpy as np

from protocol.client_socket import ClientSocket
from protocol.codec import Parcel, pack
from protocol.messages import VERSION, Hello, Setup, Stop

SETUP = Setup(run="a-run")
STOP = Stop(reason="done")


def hello(client: int) -> Hello:
    return Hello(client=client, place="here", slots=1)


def route_of(client: ClientSocket) -> bytes:
    """The routing id of its connection, or of the attempt to make one; empty between two attempts."""
    return client._line.route if client._line else b""


def zeros(num_bytes: int) -> dict[str, np.ndarray]:
    return {"a": np.zeros(num_bytes, np.uint8)}


def parcel_of(**arrays: np.ndarray) -> Parcel:
    return pack(arrays, dict.fromkeys(arrays, "prototypes"))


def frames_of(header: dict, *arrays: bytes) -> list[bytes]:
    """A stop message with other fields in its header, as frames."""
    return [msgpack.packb({"v": VERSION, "kind": "stop", "reason": "", **header}), *arrays]


@contextlib.contextmanager
def borrowed(fd: int) -> Iterator[socket.socket]:
    """A descriptor that is ZeroMQ's own, and stays open."""
    borrowed = socket.socket(fileno=fd)
    try:
        yield borrowed
    finally:
        borrowed.detach()


def watch_of(fd: int) -> tuple[int, ...]:
    """How the kernel watches over a connection: idle seconds, interval, and milliseconds without progress."""
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_USER_TIMEOUT)
    with borrowed(fd) as connection:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        return tuple(connection.getsockopt(socket.IPPROTO_TCP, option) for option in options)
