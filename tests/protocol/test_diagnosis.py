"""What a user is told who finds no server, and servers that have several addresses."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import zmq
from wire_samples import SETUP, hello

from benchmarks._ports import free_port
from protocol import addresses, diagnosis
from protocol.diagnosis import diagnose, mismatch
from protocol.keys import KeyPair
from protocol.transport import Arrived, Event, ServerSocket

STRANGER = "something listens there, but it is not a fedsim server"


@pytest.fixture
def listener() -> Iterator[Callable[[bytes | None], str]]:
    """`listener(b"...")`: the address of one who says that and hangs up; with None, of one who says nothing."""
    with ExitStack() as stack:

        def start(words: bytes | None) -> str:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def speak() -> None:
                connection, _ = server.accept()
                stack.enter_context(connection)
                if words is not None:
                    with suppress(OSError):  # who has heard enough hangs up first
                        connection.sendall(words)
                        connection.shutdown(socket.SHUT_WR)

            threading.Thread(target=speak, daemon=True).start()
            return f"tcp://127.0.0.1:{server.getsockname()[1]}"

        yield start


def free_address() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


def test_nothing_listens() -> None:
    assert diagnose(free_address(), has_keys=False) == "nothing listens there"
    assert diagnose("tcp://no.such.host.invalid:5555", has_keys=False) == "no machine is known by that name"


@pytest.mark.parametrize("words", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 400 No\r\n" * 9, b"\xff" * 64, None])
def test_not_a_fedsim_server(
    words: bytes | None, listener: Callable[[bytes | None], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "_SECONDS", 0.3)
    assert diagnose(listener(words), has_keys=False) == STRANGER


@pytest.mark.parametrize(("there", "here"), [(True, False), (False, True), (False, False), (True, True)])
def test_keys_on_one_side(there: bool, here: bool, serve: Callable[..., ServerSocket]) -> None:
    server = serve(**({"keys": KeyPair(*zmq.curve_keypair())} if there else {}))
    told = diagnose(server.address, has_keys=here)
    assert mismatch(server.address, has_keys=here) == (told if there != here else None)
    if there != here:
        who = ("the server", "this client") if there else ("this client", "the server")
        assert told.startswith(f"{who[0]} has keys and {who[1]} has none")
    else:
        assert ("server.key" in told) == there


def test_of_several_addresses_the_one_that_comes_closest_is_told_of(
    monkeypatch: pytest.MonkeyPatch, serve: Callable[..., ServerSocket]
) -> None:
    server, nobody = serve(), free_address()
    monkeypatch.setattr(diagnosis, "resolve", lambda address: [nobody, server.address, nobody])
    assert diagnose("tcp://several:1", has_keys=True).startswith("this client has keys")


def test_a_name_that_stands_for_several_addresses_is_tried_address_by_address(
    spawn: Callable[[], Any],
    serve: Callable[..., ServerSocket],
    collect: Callable[[ServerSocket, int], list[Event]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = serve()
    port = server.address.rpartition(":")[2]
    found = [(socket.AF_INET, 1, 6, "", (host, int(port))) for host in ("127.0.0.2", "127.0.0.1", "127.0.0.2")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert addresses.resolve(f"tcp://several:{port}") == [f"tcp://127.0.0.2:{port}", server.address]
    peer = spawn()  # forked with the names as they are now
    peer.connect(f"tcp://several:{port}", 7)
    peer.wait_for_connects(1)
    peer.send(hello(7))
    (arrived,) = collect(server, 1)
    assert isinstance(arrived, Arrived) and arrived.decoded.message == hello(7)


def test_a_server_with_several_addresses_of_both_kinds(
    spawn: Callable[[], Any],
    serve: Callable[..., ServerSocket],
    collect: Callable[[ServerSocket, int], list[Event]],
    settle: Callable[..., None],
) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    peers = [spawn(), spawn()]
    server = serve("tcp://127.0.0.1:*", "tcp://[::1]:*")
    assert [address.rpartition(":")[0] for address in server.addresses] == ["tcp://127.0.0.1", "tcp://[::1]"]
    for client, (peer, address) in enumerate(zip(peers, server.addresses, strict=True)):
        route = peer.connect(address, client)
        peer.send(hello(client))
        (arrived,) = collect(server, 1)
        assert isinstance(arrived, Arrived) and arrived.route == route
        server.send(route, SETUP)
        assert peer.receive()[0] == SETUP
        settle(server, arrived.connection)
