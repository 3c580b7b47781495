"""Accuracy against bytes: what every method loses, and saves, when its payloads travel in fewer bytes.

    python -m benchmarks.encodings [--datasets fmnist cifar100] [--seeds 1 2 3] [--out runs/encodings]

Each method is run as it is (float32) and with each encoding on all payloads that can be encoded so, up and down,
with and without zstd on top. Runs are real clusters whose connections the kernel has counted: a run of which one
differs from the ledger ends the comparison. Finished runs are not run again, so an interrupted comparison goes on
where it was. Writes encodings.csv, encodings.md with encodings side by side, and encodings.png and .svg.

`up` and `down` are wire bytes of the method, of one client in one round; `share` is up against the same run in
float32. Accuracy is that of the best round, as the papers report, of clients as their own training left them; that
matters for FedProtoKD alone, whose clients learn from the server's model after it. `difference` is to float32 with
the same seed, because partitions differ far more than encodings do. What zstd is put on top of learns the same
bits, which is checked, so accuracies with it are those without, of all seeds, also where only the first was run
with it.
"""

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.ticker import LogLocator, NullLocator
from pandas import DataFrame, Series

from benchmarks._common import run_all, show, spread
from fedsim import assembly, config, encodings, methods
from fedsim.config import Experiment
from fedsim.contract import DIRECTIONS
from fedsim.costs.tables import markdown_table
from fedsim.results.load import LoadedRun
from fedsim.results.plots import drawing

METHODS = ("fedproto", "fedtgp", "protonorm", "feddistill", "fedprotokd")
ENCODINGS = ("plain", "float16", "int8", "topk")
PLAIN = "float32"
Key = tuple[str, str, str, int]
"""Data set, method, encoding, seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", nargs="+", default=["fmnist", "cifar100"])
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--encodings", nargs="+", default=list(ENCODINGS), metavar="NAME")
    parser.add_argument(
        "--zstd", choices=("all", "first", "none"), default="all", help="Seeds that are run with zstd on top too."
    )
    parser.add_argument("--samples-per-class", type=int, nargs="+", default=[300, 60], help="For each data set.")
    parser.add_argument("--public-samples", type=int, default=200)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--model-group", default="CNN2,CNN4")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--local-epochs", type=int, default=1)
    parser.add_argument(
        "--prototype-epochs",
        type=int,
        nargs="+",
        default=[100, 20],
        help="Of servers that train prototypes, for each data set.",
    )
    parser.add_argument("--server-model", default="CNN2")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="Runs at once, which changes no bit.")
    parser.add_argument("--out", type=Path, default=Path("runs/encodings"))
    given = parser.parse_args()
    for option in ("samples_per_class", "prototype_epochs"):
        if len(getattr(given, option)) != len(given.datasets):
            parser.error(f"--{option.replace('_', '-')} wants one number for each data set")
    zstd_seeds = {"all": given.seeds, "first": given.seeds[:1], "none": []}[given.zstd]
    wanted = list(dict.fromkeys(("plain", *given.encodings)))
    # Seed by seed: an interrupted comparison has all of the first ones.
    keys = [
        (dataset, method, variant, seed)
        for seed in given.seeds
        for dataset in given.datasets
        for method in given.methods
        for variant in [*wanted, *(map(with_zstd, wanted) if seed in zstd_seeds else ())]
    ]
    experiments = {key: (", ".join(map(str, key)), experiment_of(*key, given)) for key in keys}
    runs = run_all(given.out, experiments, given.jobs)
    for run in runs.values():
        require_agreement(run)
    require_lossless(runs)
    table = measured(runs, given)
    given.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(given.out / "encodings.csv", index=False)
    (given.out / "encodings.md").write_text(markdown_table(side_by_side(table), numbers_from=2) + "\n")
    with drawing.style():
        drawing.save(draw(table), given.out / "encodings")
    title = (
        f"{given.clients} clients, Dirichlet(0.1), {given.model_group}, {given.rounds} rounds of "
        f"{given.local_epochs} epochs, {len(given.seeds)} seeds; the kernel agrees on every connection"
    )
    rows = [cells(row) for row in table.to_dict("records")]
    show(title, list(rows[0]), [list(row.values()) for row in rows])


def with_zstd(encoding: str) -> str:
    return "zstd" if encoding == "plain" else f"{encoding}+zstd"


def without_zstd(variant: str) -> str:
    return "plain" if variant == "zstd" else variant.removesuffix("+zstd")


def experiment_of(dataset: str, method: str, variant: str, seed: int, given: argparse.Namespace) -> Experiment:
    """All methods do without the samples that one of them needs in public."""
    position = given.datasets.index(dataset)
    layer: dict[str, Any] = {
        "run": {"clients": given.clients, "rounds": given.rounds, "seed": seed},
        "data": {
            "dataset": dataset,
            "data_dir": given.data_dir,
            "samples_per_class": given.samples_per_class[position],
            "beta": 0.1,
            "min_samples": 10,
            "public_samples": given.public_samples,
        },
        "model": {"group": given.model_group},
        "train": {"local_epochs": given.local_epochs},
        "method": {
            "name": method,
            **server_options(method, given.prototype_epochs[position], given.server_model),
        },
    }
    return config.build([layer, {"wire": settings(config.build([layer]), variant)}])


def server_options(method: str, prototype_epochs: int, server_model: str) -> dict[str, Any]:
    """How much work the server has, where the method's server learns."""
    match method:
        case "fedtgp":
            return {"server_epochs": prototype_epochs}
        case "fedprotokd":
            return {"prototype_epochs": prototype_epochs, "server_model": server_model}
        case _:
            return {}


def settings(experiment: Experiment, variant: str) -> dict[str, str]:
    """The variant for every kind of knowledge of which all arrays can be encoded so."""
    encoding, contract = encodings.make(variant), assembly.contract_of(experiment)
    if encoding is None:
        return {}
    fields = [field for direction in DIRECTIONS for field in getattr(contract, direction).values()]
    broken = {field.payload for field in fields if encoding.unsuited(field)}
    return {
        str(field.payload): variant
        for field in fields
        if field.payload.is_knowledge and field.payload not in broken
    }


def require_agreement(run: LoadedRun) -> None:
    audit = (run.summary or {})["audit"]
    if audit["agree"] < audit["checked"]:
        raise SystemExit(f"{run.path}: the kernel does not agree with the ledger: {audit['differences']}")


def require_lossless(runs: Mapping[Key, LoadedRun]) -> None:
    for (dataset, method, variant, seed), run in runs.items():
        without = runs.get((dataset, method, without_zstd(variant), seed), run)
        if not accuracies(run).equals(accuracies(without)):
            raise SystemExit(f"{run.path}: zstd changed what was learnt in {without.path}")


def measured(runs: Mapping[Key, LoadedRun], given: argparse.Namespace) -> DataFrame:
    """One row for each data set, method and encoding: lists of all seeds, of bytes those that were run."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for dataset, method, variant, _ in runs:
        of_seeds = [runs.get((dataset, method, variant, seed)) for seed in given.seeds]
        learnt = [runs.get((dataset, method, without_zstd(variant), seed)) for seed in given.seeds]
        plain = [runs.get((dataset, method, "plain", seed)) for seed in given.seeds]
        found[dataset, method, variant] = {
            **{f"{way} bytes": [bytes_of(run, way) for run in of_seeds if run] for way in ("up", "down")},
            "share": [
                bytes_of(r, "up") / bytes_of(p, "up") for r, p in zip(of_seeds, plain, strict=True) if r and p
            ],
            "accuracy": [best(run) for run in learnt if run],
            "difference": [best(run) - best(p) for run, p in zip(learnt, plain, strict=True) if run and p],
        }
    names = {"plain": PLAIN, "zstd": f"{PLAIN}+zstd"}
    return DataFrame(
        {"dataset": dataset, "method": method, "encoding": names.get(variant, variant), **row}
        for (dataset, method, variant), row in sorted(
            found.items(), key=lambda item: list(runs).index((*item[0], given.seeds[0]))
        )
    )


def bytes_of(run: LoadedRun, way: str) -> float:
    """Of the method, one client and one round, on the wire."""
    ledger = run.ledger[(run.ledger["purpose"] == "method") & (run.ledger["direction"] == way)]
    return float(ledger["wire_bytes"].sum()) / run.experiment.run.clients / run.experiment.run.rounds


def accuracies(run: LoadedRun) -> Series:
    column = "trained_accuracy" if "trained_accuracy" in run.metrics else "accuracy"
    return run.series(column)


def best(run: LoadedRun) -> float:
    return float(accuracies(run).max())


def cells(row: Mapping[str, Any]) -> dict[str, str]:
    return {
        **{name: row[name] for name in ("dataset", "method", "encoding")},
        **{f"{way}, B": f"{statistics.fmean(row[f'{way} bytes']):,.0f}" for way in ("up", "down")},
        "share": f"{statistics.fmean(row['share']):.3f}",
        "accuracy, %": spread(row["accuracy"]),
        "difference": spread(row["difference"], sign="+"),
    }


def side_by_side(table: DataFrame) -> list[dict[str, str]]:
    """A row for each data set and method; of each encoding its share, in brackets that with zstd on top."""
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in table.to_dict("records"):
        start = {"data": row["dataset"], "method": row["method"]}
        line = lines.setdefault((row["dataset"], row["method"]), start)
        kind, _, zstd = row["encoding"].partition("+")
        share = f"{statistics.fmean(row['share']):.3f}"
        if zstd:
            line[kind] += f" ({share})"
        elif kind == PLAIN:
            line |= {"bytes up": f"{statistics.fmean(row['up bytes']):,.0f}", kind: share}
            line["accuracy, %"] = spread(row["accuracy"])
        else:
            line |= {kind: share, f"{kind}: accuracy": spread(row["difference"], sign="+")}
    return list(lines.values())


def draw(table: DataFrame) -> Any:
    """A panel for each data set and method; hollow with zstd on top. Bars: the deviation of the difference."""
    datasets, names = list(dict.fromkeys(table["dataset"])), list(dict.fromkeys(table["method"]))
    figure = drawing.new_figure(2.1 * len(names) + 0.6, 2.2 * len(datasets) + 0.5)
    axes = figure.subplots(len(datasets), len(names), squeeze=False, sharex="row", sharey="row")
    kinds = list(dict.fromkeys(text.removesuffix("+zstd") for text in table["encoding"]))
    for row in table.to_dict("records"):
        panel = axes[datasets.index(row["dataset"])][names.index(row["method"])]
        kind = row["encoding"].removesuffix("+zstd")
        colour, is_hollow = drawing.PALETTE[kinds.index(kind)], row["encoding"] != kind
        mean, changes = 100 * statistics.fmean(row["accuracy"]), row["difference"]
        deviation = 100 * statistics.stdev(changes) if len(changes) > 1 and kind != PLAIN else None
        panel.errorbar(
            statistics.fmean(row["up bytes"]), mean, deviation, fmt="o", markersize=5,
            capsize=2, linewidth=0.8, color=colour, markerfacecolor=drawing.PAPER if is_hollow else colour,
            label=kind if not is_hollow else f"{kind}+zstd",
        )  # fmt: skip
    for line, dataset in enumerate(datasets):
        for column, name in enumerate(names):
            panel = axes[line][column]
            panel.set_xscale("log")
            panel.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
            panel.xaxis.set_minor_locator(NullLocator())
            drawing.bytes_axis(panel)
            panel.grid()
            panel.tick_params(axis="x", labelsize=7)
            panel.set_title(
                f"{methods.title(name)}, {dataset}" if column == 0 else methods.title(name), fontsize=8
            )
        axes[line][0].set_ylabel("best accuracy, %")
    figure.supxlabel("bytes up, of a client in a round", fontsize=9)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(kinds) * 2, fontsize=7, frameon=False)
    return figure


if __name__ == "__main__":
    main()
