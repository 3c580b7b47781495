"""`fedsim methods`: which methods there are, what they send, what they need and what they cost."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodes.cli._values import OF_OPTIONS

if TYPE_CHECKING:
    from fedsim.contract import Contract, Fields

_PIPE_COLUMNS = 180
_COLUMNS_FOR_ALL = 140
_DIRECTIONS = {"up": "up", "down": "down", "setup_up": "once up", "setup_down": "once down"}

_EXAMPLES = """
\b
Examples:
  fedsim methods                 all methods in a table
  fedsim methods fedtgp          one of them: its equations, its options, its contract
  fedsim methods ./my_method.py  likewise one of your own
"""


@click.command(epilog=_EXAMPLES)
@click.argument("name", required=False, shell_complete=OF_OPTIONS["method"])
def command(name: str | None) -> None:
    """The methods: paper, what goes up and down, needs, evaluation, cost.

    Cost is in elements of a round in which all M clients take part: C classes, K features, ΣCᵢ classes held summed
    over clients, U classes that any client holds, ch·h·w of an image, and the sizes of what is named.
    """
    from fedsim import methods

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_COLUMNS)
    if name is None:
        console.print(_overview(methods.names(), wide=console.width >= _COLUMNS_FOR_ALL))
        if installed := methods.installed():
            console.print(f"Of installed packages: {', '.join(sorted(installed))}.")
    else:
        _show(console, methods.load(name))


def _overview(names: list[str], *, wide: bool) -> Table:
    """Where there is no room for all columns, what goes and what it costs share one, and papers are left out."""
    from fedsim import methods

    headings = ("method", "paper", "goes up", "goes down", "cost up", "cost down", "needs", "evaluation")
    table = _table("name", *(headings if wide else ("goes up, cost", "goes down, cost", "needs")))
    for name in names:
        module = methods.load(name)
        about, needs = module.ABOUT, ", ".join(module.ABOUT.needs) or "–"
        kinds, costs = zip(*(_sent(module.contract(module.Config()), way) for way in ("up", "down")), strict=True)
        if wide:
            table.add_row(name, about.title, about.paper, *kinds, *costs, needs, about.evaluation)
        else:
            table.add_row(name, *map("{}\n{}".format, kinds, costs), needs, end_section=True)
    return table


def _sent(contract: Contract, way: str) -> tuple[str, str]:
    """Kinds of knowledge and elements, in every round and once at set-up."""
    from fedsim.costs.formula import formulae, pretty

    kinds, costs = [], []
    for once, direction in (("", way), ("once ", f"setup_{way}")):
        fields: Fields = getattr(contract, direction)
        if knowledge := [field.payload for field in fields.values() if field.payload.is_knowledge]:
            kinds.append(once + ", ".join(dict.fromkeys(knowledge)))
            costs.append(once + pretty(str(formulae(contract)[direction])))
    return "; ".join(kinds) or "–", "; ".join(costs) or "–"


def _show(console: Console, module: ModuleType) -> None:
    from fedsim.config.option_docs import options_of
    from fedsim.costs.formula import formulae, pretty

    about, contract = module.ABOUT, module.contract(module.Config())
    console.print(Text(f"{about.title} ({about.paper})", style="bold"))
    console.print(Text((module.__doc__ or "").strip()))
    console.print(Text(f"\nNeeds: {', '.join(about.needs) or 'nothing'}. Evaluation: {about.evaluation}."))

    console.print(Text("\nWhat may travel", style="bold"))
    fields = _table("way", "field", "kind", "shape", "type")
    for direction, label in _DIRECTIONS.items():
        for name, field in getattr(contract, direction).items():
            fields.add_row(label, name, field.payload, field.shape, field.dtype)
    console.print(fields if fields.row_count else "nothing")

    console.print(Text("\nElements of a round", style="bold"))
    for direction, formula in formulae(contract).items():
        if formula.products or direction in ("up", "down"):
            console.print(Text(f"{_DIRECTIONS[direction]}: {pretty(str(formula))}"))
    if contract.note:
        console.print(Text(f"{contract.note}."))

    console.print(Text("\nOptions, set with --set method.NAME=VALUE", style="bold"))
    options = _table("name", "default", "meaning")
    for option in options_of(module.Config):
        default = "required" if repr(option.default) == "NODEFAULT" else str(option.default)
        options.add_row(option.name, Text(default), Text(option.doc))
    console.print(options if options.row_count else "none")


def _table(*headings: str) -> Table:
    table = Table(*headings, box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    return table
