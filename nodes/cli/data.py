"""`fedsim data`: which samples each client gets, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from nodes.cli._experiment import build_experiment, experiment_options
from nodes.client.options import id_range

if TYPE_CHECKING:
    import numpy as np

    from fedsim.config import Experiment
    from fedsim.data import Federation

_EXAMPLES = """
\b
Examples:
  fedsim data show                                   what `fedsim run` would share out
  fedsim data show --dataset ./table.csv --set data.label=kind
  fedsim data show --dataset ./data.py:load --clients 20 --partition iid
  fedsim data show --config runs/some/config.toml
"""

_DECIDE = (
    *("dataset", "data_dir", "clients", "partition", "beta", "classes_per_client", "batch_size", "seed"),
    "method",
)
_OWN = (
    "Your own: the path of a folder of class folders with images, of an .npz or .csv file, or of a PFLlib folder; "
    "./FILE.py:FUNCTION; hf:NAME_OR_PATH for Hugging Face. docs/data.md has the details."
)


@click.group()
def command() -> None:
    """Data sets and how they are shared among clients."""


@command.command("list")
def list_datasets() -> None:
    """List the data sets known by name, and what your own may be."""
    from fedsim.data import sources

    console = Console(highlight=False, markup=False)
    console.print(", ".join(sources.names()))
    console.print(_OWN)


@command.command("show", epilog=_EXAMPLES, params=experiment_options(*_DECIDE))
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("partition"), show_default=True,
    help="Folder for the pictures.",
)  # fmt: skip
def show(out: Path, **options: Any) -> None:
    """Draw a partition and print what every client holds; without options, that of `fedsim run`.

    The published least size of a client depends on the batch size, and some methods keep public samples or a test
    set apart.
    """
    console, notes = Console(highlight=False, markup=False), list[str]()
    experiment = build_experiment(**options, tell=notes.append)

    from fedsim.data import Federation
    from fedsim.results.plots import data as data_plots
    from fedsim.results.plots.drawing import save

    federation = Federation(experiment)
    train_MC, test_MC = federation.class_counts()
    counts_MC = train_MC + test_MC  # together, as the papers draw them

    about_data = [note for note in notes if not note.startswith(("model.", "method."))]
    for line in (*_description(federation), *about_data, *federation.notes):
        console.print(line)
    console.print(_clients_table(federation, train_MC, test_MC))
    console.print(_classes_table(federation, train_MC, counts_MC))
    console.print(_summary(train_MC, counts_MC))
    name, run = federation.dataset.name, experiment.run
    rule = "ready-made" if federation.ready_made else experiment.data.partition
    title = f"{name}, {_rule(experiment, rule)}, {run.clients} clients, seed {experiment.data.seed or run.seed}"
    for draw, kind in ((data_plots.draw_bubbles, "bubbles"), (data_plots.draw_heat_map, "heat_map")):
        for path in save(draw(counts_MC, title), out / f"{name}_{rule}_{run.clients}_{kind}"):
            console.print(f"wrote {path}", soft_wrap=True)


def _rule(experiment: Experiment, rule: str) -> str:
    data = experiment.data
    detail = {"dirichlet": f" β = {data.beta:g}", "pathological": f" {data.classes_per_client} classes per client"}
    return rule + detail.get(rule, "")


def _description(federation: Federation) -> list[str]:
    dataset = federation.dataset
    shape = dataset.input_shape
    size = "x".join(map(str, shape))
    kind = {
        "image": f"images {size}" + ", bytes scaled to [-1, 1]" * (dataset.inputs.dtype.kind == "u"),
        "tokens": f"texts of up to {size} tokens out of {dataset.vocabulary:,}",
        "signal": f"signals {size}",
        "vector": f"{size} numbers each",
    }[shape.kind]
    num_test = len(dataset.labels) - dataset.num_train
    parts = f" ({dataset.num_train:,} for training, {num_test:,} for test)" if num_test else ""
    return [
        f"{dataset.name}: {len(dataset.labels):,} samples{parts} of {dataset.num_classes} classes, {kind}",
        f"fingerprint {dataset.fingerprint}",
    ]


def _clients_table(federation: Federation, train_MC: np.ndarray, test_MC: np.ndarray) -> Table:
    """The columns that the report has, too: a client's classes are those that it trains on."""
    table = Table("client", title=f"Clients: {(train_MC + test_MC).sum():,} samples")
    for heading in ("train", "test", "all", "classes"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("largest classes (samples)", no_wrap=True, overflow="ellipsis")
    for client, (train_C, test_C) in enumerate(zip(train_MC, test_MC, strict=True)):
        counts_C = train_C + test_C
        largest = [label for label in counts_C.argsort()[::-1][:3] if counts_C[label]]
        name = federation.client_name(client)
        table.add_row(
            f"{client} ({name})" if name else str(client),
            f"{train_C.sum():,}",
            f"{test_C.sum():,}",
            f"{counts_C.sum():,}",
            str((train_C > 0).sum()),
            ", ".join(f"{federation.dataset.class_name(label)} ({counts_C[label]:,})" for label in largest),
        )
    return table


def _classes_table(federation: Federation, train_MC: np.ndarray, counts_MC: np.ndarray) -> Table:
    """One row per number of samples and holders: a hundred equal classes are one row."""
    alike: dict[tuple[int, int], list[int]] = {}
    for label, (train_M, counts_M) in enumerate(zip(train_MC.T, counts_MC.T, strict=True)):
        alike.setdefault((int(counts_M.sum()), int((train_M > 0).sum())), []).append(label)
    dataset = federation.dataset
    table = Table("classes", title="Classes")
    table.add_column("samples", justify="right", no_wrap=True)
    table.add_column("clients that train on it", justify="right", no_wrap=True)
    for (samples, holders), labels in sorted(alike.items(), key=lambda item: item[1]):
        named = (
            ", ".join(map(dataset.class_name, labels))
            if dataset.class_names
            else id_range(labels).replace(",", ", ")
        )
        table.add_row(named, f"{samples:,}", str(holders))
    return table


def _summary(train_MC: np.ndarray, counts_MC: np.ndarray) -> str:
    import numpy as np

    sizes_M = counts_MC.sum(axis=1)
    overall_C = counts_MC.sum(axis=0) / counts_MC.sum()
    # Total variation: the share of a client's samples that must change class to make it like the whole.
    distance_M = np.abs(counts_MC / sizes_M[:, None] - overall_C).sum(axis=1) / 2
    return (
        f"Client sizes {sizes_M.min():,} to {sizes_M.max():,}, median {np.median(sizes_M):,.0f}, "
        f"imbalance {sizes_M.max() / sizes_M.min():.1f}; {(train_MC > 0).sum():,} (client, class) pairs to train "
        f"on; distance from iid {distance_M.mean():.2f} (0: iid, 1: nothing in common)."
    )
