"""What both ends set on their sockets, and how frames go in and out of them. Every option has a reason."""

import math
from collections.abc import Sequence

import zmq

from protocol import wire
from protocol.codec import Buffer
from protocol.limits import Limits

LINGER_MS = 1000  # long enough to hand over a Stop, short enough not to hang on a dead peer
HEARTBEAT_SECONDS = 5.0
HEARTBEAT_LIVES = 6  # heartbeats without any progress until a connection counts as dead

_QUEUED_MESSAGES = 64  # received and not yet read, or sent and not yet gone


def set_common(socket: "zmq.Socket[bytes]", limits: Limits, *, curve: bool, heartbeat_seconds: float) -> None:
    # Refused before it is allocated; the connection is dropped. ZeroMQ compares what travels.
    socket.maxmsgsize = limits.max_frame_bytes + (wire.CURVE_OVERHEAD if curve else 0)
    socket.sndhwm = socket.rcvhwm = _QUEUED_MESSAGES
    socket.linger = LINGER_MS
    # The kernel knows whether a connection is alive: bytes under way must be acknowledged one after the other,
    # and where nothing is under way it asks. So a large frame lives as long as it moves, and no byte of the
    # stream is spent. ZMTP's own heartbeats wait behind the frame and take a slow link for a dead one.
    seconds = math.ceil(heartbeat_seconds)
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = socket.tcp_keepalive_intvl = seconds
    socket.tcp_keepalive_cnt = HEARTBEAT_LIVES
    socket.tcp_maxrt = round(heartbeat_seconds * HEARTBEAT_LIVES * 1000)  # TCP_USER_TIMEOUT


# pyzmq's own send_multipart and recv_multipart work out flags and options anew for every frame, and its flags
# are slow enums: a third of the Python code that a message went through.
_LAST, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)


def send_frames(socket: "zmq.Socket[bytes]", frames: Sequence[Buffer]) -> None:
    for frame in frames[:-1]:
        socket.send(frame, _MORE, copy=False)
    socket.send(frames[-1], _LAST, copy=False)


def receive_frames(socket: "zmq.Socket[bytes]") -> list[zmq.Frame]:
    frame = socket.recv(_LAST, copy=False)
    frames = [frame]
    while frame.more:
        frame = socket.recv(_LAST, copy=False)
        frames.append(frame)
    return frames


def reason(error: zmq.ZMQError) -> str:
    """In the system's words; pyzmq's own repeat the address."""
    return zmq.strerror(error.errno or 0).lower()
