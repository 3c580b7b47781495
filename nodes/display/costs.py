"""Cost tables on a terminal: numbers in full where there is room, with units where there is not."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedsim.costs import tables as cost_tables
from fedsim.costs.formula import pretty
from fedsim.costs.measured import WAYS, Flow, MethodCost, SettingCosts
from fedsim.costs.projection import Link, project
from fedsim.costs.tables import DASH, HEADINGS, NUMBERS_FROM
from fedsim.results.wording import size
from protocol import wire

_COLUMNS_FOR_FULL_NUMBERS = 132
_SECONDS_PER_HOUR = 3600
_COMPACT_HEADINGS = (
    "method",
    "way",
    "formula",
    "elements",
    "payload",
    "message",
    "wire",
    "kernel",
    "over",
    "paper",
)


def show_setting(console: Console, setting: SettingCosts, link: Link | None = None) -> None:
    """The table of one setting, what its letters mean, who is not in it and why, and whether all agrees."""
    in_full = console.width >= _COLUMNS_FOR_FULL_NUMBERS
    table = _table(HEADINGS if in_full else _COMPACT_HEADINGS, NUMBERS_FROM)
    for method in setting.methods:
        for flow in method.lines:
            cells = cost_tables.cells(method, flow) if in_full else _compact_cells(method, flow)
            agrees = flow.formula_agrees and flow.kernel_agrees
            table.add_row(*cells, style=None if agrees else "red", end_section=flow is method.lines[-1])
    _show(console, setting.title, table)
    for line in cost_tables.legend(setting):
        _say(console, line)
    for title, reason in setting.refused.items():
        _say(console, f"{DASH} {title}: {reason}", "dim")
    if setting.heartbeat_seconds:
        _say(console, _heartbeat_line(setting))
    if papers := cost_tables.sources([setting]):
        _say(console, f"paper: {' and '.join(papers)}, in millions of elements; in brackets how far ours is away")
    _say(console, cost_tables.verdict(setting), "green" if setting.agrees else "red")
    for method in setting.methods:
        for difference in method.differences:
            _say(console, f"{method.title}: {difference}", "red")
    if link is not None:
        _show_link(console, setting, link)


def show_series(console: Console, series: Sequence[SettingCosts], num_clients: int) -> None:
    """Elements and wire bytes of a round against the number of clients, and on by the formula."""
    largest = series[-1]
    headings = ["method", *(f"M = {setting.num_clients:,}" for setting in series), f"M = {num_clients:,} *"]
    table = _table(headings, numbers_from=1)
    for method in largest.methods:
        cells = []
        for setting in series:
            both = next((other.both for other in setting.methods if other.name == method.name), None)
            rounds = setting.num_rounds
            cells.append(_pair(both.elements // rounds, both.wire_bytes // rounds) if both else DASH)
        projected = project(method, largest, num_clients)
        table.add_row(method.title, *cells, _pair(projected.elements, projected.wire_bytes))
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


def _compact_cells(method: MethodCost, flow: Flow) -> list[str]:
    mark = cost_tables.mark(flow.kernel_agrees)
    return [
        method.title if flow.way == "up" else "",
        flow.way,
        pretty(flow.formula),
        f"{count(flow.elements)} {cost_tables.mark(flow.formula_agrees)}",
        size(flow.payload_bytes),
        size(flow.message_bytes),
        size(flow.wire_bytes),
        DASH if flow.kernel_bytes is None else f"{size(flow.kernel_bytes)} {mark}",
        cost_tables.overhead(flow),
        cost_tables.printed(flow),
    ]


def _heartbeat_line(setting: SettingCosts) -> str:
    """Heartbeats depend on time, not on rounds, so what counts is an hour."""
    up, down = wire.ping_bytes(curve=setting.curve), wire.pong_bytes(curve=setting.curve)
    an_hour = _SECONDS_PER_HOUR / setting.heartbeat_seconds
    came = sum(method.num_heartbeats for method in setting.methods)
    return (
        f"a heartbeat every {setting.heartbeat_seconds:g} s is {up} B up and {down} B down, for a client in an "
        f"hour {size(round(an_hour * up))} up and {size(round(an_hour * down))} down; {came} came here"
    )


def _pair(elements: int, wire_bytes: int) -> str:
    return f"{count(elements)} / {size(wire_bytes)}"


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
    table = Table(box=None, pad_edge=False)
    for place, heading in enumerate(headings):
        is_number = place >= numbers_from
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=place == 0)
    return table


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style), soft_wrap=True)
