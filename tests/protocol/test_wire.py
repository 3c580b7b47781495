"""The ZMTP byte model against numbers worked out by hand, and against a peer that speaks ZMTP byte by byte."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_samples import route_of

from protocol import wire
from protocol.client_socket import ClientSocket
from protocol.codec import encode
from protocol.messages import Setup, Stop
from protocol.transport import Arrived

DEADLINE_SECONDS = 60.0

MORE, COMMAND = 0x01, 0x04


def greeting(identity=b""):
    """Signature (an old version's length of the identity frame inside), version 3.1, mechanism, filler."""
    signature = b"\xff" + (len(identity) + 1).to_bytes(8, "big") + b"\x7f"
    return signature + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)


def ready(socket_type, identity):
    """A READY command: its name and two properties."""
    body = b"\x05READY" + b"\x0bSocket-Type" + len(socket_type).to_bytes(4, "big") + socket_type
    return frame(body + b"\x08Identity" + len(identity).to_bytes(4, "big") + identity, flags=COMMAND)


def frame(body, *, flags=0):
    if len(body) > 255:
        return bytes([flags | 0x02]) + len(body).to_bytes(8, "big") + body
    return bytes([flags, len(body)]) + body


def read(connection, num_bytes):
    received = b""
    while len(received) < num_bytes:  # the socket's timeout is the deadline
        part = connection.recv(num_bytes - len(received))
        assert part, f"the connection ended after {received!r}"
        received += part
    return received


@pytest.mark.parametrize(
    ("body", "plain", "curve"),
    [
        (0, 2, 35),
        (1, 3, 36),
        (221, 223, 256),
        (222, 224, 257),  # 255 with CURVE: the last short frame
        (223, 225, 265),
        (254, 256, 296),
        (255, 257, 297),
        (256, 265, 298),
        (204_800, 204_809, 204_842),
        (1 << 30, (1 << 30) + 9, (1 << 30) + 42),
    ],
)
def test_frame(body, plain, curve):
    assert wire.frame_bytes(body) == plain
    assert wire.frame_bytes(body, curve=True) == curve


@given(st.binary(max_size=600))
def test_frame_is_as_long_as_its_bytes(body):
    assert wire.frame_bytes(len(body)) == len(frame(body)) == len(frame(body, flags=MORE))


@pytest.mark.parametrize(
    ("identity", "plain", "curve"),
    [
        (b"", 107, 567),
        (b"12345678", 115, 575),
        (b"7.0123456789abcdef.0000", 130, 590),
        (b"x" * 214, 321, 781),
        (b"x" * 215, 329, 782),  # a READY of 256 bytes is a long frame
        (b"x" * 255, 369, 822),
    ],
)
def test_client_handshake(identity, plain, curve):
    assert wire.client_handshake_bytes(identity) == plain
    assert wire.client_handshake_bytes(identity, curve=True) == curve
    assert plain == len(greeting(identity) + ready(b"DEALER", identity))


def test_server_handshake():
    assert wire.server_handshake_bytes() == 107 == len(greeting() + ready(b"ROUTER", b""))
    assert wire.server_handshake_bytes(curve=True) == 301


class TestByteByByte:
    """One end is ours, the other a plain TCP socket: what we count is what can be seen there."""

    def test_server(self, serve, collect):
        server = serve()
        identity = b"3.fedcba9876543210.0000"
        host, port = server.address.removeprefix("tcp://").split(":")
        large = "x" * 300
        with socket.create_connection((host, int(port)), timeout=DEADLINE_SECONDS) as peer:
            peer.sendall(greeting(identity))
            assert read(peer, 64) == greeting()
            peer.sendall(ready(b"DEALER", identity))
            assert read(peer, 43) == ready(b"ROUTER", b"")
            peer.sendall(frame(encode(Setup(run="r"))[0]))
            (arrived,) = collect(server, 1)
            assert isinstance(arrived, Arrived) and arrived.decoded.message == Setup(run="r")
            assert arrived.connection.received_bytes == 64 + 66 + len(frame(encode(Setup(run="r"))[0]))
            for reason in ("short", large):
                server.send(identity, Stop(reason=reason))
            expected = frame(encode(Stop(reason="short"))[0]) + frame(encode(Stop(reason=large))[0])
            assert read(peer, len(expected)) == expected
            assert arrived.connection.sent_bytes == 64 + 43 + len(expected)

    def test_client(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(DEADLINE_SECONDS)
            client = ClientSocket(f"tcp://127.0.0.1:{listener.getsockname()[1]}", 3)
            try:
                connection, _ = listener.accept()
                connection.settimeout(DEADLINE_SECONDS)
                with connection:
                    identity = route_of(client)
                    connection.sendall(greeting())
                    handshake = read(connection, 64)
                    connection.sendall(ready(b"ROUTER", b""))
                    handshake += read(connection, wire.client_handshake_bytes(identity) - 64)
                    assert handshake == greeting(identity) + ready(b"DEALER", identity)
                    client.send(Setup(run="r"))
                    body = encode(Setup(run="r"))[0]
                    assert read(connection, wire.frame_bytes(len(body))) == frame(body)
                    connection.sendall(frame(encode(Stop(reason="done"))[0]))
                    for _ in range(200):
                        if (decoded := client.receive(0.1)) is not None:
                            break
                    assert decoded is not None and decoded.message == Stop(reason="done")
            finally:
                client.close()
