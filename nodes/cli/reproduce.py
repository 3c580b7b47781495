"""`fedsim reproduce`: run a paper's table, or a part of it, and put our numbers beside the printed ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from nodes.cli._values import OF_OPTIONS

if TYPE_CHECKING:
    from fedsim.config import Experiment
    from fedsim.presets import Cell
    from fedsim.results.report.comparison import Comparison, Row
    from nodes.tools.batch import Batch

_CHANGED = "Changed for all runs: "
_EXAMPLES = """
\b
Examples:
  fedsim reproduce fedtgp-table10 --scale quick            seven methods, two settings, three seeds
  fedsim reproduce fedtgp-claim1 --scale laptop --jobs 2   many classes: five methods, three data sets
  fedsim reproduce fedtgp-table1 --only cifar10,practical  a part: all methods on one data set
  fedsim reproduce fedktl-table7 --generators ~/stylegan   with published snapshots
Stopped with Ctrl-C, the same command goes on where it was. Draw a run's report with: fedsim report RUN
"""


@click.command(epilog=_EXAMPLES)
@click.argument("name", shell_complete=OF_OPTIONS["preset"])
@click.option("--only", default="", metavar="WORD,WORD", help="Only cells with these labels.")
@click.option(
    "--scale",
    type=click.Choice(["paper", "laptop", "quick"]),
    default="paper",
    show_default=True,
    help="laptop: hours on two cores, to see methods differ. quick: minutes, to see that it runs.",
)
@click.option("--seeds", default="1,2,3", show_default=True, help="One run of each cell for each seed.")
@click.option("--out", type=Path, help="Folder of all runs and of the table; by default runs/reproduce-SCALE.")
@click.option("--data-dir", help="Where to look for data first.")
@click.option("--generators", type=Path, help="Folder of the generators that FedKTL's tables name.")
@click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Change all runs.")
@click.option("--checkpoint-every", type=click.IntRange(min=0), help="Rounds between checkpoints; 0: none.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Runs at once.")
@click.option("--quiet", is_flag=True, help="No live view of the runs.")
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
    jobs: int,
    quiet: bool,
) -> int:
    """Run the table or figure NAME of a paper, then print our numbers beside the paper's.

    Finished runs are skipped, and interrupted ones go on from their last checkpoint. The table is also written as
    Markdown and CSV.
    """
    from fedsim import config, presets
    from fedsim.errors import UserError
    from fedsim.presets.scales import SCALES
    from nodes.launchers import zygote
    from nodes.tools.batch import Batch, Job, is_of_identity, parse_seeds, refuse_seed_setting

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
    if generators is not None and not any(uses_generator(cell.experiment()) for cell in chosen):
        raise UserError(f"--generators has no effect: no run of {name} that was asked for has one; leave it out.")
    numbers = parse_seeds(seeds)
    # Of each key the last.
    changes = [*{text.partition("=")[0].strip(): text for text in settings if is_of_identity(text)}.values()]
    if generators is not None and scale in SCALES:
        changes.append("published generators")

    def experiment(cell: Cell, seed: int) -> Experiment:
        return build_cell(cell, seed, scale=scale, layers=layers, generators=generators)

    def experiments(cell: Cell) -> list[Experiment]:
        """Of a cell that was not asked for, none where it does not know what the user sets."""
        try:
            return [experiment(cell, seed) for seed in numbers] if cell.is_run else []
        except UserError as error:
            if cell in chosen:
                raise UserError(f"{cell.name}: {error} (--only leaves cells out.)") from None
            return []

    out = out or Path("runs") / f"reproduce-{scale}"
    console = Console(highlight=False)
    zygote.use_one_thread()
    # Seed by seed, so that a whole table is there soon, and then gets better.
    of_chosen = [(cell, experiments(cell)) for cell in chosen]
    runs = [Job(f"{cell.name}, seed {s}", made[i]) for i, s in enumerate(numbers) for cell, made in of_chosen]
    console.print(_announcement(name, scale, [run.experiment for run in runs]), soft_wrap=True)
    stem = out / f"{name}-{scale}"

    def table_of(cells: list[Cell]) -> Comparison:
        return compare(name, scale, changes, [_row(batch, cell, experiments(cell)) for cell in cells])

    # The files hold the whole table, whatever part was asked for, and are there from the first run on.
    batch = Batch(
        out, runs, console, quiet=quiet, at_once=jobs, after_each=lambda: table_of(everything).write(stem)
    )
    # Where it cannot be made of what is there, or must not, that is worth knowing before hours are spent.
    _refuse_other_changes(stem.with_name(f"{stem.name}.md"), table_of(everything))
    if not batch.run():
        return 130
    shown = [cell for cell in everything if cell in chosen or not (cell.is_run or words)]
    return batch.conclude(table_of(shown), table_of(everything), stem)


def build_cell(
    cell: Cell, seed: int, *, scale: str, layers: list[dict[str, Any]], generators: Path | None = None
) -> Experiment:
    """A cell's experiment. What the user sets goes on top of everything, the small scale included."""
    import msgspec

    from fedsim import config
    from fedsim.presets.scales import SCALES
    from nodes.tools.batch import prepare

    published = cell.experiment({"run": {"seed": seed}})
    experiment = SCALES[scale].shrink(published) if scale in SCALES else published
    named: list[dict[str, Any]] = []
    if generators is not None and uses_generator(published):
        named = [{"method": {"generator": str(generators.expanduser() / published.method["generator"])}}]
    is_chosen = any("checkpoint_every" in layer.get("cluster", {}) for layer in layers)
    return prepare(config.build([msgspec.to_builtins(experiment), *named, *layers]), is_chosen=is_chosen)


def uses_generator(published: Experiment) -> bool:
    """Whether it wants a generator that does not come with fedsim."""
    return str(published.method.get("generator", "tiny")) != "tiny"


def compare(name: str, scale: str, changes: list[str], rows: list[Row]) -> Comparison:
    from fedsim import presets
    from fedsim.presets.scales import SCALES
    from fedsim.presets.tables import load_paper
    from fedsim.results.report.comparison import Comparison

    table = presets.load(name)
    paper = load_paper(table.paper)
    label = f"{scale.upper()} SCALE, not the paper's" if scale in SCALES else "the paper's scale"
    notes = [f"{paper.cite}; {table.source}."]
    if scale in SCALES:
        rule = SCALES[scale].rule
        notes.append(f"{scale.capitalize()} scale, so numbers cannot be compared with the paper's: {rule}.")
    if changes:
        notes.append(f"{_CHANGED}{', '.join(changes)}.")
    notes.append(
        "Ours: mean and population deviation over seeds of the best round. All seeds share one partition, as the "
        "papers' trials do."
    )
    notes += [note for note in (paper.note, table.note) if note]
    title = f"{name}: {table.title} ({label})"
    return Comparison(title, f"{scale} scale", notes, rows, is_comparable=scale == "paper")


def _refuse_other_changes(path: Path, table: Comparison) -> None:
    """A table of runs with other options is somebody's result, and not to be written over."""
    from fedsim.errors import UserError

    if not path.exists():
        return
    found, wanted = (
        next((line.removeprefix(_CHANGED).rstrip(".") for line in lines if line.startswith(_CHANGED)), "nothing")
        for lines in (path.read_text(encoding="utf-8").splitlines(), table.notes)
    )
    if sorted(found.split(", ")) != sorted(wanted.split(", ")):
        raise UserError(
            f"{path} is the table of other runs (changed for these: {found}; for those asked for: {wanted}); give "
            "another folder with --out."
        )


def _row(batch: Batch, cell: Cell, experiments: list[Experiment]) -> Row:
    from fedsim.results.report.comparison import Row

    measured, note = batch.measured(experiments, cell.metric)
    remarks = [f"paper: – ({cell.dash})" if cell.dash else "", note]
    return Row(cell.labels, cell.metric, measured, cell.printed, "; ".join(filter(None, remarks)))


def _announcement(name: str, scale: str, experiments: list[Experiment]) -> str:
    from fedsim.presets import cost
    from fedsim.presets.scales import SCALES
    from fedsim.results.wording import counted

    seconds = cost.seconds(experiments, cost.machine_speed())
    known = f"about {cost.duration(seconds)} of training on this machine"
    time = known if seconds is not None else "and the first rounds will tell how long it takes"
    text = f"{name} at {scale} scale: {counted(len(experiments), 'run')}, {time}"
    return f"{text}. {scale.capitalize()} scale: {SCALES[scale].rule}." if scale in SCALES else f"{text}."
