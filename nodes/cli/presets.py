"""`fedsim presets`: the tables and figures of the papers, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table as Grid

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


def complete_preset(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """For the shell; also of `fedsim reproduce`."""
    from fedsim import presets

    return [name for name in presets.names() if name.startswith(incomplete)]


@click.command(epilog=_EXAMPLES)
@click.argument("name", required=False, shell_complete=complete_preset)
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

    speed = cost.machine_speed()
    grid = Grid("preset", "what it shows", box=None, pad_edge=False)
    for heading in ("runs", "paper scale", "quick scale"):
        grid.add_column(heading, justify="right")
    for name in presets.names():
        table = presets.load(name)
        runs, full, quick = _costs(table.cells(), speed)
        grid.add_row(name, table.title, str(runs) if runs else "–", full, quick)
    console.print(grid)
    console.print(
        "Runs are for one seed; reproduce takes three unless told otherwise. The time is an estimate of the "
        "clients' training alone: samples × measured cost of each model, at "
        f"{speed / 1e9:.0f} billion operations a second, which {cost.num_cores()} cores of this machine reach in "
        "matrix products. Presets without runs name other commands: fedsim presets NAME.",
        soft_wrap=True,
    )


def _costs(cells: list[Cell], speed: float) -> tuple[int, str, str]:
    """Number of different runs, and both estimates. Cells that differ in their metric share a run."""
    from fedsim.presets import cost, quick
    from nodes.tools.batch import identity

    experiments = {}
    for cell in cells:
        if cell.is_run:
            experiment = cell.experiment()
            experiments[identity(experiment)] = experiment
    if not experiments:
        return 0, "", ""
    small = {identity(shrunk): shrunk for shrunk in map(quick.shrink, experiments.values())}
    full, short = (cost.seconds(items.values(), speed) for items in (experiments, small))
    return len(experiments), cost.duration(full), cost.duration(short)


def _show(console: Console, name: str, table: Table) -> None:
    from fedsim.presets import cost, quick
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
        runs, full, short = _costs(cells, cost.machine_speed())
        console.print(f"{len(cells)} cells, {runs} runs for one seed: about {full} here, at quick scale {short}.")
        console.print(f"Quick scale: {quick.RULE}.", soft_wrap=True)
    for line in table.see:
        console.print(f"  {line}", soft_wrap=True)
