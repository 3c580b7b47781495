"""Runs over a slow link: a training slot is for computing, not for waiting until a message has come."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from commands import TINY, Run, Start, address_of, bits, events

from benchmarks.campaign.links import Relay

CLIENTS = 6
LARGE = ("--method", "fedavg", "--feature-dim", "1000", "--clients", f"{CLIENTS}", "--rounds", "2")
"""A tiny experiment, but its messages are of 330 kB."""


def test_with_one_slot_all_transfers_overlap(
    python: Start, tmp_path: Path, reference: Callable[..., Path]
) -> None:
    folder = tmp_path / "run"
    server = python("-m", "nodes.server", *TINY, *LARGE, "--bind", "tcp://127.0.0.1:*", "--out", folder)
    with closing(Relay(address_of(server))) as relay:
        relay.set(bytes_per_second=300_000.0)
        clients = ("--connect", relay.address, "--ids", f"0-{CLIENTS - 1}", "--slots", "1")
        host = python("-m", "nodes.client", *clients)
        run = Run(server, folder).succeed()
        host.succeed()
    assert bits(folder) == bits(reference(*LARGE))
    happened = [(e["event"], e["client"]) for e in events(folder) if e.get("round") == 1 and "client" in e]
    kinds = [kind for kind, _ in happened]
    assert kinds[:CLIENTS] == ["asked"] * CLIENTS, "all have their work on the way at once"
    begun, answered = kinds.index("begins"), kinds.index("answered")
    assert kinds[begun : begun + 2] == ["begins"] * 2, "the second begins while the answer of the first travels"
    assert kinds.count("begins") == kinds.count("answered") == CLIENTS and begun < answered
    assert run.summary["audit"]["agree"] == CLIENTS
    assert run.booked("payload_bytes", purpose="control", message="turn") == 0
