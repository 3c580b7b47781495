"""Own processes against shared executors: memory of all processes, an idle client's share, seconds of a round.

    python -m benchmarks.compute [--clients 20,100,300] [--model-group CNN4] [--out compute.png]

Both ways run the same experiment, one after the other. Memory is the proportional set size (PSS) of every process
of the run, in which a shared page counts once, plus the files without a name that hold the states of shared
clients. It is read when all have joined and after training, when clients are idle. Metrics must be the same to the
bit.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks._common import machine_load, run_cluster, show
from fedsim import assembly, config
from fedsim.config import Experiment
from nodes.launchers import zygote
from nodes.server.events import Event

MEGABYTE = 1e6
WAYS = ("own", "shared")


def make_experiment(arguments: argparse.Namespace, num_clients: int, compute: str) -> Experiment:
    return config.build(
        [
            {
                "run": {"clients": num_clients, "rounds": arguments.rounds},
                "data": {"dataset": arguments.dataset, "partition": "iid"},
                "model": {"group": arguments.model_group},
                "train": {"batch_size": arguments.batch_size},
                "method": {"name": arguments.method},
                "cluster": {"compute": compute, "slots": arguments.slots},
            }
        ]
    )


def file_bytes() -> int:
    """What files in memory take on this machine; nobody's PSS counts those that are not mapped."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Shmem:"))


def pss_bytes() -> tuple[int, list[int]]:
    """(of all processes of the run, of each client). The server, which the launcher started first, is stopped
    meanwhile: with hundreds of clients a run would be over before all have been read."""
    server, *_ = sorted(psutil.Process().children(), key=psutil.Process.create_time)
    server.suspend()
    try:
        total, clients = 0, []
        for process in psutil.Process().children(recursive=True):
            pss, output = process.memory_full_info().pss, Path(f"/proc/{process.pid}/fd/1").readlink()
            total += pss
            clients += [pss] if output.name.startswith("client-") else []
    finally:
        server.resume()
    return total, clients


@dataclass
class Observer:
    """A display that shows nothing and looks at memory when clients are idle."""

    last_training_round: int
    files_before: int = field(default_factory=file_bytes)
    total: int = 0
    files: int = 0
    joined: list[int] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    collect_seconds: list[float] = field(default_factory=list)
    start_seconds: float = 0.0

    def on_event(self, event: Event) -> None:
        if event["event"] == "joined":
            self.start_seconds = event["seconds"]
            _, self.joined = pss_bytes()
        elif event["event"] == "round_finished":
            self.collect_seconds.append(event["collect_seconds"])
            if event["round"] == self.last_training_round:
                self.total, self.trained = pss_bytes()
                self.files = max(0, file_bytes() - self.files_before)

    def close(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", default="20,100,300")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--method", default="fedproto")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--model-group", default="CNN4")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--slots", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a picture of the memory of all processes")
    arguments = parser.parse_args()
    zygote.preload()
    rows, totals = [], {way: {} for way in WAYS}  # type: ignore[var-annotated]
    for num_clients in map(int, arguments.clients.split(",")):
        metrics = set()
        for way in WAYS:
            experiment = make_experiment(arguments, num_clients, way)
            assembly.check(experiment)
            observer = Observer(arguments.rounds - 1)
            with tempfile.TemporaryDirectory() as parent:
                started = time.monotonic()
                folder = run_cluster(Path(parent) / "run", experiment, observer)
                seconds = time.monotonic() - started
                metrics.add((folder.path / "metrics.csv").read_bytes())
                audit = folder.summary()["audit"]  # type: ignore[index]
            if len(observer.trained) != num_clients:
                raise SystemExit(f"{len(observer.trained)} of {num_clients} clients were there to be looked at")
            totals[way][num_clients] = observer.total + observer.files
            rows.append(_row(num_clients, way, observer, seconds, f"{audit['agree']} of {audit['connections']}"))
        print(f"{num_clients} clients: {'the same bits' if len(metrics) == 1 else 'the bits DIFFER'}", flush=True)
    headings = (
        "clients",
        "",
        "all MB",
        "states MB",
        "client MB",
        "trained MB",
        "joined s",
        "round s",
        "s",
        "kernel",
    )
    show(f"{arguments.method}, {arguments.model_group} on {arguments.dataset}", headings, rows)
    print(machine_load())
    if arguments.out:
        draw(totals, arguments.out)


def _row(num_clients: int, way: str, observer: Observer, seconds: float, agreed: str) -> tuple[str, ...]:
    def mean(values: list[int]) -> str:
        return f"{statistics.mean(values) / MEGABYTE:.1f}" if values else "–"

    files = f"{observer.files / MEGABYTE:.0f}" if way == "shared" else ""
    total = f"{(observer.total + observer.files) / MEGABYTE:.0f}"
    best = f"{min(observer.collect_seconds[:-1] or observer.collect_seconds):.2f}"
    clients = (mean(observer.joined), mean(observer.trained))
    times = (f"{observer.start_seconds:.1f}", best, f"{seconds:.0f}")
    return (str(num_clients), way, total, files, *clients, *times, agreed)


def draw(totals: dict[str, dict[int, int]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.5, 3.5), layout="constrained")
    for way, marker in zip(WAYS, "os", strict=True):
        counts = sorted(totals[way])
        axes.plot(counts, [totals[way][count] / 1e9 for count in counts], marker=marker, label=way)
    axes.set(xlabel="clients", ylabel="memory of all processes (GB)", ylim=(0, None), xlim=(0, None))
    axes.legend(title="cluster.compute")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
