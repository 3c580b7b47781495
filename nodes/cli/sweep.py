"""`fedsim sweep`: one experiment with several values and seeds, and one table of what came out."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from nodes.cli.run import build_experiment, experiment_options

_EXAMPLES = """
\b
Examples:
  fedsim sweep --vary method.tau=1,10,100 --seeds 1,2,3
  fedsim sweep --vary method.name=fedproto,fedtgp,protonorm --vary data.beta=0.1,1 --rounds 20
  fedsim sweep --preset fedtgp-table10 --vary method.server_epochs=1,10,100 --rounds 50
Stopped with Ctrl-C, the same command goes on where it was. Draw a run's report with: fedsim report RUN
"""


@click.command(epilog=_EXAMPLES)
@experiment_options
@click.option("--vary", multiple=True, required=True, metavar="SECTION.KEY=A,B,C", help="Values to try.")
@click.option("--seeds", default="1,2,3", show_default=True, help="One run of each combination for each seed.")
@click.option(
    "--metric", default="accuracy", show_default=True, help="Column of metrics.csv; the best round counts."
)
@click.option("--out", type=Path, default=Path("runs/sweep"), show_default=True, help="Folder of all runs.")
@click.option("--quiet", is_flag=True, help="No live view of a run.")
def command(vary: tuple[str, ...], seeds: str, metric: str, out: Path, quiet: bool, **options: Any) -> int:
    """Run all combinations of the values given with --vary, for several seeds, and compare their best rounds."""
    from fedsim.results.report.comparison import Comparison, Row
    from nodes.tools.batch import (
        Batch,
        Interrupted,
        Job,
        parse_seeds,
        prepare,
        print_comparison,
        refuse_seed_setting,
    )

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
    console = Console(highlight=False)
    batch = Batch(out, jobs, console, quiet=quiet, metric=metric)
    try:
        batch.run()
    except Interrupted as stop:
        console.print(str(stop), soft_wrap=True)
        return 130
    rows = []
    for combination in combinations:
        labels = dict(text.split("=", 1) for text in combination)
        measured, note = batch.measured([experiment(combination, seed) for seed in numbers], metric)
        rows.append(Row(labels, metric, measured, note=note))
    notes = [f"Mean and population deviation over the seeds {seeds} of the best round."]
    summary = Comparison(f"Sweep over {' and '.join(labels)}", "", notes, rows)
    print_comparison(console, summary)
    for path in summary.write(out / "summary"):
        console.print(f"wrote {path}", soft_wrap=True)
    return 1 if batch.failures else 0


def _values(text: str) -> list[str]:
    """`method.tau=1,10` as ["method.tau=1", "method.tau=10"]."""
    from fedsim.errors import UserError

    name, sign, values = text.partition("=")
    if not sign or not all(value.strip() for value in values.split(",")):
        raise UserError(f"--vary wants section.key=value,value, not {text!r}.")
    if name.strip() == "run.seed":
        raise UserError("--vary run.seed is what --seeds is for; give --seeds and vary something else.")
    return [f"{name.strip()}={value.strip()}" for value in values.split(",")]
