"""Ports for those who must be told one before they listen on it."""

import random
import socket
from contextlib import suppress

_PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to whoever asks for any: nobody else gets one of these meanwhile."""


def free_port() -> int:
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise RuntimeError("all ports are taken")
