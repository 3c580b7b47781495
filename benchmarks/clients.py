"""What an idle client costs: start-up time and memory of many clients beside one stand-alone process.

    python -m benchmarks.clients [--clients 200] [--rounds 1]

Clients are forked from one preloaded parent and share its memory until they write to it, so the fair measure is
the proportional set size (PSS), in which a shared page counts once over all its users. It is read for idle
clients twice: when all have joined, and after they have trained. The stand-alone process is a client that
imports and builds everything for itself.

Aims: at most 40 MB for each idle client, and 200 of them started within a minute.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks._common import machine_load, run_cluster, show
from fedsim import assembly, config
from fedsim.config import Experiment
from fedsim.data import Federation
from nodes.launchers import zygote
from nodes.server.events import Event

SAMPLED_CLIENTS = 50
MEGABYTE = 1e6


def make_experiment(arguments: argparse.Namespace) -> Experiment:
    return config.build(
        [
            {
                "run": {"clients": arguments.clients, "rounds": arguments.rounds},
                "data": {
                    "dataset": arguments.dataset,
                    "partition": "iid",
                    "samples_per_class": arguments.samples_per_class,
                },
                "train": {"batch_size": 4},
                "method": {"name": "fedtgp", "server_epochs": 1},
            }
        ]
    )


class Observer:
    """A display that shows nothing and looks at the clients' memory when all are idle."""

    def __init__(self, last_training_round: int):
        self.joined: Event = {}
        self.joined_bytes: list[int] = []
        self.trained_bytes: list[int] = []
        self._last_training_round = last_training_round

    def on_event(self, event: Event) -> None:
        if event["event"] == "joined":
            self.joined = event
            self.joined_bytes = client_pss_bytes()
        elif event["event"] == "round_finished" and event["round"] == self._last_training_round:
            self.trained_bytes = client_pss_bytes()

    def close(self) -> None:
        pass


def client_pss_bytes() -> list[int]:
    """Of the last clients started: the server asks the first ones first, and those are not idle for long."""
    clients = [child for parent in psutil.Process().children() for child in parent.children()]
    result = []
    for client in sorted(clients, key=lambda process: -process.pid)[:SAMPLED_CLIENTS]:
        try:
            result.append(client.memory_full_info().pss)
        except psutil.NoSuchProcess:  # the run is over already
            break
    return result


def run_alone(experiment: Experiment) -> None:
    """The main function of the stand-alone process."""
    zygote.preload()
    client = assembly.make_client(experiment, Federation(experiment), 0)
    client.setup()
    print(psutil.Process().memory_full_info().pss)


def measure_alone(text: bytes) -> tuple[float, int]:
    """(seconds, bytes) of a process that is a client by itself."""
    started = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.clients", "--alone", text.decode()]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return time.monotonic() - started, int(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--samples-per-class", type=int, default=0, help="0: all; fewer make training short")
    parser.add_argument("--alone", metavar="EXPERIMENT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        run_alone(config.from_json(arguments.alone.encode()))
        return
    experiment = make_experiment(arguments)
    alone_seconds, alone_bytes = measure_alone(config.to_json(experiment))
    zygote.preload()
    assembly.check(experiment)
    observer = Observer(experiment.run.rounds - 1)
    with tempfile.TemporaryDirectory() as parent:
        summary = run_cluster(Path(parent) / "run", experiment, observer).summary()
    report(arguments.clients, observer, alone_seconds, alone_bytes)
    audit = summary["audit"]
    print(f"the kernel agrees on {audit['agree']} of {audit['connections']} connections; {machine_load()}")


def report(num_clients: int, observer: Observer, alone_seconds: float, alone_bytes: int) -> None:
    def megabytes(values: list[int]) -> str:
        return f"{statistics.mean(values) / MEGABYTE:.1f} MB" if values else "–"

    seconds = observer.joined["seconds"]
    rows = [
        ("one stand-alone process", f"{alone_seconds:.1f} s", megabytes([alone_bytes]), ""),
        (
            f"each of {num_clients} clients",
            f"{seconds / num_clients:.3f} s",
            megabytes(observer.joined_bytes),
            megabytes(observer.trained_bytes),
        ),
        (f"all {num_clients} together", f"{seconds:.1f} s", "", ""),
        ("aim", "60 s for 200", "40 MB", ""),
    ]
    headings = ("", "start-up", "memory (PSS), idle", "after training")
    show("clients of HtCNN8 with FedTGP", headings, rows)


if __name__ == "__main__":
    main()
