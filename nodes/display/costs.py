"""Cost tables on a terminal: numbers in full where there is room, with units where there is not."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsim.costs import tables as cost_tables
from fedsim.costs.formula import pretty
from fedsim.costs.measured import WAYS, Flow, MethodCost, SettingCosts
from fedsim.costs.projection import Link, points
from fedsim.costs.tables import DASH, NUMBERS_FROM, mark
from fedsim.results.wording import difference_line, size

_COLUMNS_FOR_FULL_NUMBERS = 132
_COLUMNS_FOR_ALL_LEVELS = 100


def show_setting(console: Console, setting: SettingCosts, link: Link | None = None) -> None:
    """The table of one setting, what its letters mean, who is not in it and why, and whether all agrees."""
    lines = [(method, flow) for method in setting.methods for flow in method.flows]
    if console.width >= _COLUMNS_FOR_FULL_NUMBERS:
        rows = [cost_tables.cells(*line, coded=cost_tables.is_coded(setting)) for line in lines]
    else:
        rows = [_compact_cells(*line, all_levels=console.width >= _COLUMNS_FOR_ALL_LEVELS) for line in lines]
    headings = [heading for heading in (rows[0] if rows else ()) if any(row[heading] for row in rows)]
    table = _table(headings, NUMBERS_FROM)
    for row, (method, flow) in zip(rows, lines, strict=True):
        cells = (row[heading] for heading in headings)
        table.add_row(*cells, style=None if flow.agrees else "red", end_section=flow is method.flows[-1])
    _show(console, setting.title, table)
    for line in cost_tables.legend(setting):
        _say(console, line)
    for title, reason in setting.refused.items():
        _say(console, f"{DASH} {title}: {reason}", "dim")
    if papers := cost_tables.sources(setting):
        _say(console, f"paper: {' and '.join(papers)}, in millions of elements; in brackets how far ours is away")
    _say(console, cost_tables.verdict(setting), "green" if setting.agrees else "red")
    for method in setting.methods:
        for difference in method.audit["differences"]:
            _say(console, f"{method.title}: {difference_line(difference)}", "red")
    if link is not None:
        _show_link(console, setting, link)


def show_series(console: Console, series: Sequence[SettingCosts], num_clients: int) -> None:
    """Elements and wire bytes of a round against the number of clients, and on by the formula."""
    largest = series[-1]
    headings = ["method", *(f"M = {setting.num_clients:,}" for setting in series), f"M = {num_clients:,} *"]
    table = _table(headings, numbers_from=1)
    pairs = {
        (point.method, point.clients, point.measured): f"{count(point.elements)} / {size(point.wire_bytes)}"
        for point in points(series, num_clients)
    }
    columns = [*((setting.num_clients, True) for setting in series), (num_clients, False)]
    for method in largest.methods:
        table.add_row(method.title, *(pairs.get((method.name, *column), DASH) for column in columns))
    title = f"{largest.dataset}, {largest.group}: one round against the number of clients, elements / wire"
    _show(console, title, table)
    mean = largest.letters["ΣC"] / largest.num_clients
    _say(
        console,
        f"* by the formulae that were verified on the left, each client with {mean:.1f} classes as with "
        f"M = {largest.num_clients:,}",
    )


def _show_link(console: Console, setting: SettingCosts, link: Link) -> None:
    table = _table(["method", *WAYS, "both"], numbers_from=1)
    for method in setting.methods:
        seconds = [link.seconds(method.flow(way), setting.num_rounds) for way in WAYS]
        table.add_row(method.title, *(f"{value:.3f}" for value in (*seconds, sum(seconds))))
    title = f"seconds of a round on a line of {link.up_mbit:g} Mbit/s up and {link.down_mbit:g} down"
    _show(console, f"{title}, for the client with the most bytes", table)


def _compact_cells(method: MethodCost, flow: Flow, *, all_levels: bool) -> dict[str, str]:
    """By heading; what the kernel says is the mark at the wire's bytes."""
    kernel = f" {size(flow.kernel_bytes)}" if flow.kernel_bytes is not None and not flow.kernel_agrees else ""
    levels = {"payload": size(flow.payload_bytes), "message": size(flow.message_bytes)}
    return {
        "method": method.title if flow.way == "up" else "",
        "way": flow.way,
        "formula": pretty(flow.formula),
        "elements": f"{count(flow.elements)} {mark(flow.formula_agrees)}",
        "encoding": flow.encoding,
        "decoded": size(flow.decoded_bytes or 0) if flow.encoding else "",
        **(levels if all_levels else {}),
        "wire": f"{size(flow.wire_bytes)} {mark(flow.kernel_agrees)}{kernel}",
        "overhead": cost_tables.overhead(flow),
        "paper": cost_tables.printed(flow),
    }


def count(number: int) -> str:
    """Elements for people: thousands, millions, billions, trillions."""
    value = float(number)
    for unit in ("", " k", " M", " G"):
        if value < 1000:
            return f"{number}" if not unit else f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g} T"


def _show(console: Console, title: str, table: Table) -> None:
    console.print()
    _say(console, title, "bold")
    console.print(table)


def _table(headings: Sequence[str], numbers_from: int) -> Table:
    table = Table(*headings, box=None, pad_edge=False)
    for column in table.columns[numbers_from:]:
        column.justify = "right"
    for column in (*table.columns[:1], *table.columns[numbers_from:]):
        column.no_wrap = column.header != "paper"
    return table


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style), soft_wrap=True)
