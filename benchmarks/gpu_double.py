"""Many clients on a few GPUs that are not there: real processes, and a double of the CUDA layer.

    python -m benchmarks.gpu_double [--clients 100] [--gpus 4] [--slots 1] [--work-seconds 0.5]

The double takes the place of `nodes.launchers.gpus` before anything is forked, and computes on the CPU. It counts
contexts over all processes, charges each with seconds and memory, and refuses what does not fit as CUDA does.
Every entry point of CUDA itself is trapped: whoever touches it, in whatever process, fails. Says how many contexts
were alive at once, how evenly work was spread, and what a round took beside the pure work of its busiest GPU.
"""

import argparse
import fcntl
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from benchmarks._common import machine_load, run_cluster, show
from fedsim import assembly, config
from fedsim.config import Experiment
from fedsim.method import Client
from nodes.launchers import capacity, gpus, zygote
from nodes.launchers.gpus import Gpu
from nodes.server.events import Event

MEBIBYTE = 1 << 20
ENTRY_POINTS = ("init", "_lazy_init", "set_device", "synchronize", "empty_cache", "mem_get_info")


class Driver:
    """The accounts of all GPUs, in files that every process writes to."""

    def __init__(self, folder: Path, arguments: argparse.Namespace):
        self.folder = folder
        self.context_bytes = arguments.context_mib * MEBIBYTE
        self.gpu_bytes = arguments.gpu_mib * MEBIBYTE
        self.context_seconds = arguments.context_seconds
        self.gpus = [Gpu(str(n), f"GPU-{n:08d}", self.gpu_bytes) for n in range(arguments.gpus)]

    def open_context(self, gpu: str) -> None:
        time.sleep(self.context_seconds)
        with (self.folder / f"gpu-{gpu}").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            alive = 1 + sum(Path(f"/proc/{pid}").exists() for pid in file.read().split())
            self.require(alive * self.context_bytes, gpu)
            file.write(f"{os.getpid()}\n")
        self.note(f"alive {gpu} {alive}")

    def require(self, size_bytes: int, gpu: str) -> None:
        if size_bytes > self.gpu_bytes:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory: {size_bytes // MEBIBYTE} MiB wanted of GPU {gpu}, which has "
                f"{self.gpu_bytes // MEBIBYTE} MiB"
            )

    def note(self, line: str) -> None:
        with (self.folder / "notes").open("a") as file:
            file.write(f"{line}\n")

    def notes(self, kind: str) -> list[list[str]]:
        path = self.folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[1:] for line in lines if line.startswith(f"{kind} ")]


def install(driver: Driver, work_seconds: float) -> None:
    """In the place of CUDA, for this process and all that are forked from it."""

    class Device(gpus.Device):
        def __init__(self, kind: str):
            super().__init__("cpu")
            self._gpu = os.environ["CUDA_VISIBLE_DEVICES"] if kind == "cuda" else ""

        def open(self) -> torch.device:
            if self._gpu:
                driver.open_context(self._gpu)
            return self.torch

    def trapped(*_: Any, **__: Any) -> None:
        driver.note(f"touched {os.getpid()}")
        raise SystemExit("CUDA was touched")

    def train(self: Client, round: int) -> dict[str, float]:
        gpu = os.environ["CUDA_VISIBLE_DEVICES"]
        size = sum(parameter.nbytes for parameter in self.model.parameters())
        driver.require(driver.context_bytes + 4 * size, gpu)
        time.sleep(work_seconds)
        driver.note(f"worked {gpu} {self.context.client} {size * len(self.data.train)}")
        return {"loss": 0.0}

    gpus.described = lambda: driver.gpus
    gpus.usable_gpus = lambda device="auto": [gpu.index for gpu in driver.gpus] if device == "auto" else []
    gpus.Device = Device  # type: ignore[misc]
    capacity.CONTEXT_BYTES = driver.context_bytes
    Client.train = train  # type: ignore[method-assign]
    for name in ENTRY_POINTS:
        setattr(torch.cuda, name, trapped)


def make_experiment(arguments: argparse.Namespace) -> Experiment:
    return config.build(
        [
            {
                "run": {"clients": arguments.clients, "rounds": arguments.rounds},
                "data": {"dataset": "digits", "partition": "iid"},
                "model": {"group": arguments.model_group, "feature_dim": 32},
                "method": {"name": "local"},
                "cluster": {"slots": arguments.slots, "compute": arguments.compute, "quorum": arguments.quorum},
            }
        ]
    )


class Observer:
    """Remembers how long each round took, and what was said."""

    def __init__(self) -> None:
        self.collect_seconds: list[float] = []
        self.notes: list[str] = []
        self.lost: list[str] = []

    def on_event(self, event: Event) -> None:
        if event["event"] == "round_finished":
            self.collect_seconds.append(event["collect_seconds"])
        elif event["event"] == "note":
            self.notes.append(event["text"])
        elif event["event"] == "lost":
            self.lost.append(event["reason"])

    def close(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--work-seconds", type=float, default=0.5)
    parser.add_argument("--context-seconds", type=float, default=1.5)
    parser.add_argument("--context-mib", type=int, default=400)
    parser.add_argument("--gpu-mib", type=int, default=8192)
    parser.add_argument("--model-group", default="CNN1,CNN2,CNN3,CNN4")
    parser.add_argument("--compute", default="auto", choices=["auto", "own", "shared"])
    parser.add_argument("--quorum", type=float, default=1.0)
    arguments = parser.parse_args()
    experiment = make_experiment(arguments)
    zygote.preload()
    assembly.check(experiment)
    with tempfile.TemporaryDirectory() as folder:
        driver, observer = Driver(Path(folder), arguments), Observer()
        install(driver, arguments.work_seconds)
        started = time.monotonic()
        run_cluster(Path(folder) / "run", experiment, observer)
        report(arguments, driver, observer, time.monotonic() - started)


def report(arguments: argparse.Namespace, driver: Driver, observer: Observer, seconds: float) -> None:
    worked = driver.notes("worked")
    load, pieces = Counter[str](), Counter[str]()
    for gpu, _, work in worked:
        load[gpu] += int(work)
        pieces[gpu] += 1
    alive = sum(max(int(count) for gpu, count in driver.notes("alive") if gpu == name) for name in load)
    busiest = max(pieces.values()) / arguments.rounds * arguments.work_seconds / arguments.slots
    took = min(observer.collect_seconds[: arguments.rounds])
    rows = [
        ("contexts alive at once", str(alive), f"{arguments.gpus * arguments.slots} slots"),
        ("contexts ever made", str(len(driver.notes("alive"))), ""),
        ("work of the busiest GPU over that of the idlest", f"{max(load.values()) / min(load.values()):.2f}", "1"),
        ("seconds of a round over the pure work of its busiest GPU", f"{took / busiest:.2f}", "1.3"),
        ("processes that touched CUDA itself", str(len(driver.notes("touched"))), "0"),
        ("clients lost", str(len(observer.lost)), ""),
    ]
    show(f"{arguments.clients} clients on {arguments.gpus} GPUs that are not there", ("", "", "aim"), rows)
    for line in (*observer.notes, *observer.lost):
        print(line)
    print(f"{seconds:.0f} s in all; {machine_load()}")


if __name__ == "__main__":
    main()
