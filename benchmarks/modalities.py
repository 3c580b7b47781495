"""Every method on signals, texts and a table, as real clusters whose bytes the kernel confirms: one table.

    python -m benchmarks.modalities --data-dir DATA

DATA holds `UCI HAR Dataset` and `ag_news_csv` as their publishers have them; the table is scikit-learn's wine.
Models are small (K = 32) and rounds few, so accuracies say that learning works, not how good a method is. Methods
that diverge with the learning rate of a set have a gentler one, which stands beside their accuracy.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks._common import CONSOLE, RunFailed, run_cluster
from fedsim import adaptation, assembly, methods
from fedsim.errors import UserError
from fedsim.results.load import load
from nodes.display.run import Quiet
from nodes.launchers import zygote

SETS: dict[str, dict[str, Any]] = {
    "har": {
        "data": {"dataset": "har", "samples_per_class": 300},
        "model": {"group": "HtFE-sen-2"},
        "train": {"lr": 0.05},
    },
    "ag_news": {
        "data": {"dataset": "ag_news", "vocabulary": 3000, "sequence_length": 48},
        "model": {"group": "HtFE-txt-2"},
        "train": {"lr": 0.5},  # the mean of many embeddings moves slowly
    },
    "table": {"data": {"label": "kind"}, "model": {"group": "MLP_1layer"}, "train": {"lr": 0.1, "batch_size": 5}},
}
ONE_MODEL = {"har": "HARCNN-s2", "ag_news": "fastText", "table": "MLP-200-100"}
SHARE_MODELS = ("fedavg", "fedprox", "fednh", "feduv")
GENTLER = {
    **{("ag_news", name): 0.1 for name in ("fed2pkd", "fedgen", "fedmrl", "fedproto", "fedtgp", "protonorm")},
    ("har", "fedtgp"): 0.01,
}
PROTOTYPE_SCALE = 5.0
"""ProtoNorm's γ: its loss is a mean over K, so this is as steep with K = 32 as the default 20 with 512."""


def write_table(folder: Path) -> Path:
    from sklearn.datasets import load_wine

    wine = load_wine(as_frame=True)
    path = folder / "wine.csv"
    values = (wine.data - wine.data.mean()) / wine.data.std()  # one column has thousands, another hundredths
    values.assign(kind=wine.target).to_csv(path, index=False)
    return path


def layers(name: str, method: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Small and the same for all methods, but for what a method cannot do with."""
    needs_public = "public_samples" in getattr(methods.load(method), "DEFAULTS", {}).get("data", {})
    public = {"public_samples": 60, "global_test": False} if needs_public else {}
    chosen = [
        {
            "run": {
                "clients": options["clients"],
                "rounds": options["rounds"],
                "evaluate_every": options["rounds"],
            },
            "data": {"data_dir": options["data_dir"], "partition": "dirichlet", "beta": 1.0, **public},
            "model": {"feature_dim": 32, "feature_mapping": "project"},
            "train": {"batch_size": 10, "local_epochs": options["local_epochs"]},
        },
        SETS[name],
        {"method": {"name": method}},
    ]
    if name == "table":
        chosen.append({"data": {"dataset": str(options["table"])}})
    elif options["samples_per_class"]:
        chosen.append({"data": {"samples_per_class": options["samples_per_class"]}})
    if rate := options["lr"] or GENTLER.get((name, method)):
        chosen.append({"train": {"lr": rate}})
    if method == "protonorm":
        chosen.append({"method": {"prototype_scale": PROTOTYPE_SCALE}})
    if method in SHARE_MODELS:
        chosen.append({"model": {"group": ONE_MODEL[name]}})
    if hasattr(methods.load(method).Config, "common_dim"):
        chosen.append({"method": {"common_dim": 16}})
    return chosen


def result(name: str, method: str, options: dict[str, Any], scratch: Path) -> str:
    """The last accuracy of a run that the kernel confirmed, or why there can be none."""
    try:
        experiment, _ = adaptation.build(layers(name, method, options))
        assembly.check(experiment)
    except UserError as error:
        return f"no: {error}"
    try:
        folder = run_cluster(scratch / f"{name}-{method}", experiment, Quiet(Console(quiet=True)))
    except RunFailed as failed:  # one that diverges keeps nobody from seeing the others
        return f"no: {failed}"
    summary = load(folder.path).summary
    audit = summary["audit"]
    shutil.rmtree(folder.path)
    gentler = GENTLER.get((name, method))
    beside = f"{audit['agree']}/{audit['checked']}" + (f", lr {gentler}" if gentler and not options["lr"] else "")
    return f"{100 * summary['final_accuracy']:.1f} ({beside})"


@click.command()
@click.option("--data-dir", default="", help="Where the publishers' folders are.")
@click.option("--sets", default=",".join(SETS), show_default=True)
@click.option("--methods", "chosen", default=",".join(methods.names()), show_default=True)
@click.option("--clients", default=5, show_default=True)
@click.option("--rounds", default=10, show_default=True)
@click.option("--local-epochs", default=2, show_default=True)
@click.option("--lr", default=0.0, help="Of clients, for methods that diverge with those that are set here.")
@click.option("--samples-per-class", default=0, help="Fewer, for a quick look; the table has all of its own.")
def main(sets: str, chosen: str, **options: Any) -> None:
    """Accuracy in per cent after the last round, and connections on which ledger and kernel agree."""
    zygote.preload()
    refused: list[str] = []
    table = Table("method", *sets.split(","), title=f"{options['clients']} clients, {options['rounds']} rounds")
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        options["table"] = write_table(scratch)
        for method in chosen.split(","):
            found = {name: result(name, method, options, scratch) for name in sets.split(",")}
            CONSOLE.print(f"{method}: {found}", soft_wrap=True)
            refused += [f"{method}, {name}: {text[4:]}" for name, text in found.items() if text.startswith("no")]
            table.add_row(method, *("–" if text.startswith("no") else text for text in found.values()))
    CONSOLE.print(table)
    for line in refused:
        CONSOLE.print(line, soft_wrap=True)


if __name__ == "__main__":
    main()
