"""FedProtoKD, its ablations and what it is compared with: tables I, II and IX of its paper, on a small scale.

    python -m benchmarks.fedprotokd_family [--dataset fmnist] [--partition dirichlet] [--seeds 1 2 3]

All in per cent, mean ± standard deviation over the seeds, of the best round of each column, as the papers report:
clients on their own test data as their own training left them, clients after they have learnt from the server, and
the server's model on test samples that no client holds. FedTGP, FedProto and Fed2PKD do not teach clients after
their training, so they have no second column; Fed2PKD is given a server model, which its paper does not have. A
seed draws the partition too, and partitions differ far more than methods do: `difference` is that of the server to
FedProtoKD's with the same seed.

Runs are real clusters. Finished ones are not run again, so an interrupted comparison goes on where it was.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._common import run_all, show, spread
from fedsim import config
from fedsim.config import Experiment
from fedsim.results.load import LoadedRun

NUM_CLIENTS, CLASSES_PER_CLIENT, BETA = 10, 3, 0.1


@dataclass(frozen=True)
class Variant:
    title: str
    method: str
    published: dict[str, tuple[str, str]]
    """Partition -> accuracy of clients and of the server on CIFAR-10, in tables II, I and IX."""
    options: dict[str, Any] = field(default_factory=dict)


MODEL = {"server_model": "CNN2"}
VARIANTS = (
    Variant("FedProtoKD", "fedprotokd", {"dirichlet": ("88.27", "63.14"), "pathological": ("91.47", "61.94")},
            MODEL),
    Variant("− I", "fedprotokd", {"dirichlet": ("", "61.96"), "pathological": ("", "58.15")},
            {**MODEL, "importance": False}),
    Variant("ζ", "fedprotokd", {"dirichlet": ("", "61.14"), "pathological": ("", "58.37")},
            {**MODEL, "margin": "max"}),
    Variant("ζ − I", "fedprotokd", {"dirichlet": ("86.09", "62.11"), "pathological": ("91.54", "60.61")},
            {**MODEL, "margin": "max", "importance": False}),
    Variant("FedPKD", "fedpkd", {"dirichlet": ("85.27", "62.58"), "pathological": ("90.05", "60.58")}, MODEL),
    Variant("Fed2PKD", "fed2pkd", {"dirichlet": ("78.95", "54.84"), "pathological": ("76.37", "27.81")},
            {**MODEL, "evaluate_globally": False}),
    Variant("FedTGP", "fedtgp", {"dirichlet": ("87.32", ""), "pathological": ("91.95", "")}),
    Variant("FedProto", "fedproto", {"dirichlet": ("87.16", ""), "pathological": ("91.54", "")}),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="fmnist")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--partition", choices=("dirichlet", "pathological"), default="dirichlet")
    parser.add_argument("--samples-per-class", type=int, default=600)
    parser.add_argument("--public-samples", type=int, default=300)
    parser.add_argument("--model-group", default="CNN2,CNN4")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/fedprotokd-family"))
    given = parser.parse_args()
    # Seed by seed: an interrupted comparison has all variants of the first ones.
    runs = run_all(
        given.out,
        {
            (variant.title, seed): (f"{variant.title}, seed {seed}", experiment_of(variant, seed, given))
            for seed in given.seeds
            for variant in VARIANTS
        },
    )
    measured = {v.title: columns([runs[v.title, seed] for seed in given.seeds]) for v in VARIANTS}
    of_fedprotokd = measured["FedProtoKD"][-1]
    rows = []
    for variant in VARIANTS:
        found = measured[variant.title]
        differences = [own - other for own, other in zip(found[-1], of_fedprotokd, strict=bool(found[-1]))]
        rows.append(
            (
                variant.title,
                *map(spread, found),
                spread(differences, sign="+"),
                *variant.published[given.partition],
            )
        )
    split = f"Dirichlet({BETA})" if given.partition == "dirichlet" else f"{CLASSES_PER_CLIENT} classes each"
    title = (
        f"{given.dataset}, {given.samples_per_class} samples a class, {given.public_samples} public, "
        f"{NUM_CLIENTS} clients, {split}, {given.model_group}, {given.rounds} rounds of 5 epochs, "
        f"{len(given.seeds)} seeds"
    )
    headings = ("variant", "clients, trained", "clients, distilled", "server", "difference", "paper, clients",
                "paper, server")  # fmt: skip
    show(title, headings, rows)


def experiment_of(variant: Variant, seed: int, given: argparse.Namespace) -> Experiment:
    """The methods that need no public samples must not have them to train on either, so all set them apart."""
    data = {"dataset": given.dataset, "data_dir": given.data_dir, "samples_per_class": given.samples_per_class}
    split = {"partition": given.partition, "beta": BETA, "classes_per_client": CLASSES_PER_CLIENT}
    return config.build(
        [
            {
                "run": {"clients": NUM_CLIENTS, "rounds": given.rounds, "seed": seed},
                "data": {**data, **split, "public_samples": given.public_samples, "global_test": True},
                "model": {"group": given.model_group},
                "train": {"local_epochs": 5, "batch_size": 10},
                "method": {"name": variant.method, **variant.options},
            }
        ]
    )


def columns(runs: Sequence[LoadedRun]) -> list[list[float]]:
    """Of each run the best round of: clients as they trained, clients as they were taught, the server's model."""
    teaches = "trained_accuracy" in runs[0].metrics
    names = ("trained_accuracy", "accuracy", "server_accuracy") if teaches else ("accuracy", "", "server_accuracy")
    return [
        [float(np.nanmax(run.metrics[name])) for run in runs] if name in runs[0].metrics else [] for name in names
    ]


if __name__ == "__main__":
    main()
