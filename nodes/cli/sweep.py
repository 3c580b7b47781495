"""`fedsim sweep`: one experiment with several values and seeds, and one table of what came out."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from nodes.cli._experiment import OPTIONS, build_experiment, experiment_options

_EXAMPLES = """
\b
Examples:
  fedsim sweep --vary method.tau=1,10,100 --seeds 1,2,3
  fedsim sweep --vary method.name=fedproto,fedtgp,protonorm --vary data.beta=0.1,1 --rounds 20
  fedsim sweep --preset fedtgp-table10 --vary method.server_epochs=1,10,100 --rounds 50
Stopped with Ctrl-C, the same command goes on where it was. Draw a run's report with: fedsim report RUN
"""


@click.command(epilog=_EXAMPLES, params=experiment_options(*(name for name in OPTIONS if name != "seed")))
@click.option("--vary", multiple=True, required=True, metavar="SECTION.KEY=A,B,C", help="Values to try.")
@click.option("--seeds", default="1,2,3", show_default=True, help="One run of each combination for each seed.")
@click.option("--metric", default="accuracy", show_default=True, help="Column of metrics.csv.")
@click.option("--out", type=Path, default=Path("runs/sweep"), show_default=True, help="Folder of all runs.")
@click.option("--quiet", is_flag=True, help="No live view of a run.")
def command(vary: tuple[str, ...], seeds: str, metric: str, out: Path, quiet: bool, **options: Any) -> int:
    """Run all combinations of the values given with --vary, for several seeds, and compare them.

    Of an accuracy the best round counts, of any other metric the last.
    """
    from fedsim.metrics import describe
    from fedsim.results.report.comparison import COUNTS, Comparison, Row
    from nodes.tools.batch import Batch, Job, parse_seeds, prepare, refuse_seed_setting

    settings = options.pop("settings")
    refuse_seed_setting(settings)
    numbers = parse_seeds(seeds)
    combinations = list(itertools.product(*(_values(text) for text in vary)))

    def experiment(combination: tuple[str, ...], seed: int) -> Any:
        varied = sorted(combination, key=lambda text: not text.startswith("method.name="))
        return prepare(build_experiment(settings=(*settings, *varied, f"run.seed={seed}"), **options))

    jobs = [
        Job(f"{', '.join(combination)}, seed {seed}", experiment(combination, seed))
        for seed in numbers
        for combination in combinations
    ]
    batch = Batch(out, jobs, Console(highlight=False), quiet=quiet, metric=metric)
    if not batch.run():
        return 130
    rows = []
    for combination in combinations:
        labels = dict(text.split("=", 1) for text in combination)
        measured, note = batch.measured([experiment(combination, seed) for seed in numbers], metric)
        rows.append(Row(labels, metric, measured, note=note))
    which = COUNTS[describe(metric).is_share].removesuffix(" (%)")
    notes = [f"{describe(metric).title}: mean and population deviation over the seeds {seeds} of the {which}."]
    summary = Comparison(f"Sweep over {' and '.join(labels)}", "", notes, rows)
    return batch.conclude(summary, summary, out / "summary")


def _values(text: str) -> list[str]:
    """`method.tau=1,10` as ["method.tau=1", "method.tau=10"]."""
    from fedsim.errors import UserError

    name, sign, values = text.partition("=")
    if not sign or not all(value.strip() for value in values.split(",")):
        raise UserError(f"--vary wants section.key=value,value, not {text!r}.")
    if name.strip() == "run.seed":
        raise UserError("--vary run.seed is what --seeds is for; give --seeds and vary something else.")
    return [f"{name.strip()}={value.strip()}" for value in values.split(",")]
