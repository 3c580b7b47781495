"""`fedsim reproduce`: run a paper's table, or a part of it, and put our numbers beside the printed ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from nodes.cli.presets import complete_preset

if TYPE_CHECKING:
    from fedsim.config import Experiment
    from fedsim.presets import Cell
    from fedsim.results.report.comparison import Comparison, Row
    from nodes.tools.batch import Batch

_EXAMPLES = """
\b
Examples:
  fedsim reproduce fedtgp-table10 --scale quick            seven methods, two settings, three seeds
  fedsim reproduce fedtgp-table1 --only cifar10,practical  a part: all methods on one data set
  fedsim reproduce fedktl-table7 --generators ~/stylegan   with published snapshots
Stopped with Ctrl-C, the same command goes on where it was. Draw a run's report with: fedsim report RUN
"""


@click.command(epilog=_EXAMPLES)
@click.argument("name", shell_complete=complete_preset)
@click.option("--only", default="", metavar="WORD,WORD", help="Only cells with these labels.")
@click.option(
    "--scale",
    type=click.Choice(["paper", "quick"]),
    default="paper",
    show_default=True,
    help="quick: a small version for a laptop, whose numbers are not the paper's.",
)
@click.option("--seeds", default="1,2,3", show_default=True, help="One run of each cell for each seed.")
@click.option("--out", type=Path, help="Folder of all runs and of the table; by default runs/reproduce-SCALE.")
@click.option("--data-dir", help="Where to look for data first.")
@click.option("--generators", type=Path, help="Folder of the generators that FedKTL's tables name.")
@click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Change all runs.")
@click.option("--checkpoint-every", type=click.IntRange(min=0), help="Rounds between checkpoints.")
@click.option("--quiet", is_flag=True, help="No live view of a run.")
def command(
    name: str,
    only: str,
    scale: str,
    seeds: str,
    out: Path | None,
    data_dir: str | None,
    generators: Path | None,
    settings: tuple[str, ...],
    checkpoint_every: int | None,
    quiet: bool,
) -> int:
    """Run the table or figure NAME of a paper, then print our numbers beside the paper's.

    Finished runs are skipped, and interrupted ones go on from their last checkpoint. The table is also written as
    Markdown and CSV.
    """
    from fedsim import config, presets
    from fedsim.errors import UserError
    from nodes.tools.batch import Batch, Job, parse_seeds, refuse_seed_setting

    table = presets.load(name)
    everything = table.cells()
    if not everything:
        raise UserError(f"{name} is not made of runs; use: {' ; '.join(table.see)}")
    words = [word for word in only.split(",") if word.strip()]
    chosen = [cell for cell in presets.select(name, everything, words) if cell.is_run]
    if not chosen:
        raise UserError(
            f"the paper prints a dash for all of {only} in {name}: not applicable; choose other labels."
        )
    refuse_seed_setting(settings)
    layers = [config.parse_setting(text) for text in settings]
    if data_dir:
        layers.append({"data": {"data_dir": data_dir}})
    if checkpoint_every is not None:
        layers.append({"cluster": {"checkpoint_every": checkpoint_every}})
    numbers = parse_seeds(seeds)

    def experiment(cell: Cell, seed: int) -> Experiment:
        return build_cell(cell, seed, scale=scale, layers=layers, generators=generators)

    out = out or Path("runs") / f"reproduce-{scale}"
    console = Console(highlight=False)
    # Seed by seed, so that a whole table is there soon, and then gets better.
    jobs = [Job(f"{cell.name}, seed {seed}", experiment(cell, seed)) for seed in numbers for cell in chosen]
    console.print(_announcement(name, scale, [job.experiment for job in jobs]), soft_wrap=True)
    batch = Batch(out, jobs, console, quiet=quiet)
    if not batch.run():
        return 130

    def rows(cells: list[Cell]) -> list[Row]:
        return [_row(batch, cell, [experiment(cell, s) for s in numbers] if cell.is_run else []) for cell in cells]

    shown = [cell for cell in everything if cell in chosen or not (cell.is_run or words)]
    some, all_of_it = (compare(name, scale, settings, rows(cells)) for cells in (shown, everything))
    return batch.conclude(some, all_of_it, out / f"{name}-{scale}")


def build_cell(
    cell: Cell, seed: int, *, scale: str, layers: list[dict[str, Any]], generators: Path | None = None
) -> Experiment:
    """A cell's experiment. What the user sets goes on top of everything, the small scale included."""
    import msgspec

    from fedsim import config
    from fedsim.presets import quick
    from nodes.tools.batch import prepare

    experiment = cell.experiment({"run": {"seed": seed}})
    if scale == "quick":
        experiment = quick.shrink(experiment)
    generator = experiment.method.get("generator", "tiny")
    named: list[dict[str, Any]] = []
    if generators is not None and generator != "tiny":
        named = [{"method": {"generator": str(generators.expanduser() / generator)}}]
    return prepare(config.build([msgspec.to_builtins(experiment), *named, *layers]))


def compare(name: str, scale: str, settings: tuple[str, ...], rows: list[Row]) -> Comparison:
    from fedsim import presets
    from fedsim.presets import quick
    from fedsim.presets.tables import load_paper
    from fedsim.results.report.comparison import Comparison

    table = presets.load(name)
    paper = load_paper(table.paper)
    label = "QUICK SCALE, not the paper's" if scale == "quick" else "the paper's scale"
    notes = [f"{paper.cite}; {table.source}."]
    if scale == "quick":
        notes.append(f"Quick scale, so numbers cannot be compared with the paper's: {quick.RULE}.")
    if settings:
        notes.append(f"Changed for all runs: {', '.join(settings)}.")
    notes.append(
        "Ours: mean and population deviation over seeds of the best round. All seeds share one partition, as the "
        "papers' trials do."
    )
    notes += [note for note in (paper.note, table.note) if note]
    title = f"{name}: {table.title} ({label})"
    return Comparison(title, f"{scale} scale", notes, rows, is_comparable=scale == "paper")


def _row(batch: Batch, cell: Cell, experiments: list[Experiment]) -> Row:
    from fedsim.results.report.comparison import Row

    measured, note = batch.measured(experiments, cell.metric)
    remarks = [f"paper: – ({cell.dash})" if cell.dash else "", note]
    return Row(cell.labels, cell.metric, measured, cell.printed, "; ".join(filter(None, remarks)))


def _announcement(name: str, scale: str, experiments: list[Experiment]) -> str:
    from fedsim.presets import cost, quick
    from fedsim.results.wording import counted

    time = cost.duration(cost.seconds(experiments, cost.machine_speed()))
    text = f"{name} at {scale} scale: {counted(len(experiments), 'run')}, about {time} of training on this machine"
    return f"{text}. Quick scale: {quick.RULE}." if scale == "quick" else f"{text}."
