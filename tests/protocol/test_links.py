"""Links that are slow or cut: who is alive, what is lost, and what the kernel can prove of it."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cable import ADDRESSES, Cable, inside
from relay import Relay
from wire_samples import SETUP, hello, parcel_of, zeros

from protocol.audit import Verdict
from protocol.client_socket import process_of
from protocol.messages import Setup
from protocol.transport import Arrived, Event, Lost, ServerSocket

HEARTBEAT_SECONDS, DEAD_AFTER_SECONDS = 1.0, 6.0

Collect = Callable[[ServerSocket, int], list[Event]]


def test_a_message_that_travels_for_longer_than_a_heartbeat_lives_is_alive_and_delays_nobody(
    spawn: Callable[[], Any], serve: Callable[..., ServerSocket], collect: Collect
) -> None:
    """Ten seconds each way, on a link where six without a sign are death; beside it another peer chats on."""
    slow, quick = spawn(), spawn()
    server = serve(heartbeat_seconds=HEARTBEAT_SECONDS)
    with Relay(server.address, mbit_per_second=1.0) as link:
        route = slow.connect(link.address, 1, heartbeat_seconds=HEARTBEAT_SECONDS)
        slow.send(SETUP)
        collect(server, 1)
        other = quick.connect(server.address, 2, heartbeat_seconds=HEARTBEAT_SECONDS)
        num_bytes = round((DEAD_AFTER_SECONDS + 2.5) * 1e6 / 8)
        started = time.monotonic()
        slow.start("send", Setup(run="large"), zeros(num_bytes))
        server.send(route, SETUP, parcel_of(**zeros(num_bytes)))
        slow.result()
        waits = []
        for _ in range(20):
            asked = time.monotonic()
            quick.send(hello(2))
            (said,) = collect(server, 1)
            assert isinstance(said, Arrived) and said.route == other
            server.send(other, SETUP)
            quick.receive()
            waits.append(time.monotonic() - asked)
        assert time.monotonic() - started < DEAD_AFTER_SECONDS, "the small ones waited for the large ones"
        (arrived,) = collect(server, 1)
        assert isinstance(arrived, Arrived), f"taken for dead after {time.monotonic() - started:.1f} s"
        assert arrived.route == route and arrived.decoded.arrays["a"].nbytes == num_bytes
        assert time.monotonic() - started > DEAD_AFTER_SECONDS, "the link was not slow"
        message, arrays = slow.receive()
        assert message == SETUP and arrays["a"].nbytes == num_bytes and slow.num_connects() == 1
        assert all(connection.is_open for connection in server.connections.all)


@pytest.fixture
def cable() -> Iterator[Cable]:
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        pytest.skip("only root, with /dev/net/tun, can make a cable that loses packets")
    with Cable(8.0) as made:
        yield made


def test_a_cut_is_survived_or_noticed_by_both_ends_and_the_ledger_is_held_to_what_is_known(
    cable: Cable, spawn: Callable[[], Any], serve: Callable[..., ServerSocket], collect: Collect
) -> None:
    peer = spawn()
    with inside(cable.holders[0]):
        server = serve(f"tcp://{ADDRESSES[0]}:*", heartbeat_seconds=HEARTBEAT_SECONDS)
    peer.enter(cable.holders[1])
    route = peer.connect(server.address, 7, heartbeat_seconds=HEARTBEAT_SECONDS)
    peer.send(hello(7))
    (joined,) = collect(server, 1)

    # Cut for less than a connection lives, with a message under way: it goes on, and every byte is accounted for.
    peer.send(SETUP, zeros(1_500_000))
    time.sleep(0.5)
    cable.toggle()
    time.sleep(2.0)
    cable.toggle()
    (arrived,) = collect(server, 1)
    assert isinstance(arrived, Arrived) and arrived.connection is joined.connection
    assert joined.connection.audit().verdict is Verdict.AGREES

    # Cut for longer: both ends notice, and meet again on another connection.
    server.send(route, SETUP, parcel_of(**zeros(3_000_000)))
    time.sleep(0.5)
    cable.toggle()
    cut_at = time.monotonic()
    assert collect(server, 1) == [Lost(route)]
    assert time.monotonic() - cut_at < DEAD_AFTER_SECONDS + 4
    time.sleep(1.5)
    cable.toggle()
    peer.wait_for_connects(2)
    peer.send(hello(7))
    (back,) = collect(server, 1)
    assert isinstance(back, Arrived) and back.connection is not joined.connection
    assert process_of(back.route) == process_of(route) and back.route != route
    audit = joined.connection.audit()
    assert audit.verdict is Verdict.CUT and audit.kernel is not None
    assert 0 < audit.kernel.acknowledged <= audit.kernel.sent <= audit.counted.sent
    assert audit.counted.received == audit.kernel.received
    server.send(back.route, SETUP, parcel_of(**zeros(10_000)))
    assert peer.receive()[0] == SETUP
    assert back.connection.audit().verdict is Verdict.AGREES
