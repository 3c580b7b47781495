"""`fedsim presets`: the tables and figures of the papers, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table as Grid

from nodes.cli._values import OF_OPTIONS

if TYPE_CHECKING:
    from fedsim.presets import Cell, Table

_EXAMPLES = """
\b
Examples:
  fedsim presets                            all of them, with an estimate of what they cost here
  fedsim presets fedtgp-table10             its cells and what the paper prints
  fedsim reproduce fedtgp-table10 --scale quick
  fedsim run --preset fedtgp-table10/practical,fedtgp --rounds 50
"""


@click.command(epilog=_EXAMPLES)
@click.argument("name", required=False, shell_complete=OF_OPTIONS["preset"])
def command(name: str | None) -> None:
    """List the presets, or the cells of the one called NAME."""
    from fedsim import presets

    console = Console(highlight=False)
    if name is None:
        _list_all(console)
    else:
        _show(console, name, presets.load(name))


def _list_all(console: Console) -> None:
    from fedsim import presets
    from fedsim.presets import cost
    from fedsim.presets.scales import SCALES

    speed = cost.machine_speed()
    grid = Grid("preset", "what it shows", box=None, pad_edge=False)
    for heading in ("runs", "paper scale", *(f"{name} scale" for name in SCALES)):
        grid.add_column(heading, justify="right")
    for name in presets.names():
        table = presets.load(name)
        runs, times = _costs(table.cells(), speed)
        grid.add_row(name, table.title, str(runs) if runs else "–", *times)
    console.print(grid)
    console.print(
        "Runs are for one seed; reproduce takes three unless told otherwise. The time is an estimate of the "
        "clients' training alone: samples × measured cost of each model, at "
        f"{speed / 1e9:.0f} billion operations a second, which {cost.num_cores()} cores of this machine reach in "
        "matrix products. Presets without runs name other commands: fedsim presets NAME.",
        soft_wrap=True,
    )


def _costs(cells: list[Cell], speed: float) -> tuple[int, list[str]]:
    """Number of different runs, and the estimates at all scales, the paper's first. Cells that differ in their
    metric share a run."""
    from fedsim.presets import cost
    from fedsim.presets.scales import SCALES
    from nodes.tools.batch import identity

    experiments = [cell.experiment() for cell in cells if cell.is_run]
    if not experiments:
        return 0, [""] * (1 + len(SCALES))
    every = [experiments, *([scale.shrink(item) for item in experiments] for scale in SCALES.values())]
    runs = [{identity(item): item for item in items} for items in every]
    return len(runs[0]), [cost.duration(cost.seconds(items.values(), speed)) for items in runs]


def _show(console: Console, name: str, table: Table) -> None:
    from fedsim.presets import cost
    from fedsim.presets.scales import SCALES
    from fedsim.presets.tables import load_paper

    paper = load_paper(table.paper)
    console.print(f"{name}: {table.title}")
    console.print(f"{paper.cite}; {table.source}.", soft_wrap=True)
    for note in filter(None, (paper.note, table.note)):
        console.print(note, soft_wrap=True)
    cells = table.cells()
    if cells:
        grid = Grid(*cells[0].labels, "metric", box=None, pad_edge=False)
        grid.add_column("paper (%)", justify="right")
        for cell in cells:
            printed = str(cell.printed) if cell.printed else f"– ({cell.dash})" if cell.dash else ""
            grid.add_row(*cell.labels.values(), cell.metric.replace("_", " "), printed)
        console.print(grid)
        runs, (full, *smaller) = _costs(cells, cost.machine_speed())
        times = "".join(f", at {name} scale {time}" for name, time in zip(SCALES, smaller, strict=True))
        console.print(f"{len(cells)} cells, {runs} runs for one seed: about {full} here{times}.", soft_wrap=True)
        for scale in SCALES.values():
            console.print(f"{scale.name.capitalize()} scale: {scale.rule}.", soft_wrap=True)
    for line in table.see:
        console.print(f"  {line}", soft_wrap=True)
