"""`fedsim methods`: which methods there are, what they send, what they need and what they cost."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from fedsim.contract import Contract, Fields

_PIPE_COLUMNS = 180
_DIRECTIONS = {"up": "up", "down": "down", "setup_up": "once up", "setup_down": "once down"}

_EXAMPLES = """
\b
Examples:
  fedsim methods                 all methods in a table
  fedsim methods fedtgp          one of them: its equations, its options, its contract
"""


@click.command(epilog=_EXAMPLES)
@click.argument("name", required=False)
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
        console.print(_overview([methods.load(found) for found in methods.names()]))
    else:
        _show(console, methods.load(name))


def _overview(modules: list[ModuleType]) -> Table:
    from fedsim.costs.formula import formulae, pretty

    table = Table(box=None, pad_edge=False)
    for heading in (
        "name",
        "method",
        "paper",
        "goes up",
        "goes down",
        "cost up",
        "cost down",
        "needs",
        "evaluation",
    ):
        table.add_column(heading, no_wrap=heading == "name")
    for module in modules:
        config = module.Config()
        contract: Contract = module.contract(config)
        about, cost = module.ABOUT, {way: pretty(str(formula)) for way, formula in formulae(contract).items()}
        table.add_row(
            _name(module),
            about.title,
            about.paper,
            _kinds(contract.up, contract.setup_up),
            _kinds(contract.down, contract.setup_down),
            _cost(cost["up"], cost["setup_up"]),
            _cost(cost["down"], cost["setup_down"]),
            ", ".join(about.needs) or "–",
            about.evaluation,
        )
    return table


def _show(console: Console, module: ModuleType) -> None:
    from fedsim.costs.formula import formulae, pretty
    from fedsim.option_docs import options_of

    about, contract = module.ABOUT, module.contract(module.Config())
    console.print(Text(f"{about.title} ({about.paper})", style="bold"))
    console.print(Text((module.__doc__ or "").strip()))
    console.print(Text(f"\nNeeds: {', '.join(about.needs) or 'nothing'}. Evaluation: {about.evaluation}."))

    console.print(Text("\nWhat may travel", style="bold"))
    console.print(_contract_table(contract))

    console.print(Text("\nElements of a round", style="bold"))
    for direction, formula in formulae(contract).items():
        if formula.products or direction in ("up", "down"):
            console.print(Text(f"{_DIRECTIONS[direction]}: {pretty(str(formula))}"))
    if contract.note:
        console.print(Text(f"{contract.note}."))

    console.print(Text("\nOptions, set with --set method.NAME=VALUE", style="bold"))
    options = Table(box=None, pad_edge=False)
    for heading in ("name", "default", "meaning"):
        options.add_column(heading, no_wrap=heading == "name")
    for option in options_of(module.Config):
        options.add_row(option.name, Text(_value(option.default)), Text(option.doc))
    console.print(options if options.row_count else Text("none"))


def _contract_table(contract: Contract) -> Table | Text:
    table = Table(box=None, pad_edge=False)
    for heading in ("way", "field", "kind", "shape", "type"):
        table.add_column(heading)
    for direction, label in _DIRECTIONS.items():
        fields: Fields = getattr(contract, direction)
        for name, field in fields.items():
            table.add_row(label, name, str(field.payload), field.shape, field.dtype)
    return table if table.row_count else Text("nothing")


def _kinds(fields: Fields, once: Fields) -> str:
    """Kinds of knowledge; the indices beside them are none."""

    def kinds(of: Fields) -> str:
        return ", ".join(dict.fromkeys(str(field.payload) for field in of.values() if field.payload.is_knowledge))

    return _cost(kinds(fields), kinds(once))


def _cost(every_round: str, once: str) -> str:
    parts = [every_round if every_round not in ("", "0") else "", f"once {once}" if once not in ("", "0") else ""]
    return "; ".join(filter(None, parts)) or "–"


def _value(default: Any) -> str:
    return "required" if repr(default) == "NODEFAULT" else str(default)


def _name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]
