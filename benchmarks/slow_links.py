"""Whole runs over slow links: how long a message travels beside its size divided by the rate, and what comes out.

    python -m benchmarks.slow_links [--mbit 10 4 1] [--clients 2] [--slow 2] [--slots 2] [--feature-dim 34800]

Server and clients are started by hand. Between them and the first `slow` clients is a relay on loopback that gives
each of these clients this rate in each direction; the others are connected directly. FedAvg shares all weights:
270 bytes for each feature. `travel` is a client's round trip without its work, divided by its two messages.

Aim: travel within a tenth of size / rate; the others as quick as without slow ones; the kernel agrees on every
connection; the bits of a run without a link. A slot is for computing: with few of them, transfers overlap all the
same, and a round lasts little longer than two messages travel.
"""

import argparse
import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks._common import machine_load, show
from benchmarks.campaign.links import Relay
from benchmarks.campaign.runs import Command, address_of, differences, rows
from nodes.launchers import zygote

_LONGEST_SECONDS = 3600.0
_WORK = ("receive", "evaluate", "train", "upload", "save")


def experiment(arguments: argparse.Namespace) -> list[str]:
    return [
        *("--method", "fedavg", "--dataset", "spiral", "--model-group", "MLP", "--rounds", "2", "--no-report"),
        *("--feature-dim", str(arguments.feature_dim), "--clients", str(arguments.clients)),
        *("--set", "data.samples_per_class=200", "--set", "cluster.server_threads=1"),
    ]


def run_over(mbit: float, arguments: argparse.Namespace, folder: Path) -> Path:
    """A run with this link between server and clients; its folder."""
    folder.mkdir()
    where = ["--bind", "tcp://127.0.0.1:*", "--out", str(folder / "run")]
    with ExitStack() as stack:
        server = Command(["nodes", "server", *experiment(arguments), *where], folder / "server.log")
        stack.callback(server.kill)
        address = address_of(server)
        relay = Relay(address)
        stack.callback(relay.close)
        relay.set(bytes_per_second=mbit * 1e6 / 8)
        first_direct = min(arguments.slow, arguments.clients)
        groups = {relay.address: range(first_direct), address: range(first_direct, arguments.clients)}
        for connect, ids in groups.items():
            if ids:
                here = ["--connect", connect, "--ids", f"{ids[0]}-{ids[-1]}", "--slots", str(arguments.slots)]
                clients = Command(["nodes", "client", *here], folder / f"clients-{ids[0]}.log")
                stack.callback(clients.kill)
        if server.wait(_LONGEST_SECONDS):
            raise SystemExit(server.printed())
    return folder / "run"


def travel_seconds(run: Path, clients: range) -> float | None:
    """Of one message, the mean over these clients: in round 1 each gets one and sends one. None for nobody."""
    trips = [
        float(row["round_trip"]) - sum(float(row[part] or 0) for part in _WORK)
        for row in rows(run / "timings.csv")
        if row["round"] == "1" and int(row["client"]) in clients
    ]
    return statistics.fmean(trips) / 2 if trips else None


def message_bytes(run: Path) -> float:
    """On the wire, of work in round 1: all weights."""
    sent = [row for row in rows(run / "ledger.csv") if (row["round"], row["message"]) == ("1", "work")]
    return sum(int(row["wire_bytes"]) for row in sent) / len({row["client"] for row in sent})


def collect_seconds(run: Path) -> float:
    """How long round 1 lasted, until the last answer had come."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return next(e["collect_seconds"] for e in events if e["event"] == "round_finished" and e["round"] == 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=float, nargs="+", default=[10.0, 4.0, 1.0])
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--slow", type=int, default=1_000_000, help="so many of them; by default all")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--feature-dim", type=int, default=34_800)
    arguments = parser.parse_args()
    zygote.preload()
    table = []
    with tempfile.TemporaryDirectory(prefix="slow-links-") as name:
        folder = Path(name)
        words = ["nodes", "run", *experiment(arguments), "--in-process", "--out", str(folder / "reference")]
        if (reference := Command(words, folder / "reference.log")).wait():
            raise SystemExit(reference.printed())
        for mbit in arguments.mbit:
            run = run_over(mbit, arguments, folder / f"{mbit:g}")
            size = message_bytes(run)
            least = size / (mbit * 1e6 / 8)
            slow = travel_seconds(run, range(arguments.slow)) or 0.0
            others = travel_seconds(run, range(arguments.slow, arguments.clients))
            audit = json.loads((run / "summary.json").read_text())["audit"]
            differing = differences(run, folder / "reference")
            table.append(
                [
                    f"{mbit:g} Mbit/s",
                    f"{size / 1e6:.2f} MB",
                    f"{least:.1f} s",
                    f"{slow:.1f} s",
                    f"{slow / least:.2f}",
                    "–" if others is None else f"{others:.2f} s",
                    f"{collect_seconds(run):.1f} s",
                    f"{audit['agree']} of {audit['connections']}",
                    "same" if not differing else " ".join(differing),
                ]
            )
    headings = (
        "link",
        "message",
        "size / rate",
        "travel",
        "ratio",
        "of the others",
        "round of both",
        "kernel agrees",
        "bits",
    )
    show(f"FedAvg, {arguments.clients} clients, {arguments.slots} slots", headings, table)
    print(machine_load())


if __name__ == "__main__":
    main()
