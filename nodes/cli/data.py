"""`fedsim data`: which samples each client gets, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import numpy as np

    from fedsim.data import Federation


@click.group()
def command() -> None:
    """Data sets and how they are shared among clients."""


@command.command("list")
def list_datasets() -> None:
    """List the data sets known by name."""
    from fedsim.data import sources

    console = Console()
    console.print(", ".join(sources.names()))
    console.print("Your own: the path of a tree of class folders, of an .npz file, or of a PFLlib folder.")


@command.command("show")
@click.option("--dataset", default="digits", show_default=True, help="A name, or the path of your own data.")
@click.option("--data-dir", default="", help="Where to look first.")
@click.option("--clients", type=click.IntRange(min=1), default=20, show_default=True)
@click.option(
    "--partition",
    type=click.Choice(["dirichlet", "pathological", "iid"]),
    default="dirichlet",
    show_default=True,
)
@click.option(
    "--beta", type=click.FloatRange(min=0, min_open=True), default=0.1, show_default=True,
    help="Concentration of the Dirichlet partition.",
)  # fmt: skip
@click.option(
    "--classes-per-client", type=click.IntRange(min=1), default=2, show_default=True,
    help="For the pathological partition.",
)  # fmt: skip
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=10, show_default=True,
    help="The published minimum size of a client depends on it.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("partition"), show_default=True,
    help="Folder for the pictures.",
)  # fmt: skip
def show(
    dataset: str,
    data_dir: str,
    clients: int,
    partition: Literal["dirichlet", "pathological", "iid"],
    beta: float,
    classes_per_client: int,
    batch_size: int,
    seed: int,
    out: Path,
) -> None:
    """Draw a partition and print what every client holds."""
    from fedsim.config import Data, Experiment, Run, Train
    from fedsim.data import Federation
    from fedsim.results.plots import data as data_plots
    from fedsim.results.plots.drawing import save

    settings = Data(
        dataset=dataset,
        data_dir=data_dir,
        partition=partition,
        beta=beta,
        classes_per_client=classes_per_client,
    )
    experiment = Experiment(run=Run(clients=clients, seed=seed), data=settings, train=Train(batch_size=batch_size))
    federation = Federation(experiment)
    train_MC, test_MC = federation.class_counts()
    counts_MC = train_MC + test_MC  # together, as the papers draw them

    console = Console()
    console.print(_clients_table(federation, counts_MC))
    console.print(_classes_table(counts_MC))
    console.print(_summary(counts_MC))
    detail = {
        "dirichlet": f" β = {beta:g}",
        "pathological": f" {classes_per_client} classes per client",
        "iid": "",
    }
    title = f"{federation.dataset.name}, {partition}{detail[partition]}, {clients} clients, seed {seed}"
    for draw, name in ((data_plots.draw_bubbles, "bubbles"), (data_plots.draw_heat_map, "heat_map")):
        stem = out / f"{federation.dataset.name}_{partition}_{clients}_{name}"
        for path in save(draw(counts_MC, title), stem):
            console.print(f"wrote {path}", soft_wrap=True)


def _clients_table(federation: Federation, counts_MC: np.ndarray) -> Table:
    table = Table("client", title=f"{federation.dataset.name}: {counts_MC.sum():,} samples")
    for heading in ("train", "test", "all", "classes"):
        table.add_column(heading, justify="right")
    table.add_column("largest classes (samples)")
    for client, counts_C in enumerate(counts_MC):
        data = federation.client(client)
        largest = [label for label in counts_C.argsort()[::-1][:3] if counts_C[label]]
        table.add_row(
            str(client),
            f"{len(data.train):,}",
            f"{len(data.test):,}",
            f"{counts_C.sum():,}",
            str((counts_C > 0).sum()),
            ", ".join(f"{label} ({counts_C[label]:,})" for label in largest),
        )
    return table


def _classes_table(counts_MC: np.ndarray) -> Table:
    """One row per number of samples and holders: a hundred equal classes are one row."""
    alike: dict[tuple[int, int], list[int]] = {}
    for label, counts_M in enumerate(counts_MC.T):
        alike.setdefault((int(counts_M.sum()), int((counts_M > 0).sum())), []).append(label)
    table = Table("classes", title="Classes")
    table.add_column("samples", justify="right")
    table.add_column("clients that hold it", justify="right")
    for (samples, holders), labels in sorted(alike.items(), key=lambda item: item[1]):
        table.add_row(_ranges(labels), f"{samples:,}", str(holders))
    return table


def _summary(counts_MC: np.ndarray) -> str:
    import numpy as np

    sizes_M = counts_MC.sum(axis=1)
    overall_C = counts_MC.sum(axis=0) / counts_MC.sum()
    # Total variation: the share of a client's samples that must change class to make it like the whole.
    distance_M = np.abs(counts_MC / sizes_M[:, None] - overall_C).sum(axis=1) / 2
    return (
        f"Client sizes {sizes_M.min():,} to {sizes_M.max():,}, median {np.median(sizes_M):,.0f}, "
        f"imbalance {sizes_M.max() / sizes_M.min():.1f}; {(counts_MC > 0).sum():,} (client, class) pairs; "
        f"distance from iid {distance_M.mean():.2f} (0: iid, 1: nothing in common)."
    )


def _ranges(labels: list[int]) -> str:
    """[0, 1, 2, 5] as "0-2, 5"."""
    runs: list[list[int]] = []
    for label in labels:
        if runs and runs[-1][-1] == label - 1:
            runs[-1].append(label)
        else:
            runs.append([label])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
