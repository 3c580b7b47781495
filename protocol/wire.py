"""The exact byte model of ZMTP 3.1 over TCP, with the NULL and the CURVE mechanism.

One direction of a connection carries a greeting, the mechanism's handshake, and frames. A frame is its body
and a header of 2 bytes, or 9 when the body is longer than 255. CURVE wraps each body in a MESSAGE command
that adds 33 bytes (8 name, 8 nonce, 16 authenticator, 1 flags) before that rule applies. The routing id that
a ROUTER puts before each message is local and never travels.
"""

GREETING = 64
CURVE_OVERHEAD = 33

_SOCKET_TYPE = 1 + len("Socket-Type") + 4  # property name with its length, length of the value
_IDENTITY = 1 + len("Identity") + 4
_CURVE_HELLO, _CURVE_INITIATE = 200, 257
_CURVE_WELCOME, _CURVE_READY = 168, 30
_NULL_READY = 6  # the command's name with its length


def frame_bytes(body: int, *, curve: bool = False) -> int:
    """One frame of a message."""
    size = body + CURVE_OVERHEAD if curve else body
    return size + (2 if size <= 255 else 9)


def client_handshake_bytes(identity: bytes, *, curve: bool = False) -> int:
    """What a DEALER with this routing id sends before its first message."""
    metadata = _SOCKET_TYPE + len("DEALER") + _IDENTITY + len(identity)
    if curve:
        return GREETING + frame_bytes(_CURVE_HELLO) + frame_bytes(_CURVE_INITIATE + metadata)
    return GREETING + frame_bytes(_NULL_READY + metadata)


def server_handshake_bytes(*, curve: bool = False) -> int:
    """What a ROUTER without a routing id of its own sends before its first message."""
    metadata = _SOCKET_TYPE + len("ROUTER") + _IDENTITY
    if curve:
        return GREETING + frame_bytes(_CURVE_WELCOME) + frame_bytes(_CURVE_READY + metadata)
    return GREETING + frame_bytes(_NULL_READY + metadata)
