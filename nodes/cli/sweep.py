"""`fedsim sweep`: one experiment with several values and seeds, and one table of what came out."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from nodes.cli._experiment import OPTIONS, build_experiment, experiment_options

if TYPE_CHECKING:
    from fedsim.results.tables.grid import Table
    from nodes.tools.batch import Batch

_EXAMPLES = """
\b
Examples:
  fedsim sweep --vary method.tau=1,10,100 --seeds 1,2,3
  fedsim sweep --vary method.name=local,fedproto,fedtgp --vary data.beta=0.1,1 --jobs 2 --rounds 20
  fedsim sweep --preset fedtgp-table10 --vary method.server_epochs=1,10,100 --data-seeds 1,2 --rounds 50
Stopped with Ctrl-C, the same command goes on where it was. Then: fedsim table, fedsim figure, fedsim report
"""
SEED_OPTIONS = {"run.seed": "--seeds", "data.seed": "--data-seeds"}
_MOST_LETTERS = 80
_IN_THE_NAME = ("method.name", "data.dataset")
"""Folders are named after these in any case."""


@click.command(epilog=_EXAMPLES, params=experiment_options(*(name for name in OPTIONS if name != "seed")))
@click.option("--vary", multiple=True, metavar="SECTION.KEY=A,B,C", help="Values to try; several times.")
@click.option("--seeds", default="1,2,3", show_default=True, help="Of the runs: weights, batches, cohorts.")
@click.option(
    "--data-seeds",
    default="1",
    show_default=True,
    help="Of the data: partition, public samples; 0: each run's own.",
)
@click.option("--metric", default="accuracy", show_default=True, help="Column of metrics.csv.")
@click.option(
    "--baseline", default="", metavar="VALUE", help="Hold all others against this value, paired by seed."
)
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Runs at once.")
@click.option("--out", type=Path, default=Path("runs/sweep"), show_default=True, help="Folder of all runs.")
@click.option("--quiet", is_flag=True, help="No live view of the runs.")
def command(
    vary: tuple[str, ...],
    seeds: str,
    data_seeds: str,
    metric: str,
    baseline: str,
    jobs: int,
    out: Path,
    quiet: bool,
    **options: Any,
) -> int:
    """Run all combinations of the values given with --vary, for several seeds, and compare them.

    Each combination is run with every seed of --seeds on every partition of --data-seeds, and the table says over
    which of both its mean is. It fills while the runs go on, here and as summary.md, .csv and .tex in the folder.
    """
    from fedsim.results.settings import Seeds
    from nodes.display.tables import show
    from nodes.launchers import zygote
    from nodes.tools.batch import Batch, Job, parse_seeds, prepare, refuse_seed_setting, refuse_twins

    settings = options.pop("settings")
    for given, texts in (("--set", settings), ("--vary", vary)):
        refuse_seed_setting(texts, SEED_OPTIONS, given)
    partitions = parse_seeds(data_seeds, "--data-seeds")
    drawn = [Seeds(seed, data) for data in partitions for seed in parse_seeds(seeds)]
    combinations = list(itertools.product(*(_values(text) for text in vary)))
    named = {text.partition("=")[0].strip() for text in (*settings, *vary)}
    is_chosen = options["checkpoint_every"] is not None or "cluster.checkpoint_every" in named

    def job(combination: tuple[str, ...], draw: Seeds) -> Job:
        # A change of method drops the options before it.
        varied = sorted(combination, key=lambda text: not text.startswith("method.name="))
        of_seeds = (f"run.seed={draw.run}", f"data.seed={draw.data}")
        experiment = build_experiment(settings=settings, varied=(*varied, *of_seeds), **options)
        of_data = [f"data seed {draw.data}"] if len(partitions) > 1 else []
        return Job(
            ", ".join([*combination, f"seed {draw.run}", *of_data]),
            prepare(experiment, is_chosen=is_chosen),
            _slug(combination, draw.data if len(partitions) > 1 else None),
        )

    _check_baseline(baseline, combinations)
    # Said where only methods make the rows, so that the first one is named before there is a second.
    of_method = [text.partition("=")[0].strip() for text in vary if text.startswith("method.")]
    rows = of_method if of_method == ["method.name"] else None
    zygote.use_one_thread()
    # Seed by seed, so that a whole table is there soon, and then gets better.
    runs = [job(combination, draw) for draw in drawn for combination in combinations]
    refuse_twins(runs)
    console = Console(highlight=False)
    batch = Batch(
        out, runs, console, quiet=quiet, metric=metric, at_once=jobs,
        table=lambda: _so_far(batch, metric, baseline, out, rows),
    )  # fmt: skip
    if not batch.run():
        return 130
    table = _written(batch, metric, baseline, out, rows)
    if table is not None:
        console.print()
        show(table, console=console if console.is_terminal else None)
        console.print(f"wrote {out}/summary.md, .csv and .tex", soft_wrap=True)
    return 1 if batch.failures else 0


def _so_far(batch: Batch, metric: str, baseline: str, out: Path, rows: list[str] | None) -> Table | None:
    """While runs go on: a table that cannot be made yet stops none of them, and is tried again after each."""
    from fedsim.errors import UserError

    try:
        return _written(batch, metric, baseline, out, rows)
    except UserError:
        return None


def _written(batch: Batch, metric: str, baseline: str, out: Path, rows: list[str] | None) -> Table | None:
    """The table of all that is finished, also as files; None before anything is."""
    from fedsim.errors import UnknownName
    from fedsim.results.groups import collect
    from fedsim.results.tables.grid import Description, build
    from nodes.display.tables import KINDS, write

    if not (finished := batch.finished()):
        return None
    runs = collect(finished)
    description = Description(rows, metrics=(metric,), rounds=("best", "last"), baseline=baseline)
    try:
        table = build(runs, description)
    except UnknownName:  # no run of the baseline has ended well yet
        table = build(runs, replace(description, baseline=""))
    for suffix in KINDS:
        write(table, out / f"summary{suffix}")
    return table


def _values(text: str) -> list[str]:
    """`method.tau=1,10` as ["method.tau=1", "method.tau=10"]."""
    from fedsim.errors import UserError

    name, sign, values = text.partition("=")
    if not sign or not all(value.strip() for value in values.split(",")):
        raise UserError(f"--vary wants section.key=value,value, not {text!r}.")
    return [f"{name.strip()}={value.strip()}" for value in values.split(",")]


def _check_baseline(baseline: str, combinations: list[tuple[str, ...]]) -> None:
    """Before anything is run."""
    from fedsim.errors import UnknownName, UserError
    from fedsim.results.settings import resolve

    if not baseline:
        return
    name, sign, value = baseline.rpartition("=")
    varied = dict.fromkeys(tuple(text.split("=", 1)) for combination in combinations for text in combination)
    key = resolve(name, {key for key, _ in varied}) if sign else ""
    fitting = [pair for pair in varied if pair[1].lower() == value.lower() and key in ("", pair[0])]
    if not fitting:
        raise UnknownName("baseline", baseline, {value for _, value in varied})
    if len({key for key, _ in fitting}) > 1:
        raise UserError(f"--baseline {baseline} may be {' or '.join(map('='.join, fitting))}; write one of these.")


def _slug(combination: tuple[str, ...], data_seed: int | None) -> str:
    """`beta0.1-tau10`, for the name of a folder."""
    pairs = [text.split("=", 1) for text in combination]
    words = [f"{name.rpartition('.')[2]}{value}" for name, value in pairs if name not in _IN_THE_NAME]
    words += [f"data{data_seed}"] if data_seed is not None else []
    return re.sub(r"[^\w.-]", "-", "-".join(words))[:_MOST_LETTERS]
