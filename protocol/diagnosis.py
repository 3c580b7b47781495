"""Why a client finds no server, in words for the user. Asked when joining has failed, never before."""

import contextlib
import socket
from enum import IntEnum, auto

from protocol import wire
from protocol.addresses import host_of, resolve
from protocol.errors import AddressUnusable

_SECONDS = 3.0
# A ZMTP signature and the major version: enough to be told everything, and too little to be hung up on.
_FIRST_WORDS = b"\xff" + bytes(8) + b"\x7f\x03"
_MECHANISM = slice(12, 32)


class _Found(IntEnum):
    """How far one gets; the farthest of several addresses is the one to speak of."""

    NO_WAY = auto()
    SILENCE = auto()
    NOBODY = auto()
    STRANGER = auto()
    UNWILLING = auto()
    OTHER_KEYS = auto()


def diagnose(address: str, *, has_keys: bool) -> str:
    """In one clause."""
    try:
        endpoints = resolve(address)
    except AddressUnusable:
        return "no machine is known by that name"
    return max(_look(endpoint, has_keys=has_keys) for endpoint in endpoints)[1]


def obstacle(address: str, *, has_keys: bool) -> str:
    """As `diagnose`, but empty where a server is there and would listen to us."""
    try:
        found, words = max(_look(endpoint, has_keys=has_keys) for endpoint in resolve(address))
    except AddressUnusable:
        return "no machine is known by that name"
    return "" if found is _Found.UNWILLING else words


def nobody_listens(address: str) -> bool:
    """Whether there is nothing at an address, be it a server of ours or not."""
    try:
        return max(_look(endpoint, has_keys=False)[0] for endpoint in resolve(address)) <= _Found.NOBODY
    except AddressUnusable:
        return True


def mismatch(endpoint: str, *, has_keys: bool) -> str | None:
    """What makes it useless to try again: keys on one side only. None where it is not that."""
    found, words = _look(endpoint, has_keys=has_keys)
    return words if found is _Found.OTHER_KEYS else None


def _look(endpoint: str, *, has_keys: bool) -> tuple[_Found, str]:
    target = host_of(endpoint, listens=False), int(endpoint.rpartition(":")[2])
    try:
        connection = socket.create_connection(target, timeout=_SECONDS)
    except ConnectionRefusedError:
        return _Found.NOBODY, "nothing listens there"
    except TimeoutError:
        return _Found.SILENCE, "nothing answers there: the address may be wrong, or a firewall in the way"
    except OSError as error:
        return _Found.NO_WAY, f"it cannot be reached from here ({(error.strerror or str(error)).lower()})"
    with connection:
        greeting = _greeting(connection)
    if not (greeting.startswith(b"\xff") and greeting[9:10] == b"\x7f"):
        return _Found.STRANGER, "something listens there, but it is not a fedsim server"
    needs_keys = greeting[_MECHANISM].rstrip(b"\0") == b"CURVE"
    if needs_keys != has_keys:
        who = ("the server", "this client") if needs_keys else ("this client", "the server")
        return _Found.OTHER_KEYS, f"{who[0]} has keys and {who[1]} has none; give --keys to both, or to neither"
    if needs_keys:
        return _Found.UNWILLING, "a server listens there, but perhaps server.key is not its key"
    return _Found.UNWILLING, "something listens there that speaks ZeroMQ, but not as a fedsim server does"


def _greeting(connection: socket.socket) -> bytes:
    """What the other side says first, as far as it does."""
    received = b""
    with contextlib.suppress(OSError):  # it hangs up, or says nothing in time
        connection.sendall(_FIRST_WORDS)
        while len(received) < wire.GREETING and (part := connection.recv(wire.GREETING - len(received))):
            received += part
    return received
