"""ProtoNorm's motivating experiment: six spirals, a decision layer of two units, prototypes one can see.

    python -m benchmarks.spiral [--out runs/spiral] [--rounds 200] [--clients 10] [--samples-per-class 5000]

Runs FedProto, ProtoNorm with γ = 1 and with γ = 10 on IID and on Dirichlet(0.1) data and draws the paper's
figure 2 from them: global prototypes as dashed rays with all local ones as points, and the test samples of a few
clients among their own prototypes. Runs that are finished are not run again.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks._common import CONSOLE, run_cluster, show
from fedsim import assembly, config
from fedsim.learning.evaluation import outputs
from fedsim.method import Client
from fedsim.results.folder import RunFolder
from nodes.checkpoint import Checkpoints, client_files
from nodes.display.run import Quiet
from nodes.launchers import zygote

# λ as the paper prints it: 10 belongs to a mean over 512 elements, and with two of them training diverges.
METHODS: dict[str, dict[str, Any]] = {
    "FedProto": {"name": "fedproto", "prototype_weight": 1},
    "ProtoNorm (γ = 1)": {"name": "protonorm", "prototype_weight": 1, "prototype_scale": 1},
    "ProtoNorm (γ = 10)": {"name": "protonorm", "prototype_weight": 1, "prototype_scale": 10},
}
PARTITIONS: dict[str, dict[str, Any]] = {
    "IID": {"partition": "iid"},
    "Dirichlet(0.1)": {"partition": "dirichlet", "beta": 0.1},
}
COLOURS = colormaps["tab10"]
RAY_LENGTH = 0.97  # of the picture's half width, for prototypes whose length says nothing new


@dataclass(frozen=True)
class Panel:
    """One run: its name, its clients as they were after the last round, what the server would send next."""

    title: str
    accuracy: float
    clients: list[Client]
    global_prototypes: np.ndarray  # (n, 2)
    global_classes: np.ndarray  # (n,)


@click.command()
@click.option("--out", type=Path, default=Path("runs/spiral"), help="Where runs and pictures go.")
@click.option("--dataset", default="spiral_clean", help="spiral is the printed formula, which overlaps heavily.")
@click.option("--samples-per-class", default=0, help="0: all.")
@click.option("--rounds", default=200)
@click.option("--clients", default=10)
@click.option("--shown-clients", default="0,2,5", help="Whose test samples are drawn.")
def main(out: Path, dataset: str, samples_per_class: int, rounds: int, clients: int, shown_clients: str) -> None:
    zygote.preload()
    common = {
        "run": {"clients": clients, "rounds": rounds},
        "data": {"dataset": dataset, "samples_per_class": samples_per_class},
        "model": {"group": "MLP", "feature_dim": 2},
        "train": {"batch_size": 32},
        "cluster": {"checkpoint_every": rounds},  # the clients of the last round are drawn
    }
    panels = {}
    for partition, data in PARTITIONS.items():
        for method, options in METHODS.items():
            folder = out / _folder_name(f"{method} {partition}")
            if not (folder / "summary.json").exists():
                experiment = config.build([common, {"data": data, "method": options}])
                assembly.check(experiment)
                run_cluster(folder, experiment, Quiet(CONSOLE))
            panels[method, partition] = _panel(method, folder, rounds)
    _draw_prototypes(panels, out / "prototypes.png")
    _draw_samples(panels, [int(client) for client in shown_clients.split(",")], out / "samples.png")
    rows = [
        (method, *(f"{panels[method, partition].accuracy:.2%}" for partition in PARTITIONS)) for method in METHODS
    ]
    show(f"{dataset}, {rounds} rounds, best accuracy", ["method", *PARTITIONS], rows)


def _folder_name(title: str) -> str:
    """`ProtoNorm (γ = 10) IID` is `protonorm-10-iid`."""
    return "-".join(re.findall(r"[a-z0-9.]+", title.lower()))


def _panel(title: str, folder: Path, rounds: int) -> Panel:
    run = RunFolder.open(folder)
    experiment, summary = run.experiment(), run.summary() or {}
    federation = assembly.check(experiment)
    manifest, _ = Checkpoints(run.checkpoints).load()
    clients = []
    for number in range(experiment.run.clients):
        client = assembly.make_client(experiment, federation, number)
        client.load_state(client_files(run.checkpoints, manifest.states, number).load(rounds - 1))
        clients.append(client)
    final = run.final()
    return Panel(title, summary["best_accuracy"], clients, final["prototypes"], final["class_ids"])


def _draw_prototypes(panels: dict[tuple[str, str], Panel], path: Path) -> None:
    """Rows are partitions, columns are methods."""
    figure = Figure(figsize=(4 * len(METHODS), 4 * len(PARTITIONS)), layout="constrained")
    grid = figure.subplots(len(PARTITIONS), len(METHODS), squeeze=False)
    for row, partition in enumerate(PARTITIONS):
        for column, method in enumerate(METHODS):
            panel, axes = panels[method, partition], grid[row, column]
            local = [client.local_prototypes.rows() for client in panel.clients]
            points = np.concatenate([rows for rows, _ in local])
            classes = np.concatenate([ids for _, ids in local])
            reach = _frame(axes, points)
            _rays(axes, panel.global_prototypes, panel.global_classes, reach, style="--")
            axes.scatter(*points.T, s=22, c=COLOURS(classes), edgecolors="white", linewidths=0.5, zorder=3)
            axes.set_title(f"{panel.title}, {partition}: {panel.accuracy:.1%}", fontsize=11)
    figure.savefig(path, dpi=130)


def _draw_samples(panels: dict[tuple[str, str], Panel], shown: list[int], path: Path) -> None:
    """Rows are clients of the Dirichlet runs, columns are methods; rays are a client's own prototypes."""
    figure = Figure(figsize=(4 * len(METHODS), 4 * len(shown)), layout="constrained")
    grid = figure.subplots(len(shown), len(METHODS), squeeze=False)
    for column, method in enumerate(METHODS):
        panel = panels[method, "Dirichlet(0.1)"]
        for row, number in enumerate(shown):
            client, axes = panel.clients[number], grid[row, column]
            batches = outputs(client.model, client.data.test, client.context.device, forward=client.model.features)
            features, labels = zip(*batches, strict=True)
            points, classes = np.concatenate(features), np.concatenate(labels)
            reach = _frame(axes, points)
            _rays(axes, *client.local_prototypes.rows(), reach, style="-")
            axes.scatter(*points.T, s=6, c=COLOURS(classes), alpha=0.6, linewidths=0, zorder=3)
            axes.set_title(f"{panel.title}, client {number}", fontsize=11)
    figure.savefig(path, dpi=130)


def _frame(axes: Axes, points: np.ndarray) -> float:
    """Square, around the origin, wide enough for nearly all points; returns its half width."""
    reach = 1.15 * float(np.quantile(np.linalg.norm(points, axis=1), 0.995))
    axes.set_xlim(-reach, reach)
    axes.set_ylim(-reach, reach)
    axes.set_aspect("equal")
    axes.tick_params(labelsize=8)
    return reach


def _rays(axes: Axes, vectors: np.ndarray, classes: np.ndarray, reach: float, style: str) -> None:
    """Directions only: from the origin to the border."""
    for vector, label in zip(vectors, classes, strict=True):
        end = vector / max(float(np.linalg.norm(vector)), 1e-12) * reach * RAY_LENGTH
        axes.plot([0, end[0]], [0, end[1]], style, color=COLOURS(int(label)), linewidth=1.6)


if __name__ == "__main__":
    main()
