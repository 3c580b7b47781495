"""FedKTL against itself with one part removed at a time: table 7 of its paper, on a small real setting.

    python -m benchmarks.fedktl_ablations [--dataset fmnist] [--samples-per-class 160] [--seeds 1 2 3]

Accuracies are pooled over all clients, in per cent, mean ± standard deviation over the seeds: of the best round,
which is what the papers report, and of the last three rounds together, where a lucky round counts little. A seed
draws partition, weights and all else, so runs of one seed differ in the removed part alone; `difference` is that
to the full method in the last three rounds.

Runs are real clusters. Finished ones are not run again, so an interrupted comparison goes on where it was. Writes
differences.png and .svg: how far each variant is above the full method, round by round.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from pandas import Series

from benchmarks._common import run_all, show, spread
from fedsim import config
from fedsim.config import Experiment
from fedsim.results.plots import drawing

LAST_ROUNDS, FAR = 3, 5.0


@dataclass(frozen=True)
class Variant:
    title: str
    published: float | None
    """Table 7: Tiny-ImageNet, StyleGAN-XL, 20 clients with eight architectures."""
    options: dict[str, Any]


VARIANTS = {
    "full": Variant("FedKTL", 28.17, {}),
    "no_pairs": Variant("−L^M", 24.39, {"transfer": "none"}),
    "no_mse": Variant("−L^MSE", 21.70, {"mse_weight": 0.0}),
    "no_mmd": Variant("−L^MMD", 20.14, {"mmd_weight": 0.0}),
    "no_etf": Variant("−ETF", 21.02, {"classifier": "original"}),
    "mix": Variant("−Q̄", 20.69, {"transfer": "mix"}),
    "labels": Variant("+CS", 24.13, {"pairs_from": "labels"}),
    "weight_50": Variant("μ = 50", None, {"transfer_weight": 50.0}),
    "weight_10": Variant("μ = 10", None, {"transfer_weight": 10.0}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="fmnist")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--samples-per-class", type=int, default=160)
    parser.add_argument("--train-fraction", type=float, default=0.25, help="few to learn from, many to tell apart")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--beta", type=float, default=0.1, help="concentration of the Dirichlet partition")
    parser.add_argument("--model-group", default="CNN2,CNN4,CNN6,CNN8")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--local-epochs", type=int, default=5, help="h' starts anew in each round and needs steps")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("runs/fedktl-ablations"))
    given = parser.parse_args()
    names = ["full", *(name for name in given.variants if name != "full")]
    # Seed by seed: an interrupted comparison has all variants of the first ones.
    runs = run_all(
        given.out,
        {
            (name, seed): (f"{VARIANTS[name].title}, seed {seed}", experiment_of(name, seed, given))
            for seed in given.seeds
            for name in names
        },
        given.jobs,
    )
    curves = {of: run.series("accuracy").to_numpy() for of, run in runs.items()}
    rows = []
    for name in names:
        variant = VARIANTS[name]
        best = [float(curves[name, seed].max()) for seed in given.seeds]
        late = [_late(curves[name, seed]) for seed in given.seeds]
        differences = [_late(curves[name, seed]) - _late(curves["full", seed]) for seed in given.seeds]
        published = f"{variant.published:.2f}" if variant.published else "–"
        difference = "" if name == "full" else spread(differences, sign="+")
        rows.append((variant.title, spread(best), spread(late), difference, published))
    title = (
        f"{given.dataset}, {given.samples_per_class} samples a class, {given.train_fraction:.0%} for training, "
        f"{given.clients} clients, Dirichlet {given.beta}, {given.model_group}, {given.rounds} rounds of "
        f"{given.local_epochs} epochs, {len(given.seeds)} seeds"
    )
    show(title, ("variant", "best round", f"last {LAST_ROUNDS} rounds", "difference", "table 7"), rows)
    with drawing.style():
        drawing.save(draw(curves, names[1:], given.seeds), given.out / "differences")


def experiment_of(name: str, seed: int, given: argparse.Namespace) -> Experiment:
    data = {"dataset": given.dataset, "data_dir": given.data_dir, "samples_per_class": given.samples_per_class}
    return config.build(
        [
            {
                "run": {"clients": given.clients, "rounds": given.rounds, "seed": seed},
                "data": {**data, "train_fraction": given.train_fraction, "beta": given.beta},
                "model": {"group": given.model_group},
                "train": {"local_epochs": given.local_epochs},
                "method": {"name": "fedktl", **VARIANTS[name].options},
                "cluster": {"server_threads": 1},
            }
        ]
    )


def draw(curves: Mapping[tuple[str, int], np.ndarray], names: Sequence[str], seeds: Sequence[int]) -> Figure:
    """Means over seeds. What is more than FAR points away would press all others together, and is left out."""
    differences = {
        name: 100 * np.mean([curves[name, seed] - curves["full", seed] for seed in seeds], 0) for name in names
    }
    figure, axes = drawing.new_axes(drawing.COMPARISON_INCHES)
    lines = [
        (VARIANTS[name].title, Series(of_rounds[1:], range(1, len(of_rounds))))
        for name, of_rounds in differences.items()
        if abs(of_rounds[-LAST_ROUNDS:].mean()) < FAR
    ]
    axes.axhline(0, color=drawing.MUTED, linestyle="--")
    drawing.draw_lines(axes, lines, y_label="points above FedKTL")
    return figure


def _late(curve: np.ndarray) -> float:
    return float(curve[-LAST_ROUNDS:].mean())


if __name__ == "__main__":
    main()
