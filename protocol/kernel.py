"""The kernel's own byte counters of a TCP connection (Linux, TCP_INFO): the independent witness."""

import socket
import struct
import sys
from dataclasses import dataclass

_TCP_INFO_BYTES = 256
# Offsets in struct tcp_info; the last field needs a kernel of 4.19 or newer.
_STATE, _BYTES_ACKED, _BYTES_RECEIVED, _BYTES_SENT, _BYTES_RETRANS = 0, 120, 128, 200, 208
_NEEDED_BYTES = _BYTES_RETRANS + 8
# States after the peer's FIN (CLOSE_WAIT, LAST_ACK, CLOSING), which the kernel counts as one received byte.
_FIN_SEEN = {8, 9, 11}


@dataclass(frozen=True)
class TcpCounters:
    """Bytes of payload that TCP carried, without retransmissions."""

    sent: int
    """Left this machine at least once."""
    received: int
    acknowledged: int = 0
    """Of those sent, what the peer's kernel has confirmed."""
    peer_closed: bool = False
    """The peer hung up in order, so all it ever sent has come; not so when it was reset or timed out."""


def read_counters(fd: int) -> TcpCounters | None:
    """The counters of the TCP socket behind `fd`, or None where the platform has none."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        borrowed = socket.socket(fileno=fd)
    except OSError:  # not a socket: the number was used again for something else
        return None
    try:
        info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    finally:
        borrowed.detach()
    if len(info) < _NEEDED_BYTES:
        return None
    fields = (_BYTES_ACKED, _BYTES_RECEIVED, _BYTES_SENT, _BYTES_RETRANS)
    acknowledged, received, sent, resent = (struct.unpack_from("<Q", info, at)[0] for at in fields)
    peer_closed = info[_STATE] in _FIN_SEEN
    left = sent - resent
    # Our own FIN is acknowledged as one more byte.
    return TcpCounters(left, received - peer_closed, min(acknowledged, left), peer_closed)
