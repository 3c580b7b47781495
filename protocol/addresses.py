"""Addresses as a person types them, checked before a socket sees them.

ZeroMQ takes what it is given: a server listens on another port where there is no port 99999, and a client waits
for a server that cannot exist.
"""

import re
import socket

from protocol.errors import AddressUnusable

_ADDRESS = re.compile(r"tcp://(\*|[\w.-]+|\[[\w:.%]+\]):(\*|[0-9]{1,5})", re.ASCII)
_LAST_PORT = 65535


def host_of(address: str, *, listens: bool) -> str:
    """The host of `tcp://host:port`, without the brackets of IPv6. A server may listen on `*`, of either part."""
    match = _ADDRESS.fullmatch(address)
    host, port = match.groups() if match else ("", "0")
    known = listens or "*" not in (host, port)
    if not known or not (port == "*" or 1 <= int(port) <= _LAST_PORT):
        purpose, or_any = (
            ("address to listen on", ", or * for any free one") if listens else ("server address", "")
        )
        raise AddressUnusable(
            f"{address} is no {purpose}; write tcp://host:port with a port from 1 to {_LAST_PORT}{or_any}."
        )
    return host.strip("[]")


def any_address(port: int) -> str:
    """To listen on for everyone: IPv6 and IPv4, or the latter where there is no other. Port 0: any free one."""
    host = "[::]" if socket.has_dualstack_ipv6() else "0.0.0.0"
    return f"tcp://{host}:{port or '*'}"


def is_ipv6(address: str) -> bool:
    """Whether the host is written as one; a name may stand for addresses of either kind."""
    return "[" in address


def resolve(address: str) -> list[str]:
    """The addresses to try, one after the other: a name may stand for several."""
    host, port = host_of(address, listens=False), address.rpartition(":")[2]
    if is_ipv6(address):
        return [address]
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter: an empty or overlong part of a name
        raise AddressUnusable(f"cannot connect to {address}: no machine is known by the name {host}.") from None
    hosts = {family: "[{}]" if family == socket.AF_INET6 else "{}" for family, *_ in found}
    return list(dict.fromkeys(f"tcp://{hosts[family].format(place[0])}:{port}" for family, *_, place in found))
