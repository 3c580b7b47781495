"""Addresses as a person types them, checked before a socket sees them.

ZeroMQ takes what it is given: a server listens on another port where there is no port 99999, and a client waits
for a server that cannot exist.
"""

import re

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
