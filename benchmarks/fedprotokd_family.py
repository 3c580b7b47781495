"""FedProtoKD, its ablations and what it is compared with: tables I, II and IX of its paper, on a small scale.

    python -m benchmarks.fedprotokd_family [--dataset fmnist] [--partition dirichlet] [--seeds 1 2 3]

All in per cent, mean ± standard deviation over the seeds, of the best round of each column, as the papers report:
clients on their own test data as their own training left them, clients after they have learnt from the server, and
the server's model on test samples that no client holds. FedTGP, FedProto and Fed2PKD do not teach clients after
their training, so they have no second column; Fed2PKD is given a server model, which its paper does not have. A
seed draws the partition too unless --data-seed is given, and partitions differ far more than methods do:
`difference` is that of the server to FedProtoKD's with the same seed.

Runs are real clusters. Finished ones are not run again, so an interrupted comparison goes on where it was. Writes
servers.png and .svg: the accuracy of the servers' models, round by round.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from benchmarks._common import run_all, show, spread
from fedsim import config
from fedsim.config import Experiment
from fedsim.results.load import LoadedRun
from fedsim.results.plots import drawing

CLASSES_PER_CLIENT, BETA = 3, 0.1


@dataclass(frozen=True)
class Variant:
    title: str
    method: str
    dirichlet: tuple[str, str]
    """Accuracy of clients and of the server on CIFAR-10, in tables II, I and IX."""
    pathological: tuple[str, str]
    options: dict[str, Any] = field(default_factory=dict)


MODEL = {"server_model": "CNN2"}
VARIANTS = {
    "fedprotokd": Variant("FedProtoKD", "fedprotokd", ("88.27", "63.14"), ("91.47", "61.94"), MODEL),
    "no_importance": Variant("− I", "fedprotokd", ("", "61.96"), ("", "58.15"), {**MODEL, "importance": False}),
    "mean_one": Variant("I / mean I", "fedprotokd", ("", ""), ("", ""), {**MODEL, "normalize_importance": True}),
    "zeta": Variant("ζ", "fedprotokd", ("", "61.14"), ("", "58.37"), {**MODEL, "margin": "max"}),
    "zeta_no_importance": Variant(
        "ζ − I",
        "fedprotokd",
        ("86.09", "62.11"),
        ("91.54", "60.61"),
        {**MODEL, "margin": "max", "importance": False},
    ),
    "fedpkd": Variant("FedPKD", "fedpkd", ("85.27", "62.58"), ("90.05", "60.58"), MODEL),
    "fedpkd_all": Variant("FedPKD, θ = 1", "fedpkd", ("", ""), ("", ""), {**MODEL, "theta": 1.0}),
    "fed2pkd": Variant(
        "Fed2PKD", "fed2pkd", ("78.95", "54.84"), ("76.37", "27.81"), {**MODEL, "evaluate_globally": False}
    ),
    "fedtgp": Variant("FedTGP", "fedtgp", ("87.32", ""), ("91.95", "")),
    "fedproto": Variant("FedProto", "fedproto", ("87.16", ""), ("91.54", "")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="fmnist")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--partition", choices=("dirichlet", "pathological"), default="dirichlet")
    parser.add_argument("--samples-per-class", type=int, default=600)
    parser.add_argument("--public-samples", type=int, default=300)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--model-group", default="CNN2,CNN4")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--local-epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--data-seed", type=int, default=0, help="one partition for all seeds; 0: each its own")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("runs/fedprotokd-family"))
    given = parser.parse_args()
    variants = [VARIANTS[name] for name in dict.fromkeys(("fedprotokd", *given.variants))]
    # Seed by seed: an interrupted comparison has all variants of the first ones.
    runs = run_all(
        given.out,
        {
            (variant.title, seed): (f"{variant.title}, seed {seed}", experiment_of(variant, seed, given))
            for seed in given.seeds
            for variant in variants
        },
        given.jobs,
    )
    measured = {v.title: columns([runs[v.title, seed] for seed in given.seeds]) for v in variants}
    of_fedprotokd = measured["FedProtoKD"][-1]
    rows = []
    for variant in variants:
        found = measured[variant.title]
        differences = [own - other for own, other in zip(found[-1], of_fedprotokd, strict=bool(found[-1]))]
        rows.append(
            (
                variant.title,
                *map(spread, found),
                spread(differences, sign="+"),
                *getattr(variant, given.partition),
            )
        )
    split = f"Dirichlet({BETA})" if given.partition == "dirichlet" else f"{CLASSES_PER_CLIENT} classes each"
    title = (
        f"{given.dataset}, {given.samples_per_class} samples a class, {given.public_samples} public, "
        f"{given.clients} clients, {split}, {given.model_group}, {given.rounds} rounds of "
        f"{given.local_epochs} epochs, {len(given.seeds)} seeds"
    )
    headings = ("variant", "clients, trained", "clients, distilled", "server", "difference", "paper, clients",
                "paper, server")  # fmt: skip
    show(title, headings, rows)
    with drawing.style():
        of_servers = {
            variant.title: [runs[variant.title, seed].series("server_accuracy") for seed in given.seeds]
            for variant in variants
        }
        drawing.save(draw(of_servers), given.out / "servers")


def experiment_of(variant: Variant, seed: int, given: argparse.Namespace) -> Experiment:
    """The methods that need no public samples must not have them to train on either, so all set them apart."""
    data = {"dataset": given.dataset, "data_dir": given.data_dir, "samples_per_class": given.samples_per_class}
    split = {
        "partition": given.partition,
        "beta": BETA,
        "classes_per_client": CLASSES_PER_CLIENT,
        "seed": given.data_seed,
    }
    return config.build(
        [
            {
                "run": {"clients": given.clients, "rounds": given.rounds, "seed": seed},
                "data": {**data, **split, "public_samples": given.public_samples, "global_test": True},
                "model": {"group": given.model_group},
                "train": {"local_epochs": given.local_epochs, "batch_size": 10},
                "method": {"name": variant.method, **variant.options},
            }
        ]
    )


def draw(of_servers: Mapping[str, Sequence[Series]]) -> Figure:
    """Means over seeds, with bands of a deviation to both sides."""
    figure, axes = drawing.new_axes()
    taught = {title: 100 * DataFrame(curves) for title, curves in of_servers.items() if any(map(len, curves))}
    for number, curves in enumerate(taught.values()):
        mean, deviation = curves.mean(), curves.std()
        colour = drawing.series_style(number)["color"]
        axes.fill_between(mean.index, mean - deviation, mean + deviation, color=colour, alpha=0.14, linewidth=0)
    lines = [(title, curves.mean()) for title, curves in taught.items()]
    drawing.draw_lines(axes, lines, y_label="accuracy of the server's model, %", from_zero=True)
    return figure


def columns(runs: Sequence[LoadedRun]) -> list[list[float]]:
    """Of each run the best round of: clients as they trained, clients as they were taught, the server's model."""
    teaches = "trained_accuracy" in runs[0].metrics
    names = ("trained_accuracy", "accuracy", "server_accuracy") if teaches else ("accuracy", "", "server_accuracy")
    return [
        [float(np.nanmax(run.metrics[name])) for run in runs] if name in runs[0].metrics else [] for name in names
    ]


if __name__ == "__main__":
    main()
