"""A table as text: for a terminal, for a spreadsheet, for a web page. LaTeX is in latex.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pandas import DataFrame
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from fedsim.results.settings import text as setting_text
from fedsim.results.tables.grid import Cell, Table

STYLES = {1: "bold", 2: "underline"}


def plain(table: Table, cell: Cell) -> str:
    """`91.20 ± 0.35`, with the number of runs where it differs from the others'."""
    deviation = f" ± {cell.deviation}" if cell.deviation else ""
    of = f" ({counted})" if (counted := table.counted(cell)) else ""
    return f"{cell.mean}{deviation}{of}"


def terminal(table: Table) -> list[RichTable]:
    """The table, and one of differences where there is a baseline."""

    def with_style(cell: Cell) -> Text:
        return Text(plain(table, cell), style=STYLES.get(cell.place, ""))

    tables = [_terminal(table, with_style)]
    if table.baseline:
        tables.append(_terminal(table, lambda cell: Text(cell.gap), f"difference to {table.baseline}"))
    return tables


def _terminal(table: Table, show: Callable[[Cell], Text], title: str = "") -> RichTable:
    headings = ["\n".join(heading) or table.title for heading in table.headings]
    columns = [Column(text) for text in table.row_titles] + [Column(text, justify="right") for text in headings]
    result = RichTable(*columns, box=None, pad_edge=False, title=title or None, title_justify="left")
    for labels, cells in zip(table.rows, table.cells, strict=True):
        result.add_row(*map(Text, labels), *map(show, cells))
    return result


def markdown(table: Table) -> str:
    def marked(cell: Cell) -> str:
        shown = plain(table, cell)
        return {1: f"**{shown}**", 2: f"<u>{shown}</u>"}.get(cell.place, shown)

    lines = _markdown(table, marked)
    if table.baseline:
        lines += ["", f"Difference to {table.baseline}:", "", *_markdown(table, lambda cell: cell.gap)]
    return "\n".join([*lines, "", *(line for note in (*table.notes, *table.warnings) for line in (note, ""))])


def _markdown(table: Table, show: Callable[[Cell], str]) -> list[str]:
    headings = [
        *table.row_titles,
        *(", ".join(filter(None, heading)) or table.title for heading in table.headings),
    ]
    rules = ["---"] * len(table.row_titles) + ["---:"] * len(table.headings)
    rows = [[*labels, *map(show, cells)] for labels, cells in zip(table.rows, table.cells, strict=True)]
    return [markdown_line(cells) for cells in (headings, rules, *rows)]


def markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def csv(table: Table) -> str:
    """One line a cell, numbers without signs or units, with what was measured for each seed."""
    lines = []
    for labels, cells in zip(table.rows, table.cells, strict=True):
        for key, cell in zip(table.keys, cells, strict=True):
            sample, gap = cell.sample, cell.difference
            lines.append(
                {
                    **dict(zip(table.row_titles, labels, strict=True)),
                    **{name: setting_text(name, found) for name, found in key.items()},
                    "unit": cell.value.unit,
                    "mean": sample and sample.mean,
                    "deviation": sample and sample.deviation,
                    "deviation_of": "population" if sample and sample.population else "sample",
                    "n": sample.size if sample else 0,
                    "run_seeds": _joined(seeds.run for seeds in sample.values) if sample else "",
                    "data_seeds": _joined(seeds.data for seeds in sample.values) if sample else "",
                    "values": _joined(sample.values.values()) if sample else "",
                    "difference": gap and gap.mean,
                    "difference_low": gap and gap.low,
                    "difference_high": gap and gap.high,
                    "pairs": gap and gap.num_pairs,
                }
            )
    frame = DataFrame(lines)
    if not table.baseline:
        frame = frame.drop(columns=["difference", "difference_low", "difference_high", "pairs"])
    return frame.to_csv(index=False, lineterminator="\n")


def _joined(values: Iterable[float]) -> str:
    return ";".join(map(repr, values))
