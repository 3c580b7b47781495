"""What a cluster costs: a whole round of real processes beside a bare program that does the same work.

    python -m benchmarks.round [--clients 20] [--rounds 2] [--blocks 3] [--epochs 4] [--dataset digits]

A round is: every client receives prototypes, is evaluated, trains, and gives its prototypes (FedProto on HtCNN8,
images of 28 × 28). The bare program forks one worker for each slot; a worker holds all clients, takes the next
one, longest first, from a shared counter, and keeps the result to itself: no sockets, no checks, no files.
Both pin their work to cores and take turns in blocks, so that other work on the machine hits them alike.

Aims: at most 1.1 times the bare program; and the phase in which clients work takes at most 1.1 times the sum of
their own working times divided by the slots.
"""

import argparse
import csv
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks._common import machine_load, run_cluster, show, wait_for, workers
from fedsim import assembly, config
from fedsim.config import Experiment
from fedsim.data import Federation
from nodes.launchers import processes, zygote
from nodes.server.events import Event
from nodes.work import Order, carry_out

WORK = ("receive", "evaluate", "train", "upload")
PATIENCE_SECONDS = 300.0  # of a worker whose fellow has failed


def make_experiment(arguments: argparse.Namespace) -> Experiment:
    return config.build(
        [
            {
                "run": {"clients": arguments.clients, "rounds": arguments.rounds + 1},
                "data": {"dataset": arguments.dataset, "partition": "iid"},
                "train": {"local_epochs": arguments.epochs},
                "cluster": {"slots": arguments.slots},
                "method": {"name": "fedproto"},
            }
        ]
    )


# ------------------------------------------------------------------------------------------------- the cluster


class Recorder:
    """A display that shows nothing and remembers how long rounds took."""

    def __init__(self) -> None:
        self.rounds: dict[int, Event] = {}

    def on_event(self, event: Event) -> None:
        if event["event"] == "round_finished":
            self.rounds[event["round"]] = event

    def close(self) -> None:
        pass


def play_cluster(experiment: Experiment) -> tuple[list[float], list[float]]:
    """(seconds of each round, collecting time over the even share of the work), without the first round."""
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as parent:
        folder = run_cluster(Path(parent) / "run", experiment, recorder)
        with (folder.path / "timings.csv").open() as file:
            timings = list(csv.DictReader(file))
    seconds, ratios = [], []
    for round in range(1, experiment.run.rounds):
        worked = sum(float(row[step]) for row in timings if int(row["round"]) == round for step in WORK)
        seconds.append(recorder.rounds[round]["seconds"])
        ratios.append(recorder.rounds[round]["collect_seconds"] / (worked / experiment.cluster.slots))
    return seconds, ratios


# -------------------------------------------------------------------------------------------- the bare program


class Bare:
    """What the workers of the bare program share: who is next, how long each client took, when rounds ended."""

    def __init__(self, experiment: Experiment):
        shared = multiprocessing.get_context("fork")
        self.experiment = experiment
        self.num_rounds, self.num_clients = experiment.run.rounds, experiment.run.clients
        self.meeting = shared.Barrier(experiment.cluster.slots, timeout=PATIENCE_SECONDS)
        self.next = shared.Value("i", 0)
        self.took = shared.Array("d", self.num_clients)
        self.seconds = shared.Array("d", self.num_rounds)

    def work(self, worker: int) -> int:
        torch.set_num_threads(1)
        cores = processes.cores()
        processes.pin(cores[worker % len(cores)])
        federation = Federation(self.experiment)
        clients = [assembly.make_client(self.experiment, federation, i) for i in range(self.num_clients)]
        expected = [len(c.data.train) * sum(p.numel() for p in c.model.parameters()) for c in clients]
        task = assembly.task_of(self.experiment, federation)
        draw = np.random.default_rng(0)
        down = {
            "prototypes": draw.normal(size=(task.num_classes, task.feature_dim)).astype(np.float32),
            "class_ids": np.arange(task.num_classes, dtype=np.int32),
        }
        for round in range(self.num_rounds):
            longest_first = sorted(range(self.num_clients), key=lambda i: -expected[i])
            self.meeting.wait()
            started = time.monotonic()
            while (position := self._take()) < self.num_clients:
                client = longest_first[position]
                begun = time.monotonic()
                carry_out(clients[client], Order(round, True, True), down if round else {})
                self.took[client] = time.monotonic() - begun
            if self.meeting.wait() == 0:  # both are done, and one of them takes the time
                self.seconds[round] = time.monotonic() - started
                self.next.value = 0
            self.meeting.wait()
            expected = list(self.took)
        return 0

    def _take(self) -> int:
        with self.next.get_lock():
            self.next.value += 1
            return self.next.value - 1


def play_bare(experiment: Experiment) -> list[float]:
    """Seconds of each round, without the first."""
    bare = Bare(experiment)
    mains = [lambda i=i: bare.work(i) for i in range(experiment.cluster.slots)]
    with workers(mains) as started:
        wait_for(started)
    return list(bare.seconds)[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2, help="timed rounds in a block")
    parser.add_argument("--blocks", type=int, default=3, help="blocks of each kind")
    parser.add_argument("--epochs", type=int, default=4, help="local epochs, so that a round takes seconds")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--dataset", default="digits")
    arguments = parser.parse_args()
    zygote.preload()
    experiment = make_experiment(arguments)
    assembly.check(experiment)
    cluster_seconds, phases, bare_seconds = [], [], []
    for _ in range(arguments.blocks):
        bare_seconds += play_bare(experiment)
        seconds, ratios = play_cluster(experiment)
        cluster_seconds += seconds
        phases += ratios
    rows = []
    for name, pick in (("median", statistics.median), ("minimum", min)):
        ours, theirs, phase = pick(cluster_seconds), pick(bare_seconds), pick(phases)
        rows.append((name, f"{theirs:.2f} s", f"{ours:.2f} s", f"{ours / theirs:.2f}", f"{phase:.3f}"))
    headings = ("a round", "bare program", "fedsim", "ratio (aim 1.1)", "phase / even share (aim 1.1)")
    title = f"{arguments.clients} clients of HtCNN8 on {arguments.dataset}, {arguments.slots} slots"
    show(title, headings, rows)
    print(machine_load())


if __name__ == "__main__":
    main()
