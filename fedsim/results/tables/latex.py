"""A table as LaTeX: booktabs, the best of a column bold, the second underlined, deviations small."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from fedsim.results.tables.grid import Cell, Table

_LETTERS = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "β": r"$\beta$",
    "τ": r"$\tau$",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "–": "--",
    "…": r"\dots{}",
    "=": "$=$",
}
_PACKAGES = "% needs \\usepackage{booktabs}\n"


def escape(text: str) -> str:
    """Plain text, so that LaTeX prints it as it is."""
    return "".join(_LETTERS.get(letter, letter) for letter in text)


def latex(table: Table, caption: str = "", label: str = "") -> str:
    """A tabular to \\input; with a caption a whole table environment."""
    parts = [_tabular(table, lambda cell: _number(table, cell))]
    if table.baseline:
        heading = f"\n\\par\\medskip Difference to {escape(table.baseline)}\\par\\smallskip\n"
        parts += [heading, _tabular(table, _gap)]
    body = "\n".join(parts)
    if caption:
        notes = " ".join(map(escape, table.notes))
        named = f"\\label{{{label}}}\n" if label else ""
        head = f"\\begin{{table}}[t]\n\\centering\n\\caption{{{escape(caption)} {notes}}}\n{named}\\smallskip\n"
        body = f"{head}{body}\n\\end{{table}}"
    remarks = [*table.notes, *(f"WARNING: {sentence}" for sentence in table.warnings)]
    return _PACKAGES + "".join(f"% {remark}\n" for remark in remarks) + body + "\n"


def _tabular(table: Table, show: Callable[[Cell], str]) -> str:
    num_labels, num_columns = len(table.row_titles), len(table.headings)
    lines = [f"\\begin{{tabular}}{{{'l' * num_labels}{'r' * num_columns}}}", "\\toprule"]
    lines += _headings(table)
    lines.append("\\midrule")
    for labels, cells in zip(table.rows, table.cells, strict=True):
        lines.append(_line([*map(escape, labels), *map(show, cells)]))
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"])


def _headings(table: Table) -> list[str]:
    """A line for each level; what neighbours share is written once over them."""
    titles = [escape(text) for text in table.row_titles]
    headings = [list(heading) or [table.title] for heading in table.headings]
    levels = len(headings[0])
    lines = []
    for level in range(levels):
        is_last = level == levels - 1
        cells, rules, column = [], [], len(titles) + 1
        for key, same in itertools.groupby(headings, key=lambda heading: heading[: level + 1]):
            width = len(list(same))
            cells.append(f"\\multicolumn{{{width}}}{{c}}{{{escape(key[-1])}}}")
            if not is_last:
                rules.append(f"\\cmidrule(lr){{{column}-{column + width - 1}}}")
            column += width
        lines.append(_line([*(titles if is_last else [""] * len(titles)), *cells]))
        if rules:
            lines.append("".join(rules))
    return lines


def _number(table: Table, cell: Cell) -> str:
    mean = escape(cell.mean)
    if cell.place:
        mean = f"\\{'textbf' if cell.place == 1 else 'underline'}{{{mean}}}"
    deviation = f"\\,{{\\scriptsize$\\pm$\\,{cell.deviation}}}" if cell.deviation else ""
    of = f"\\,{{\\scriptsize ({escape(counted)})}}" if (counted := table.counted(cell)) else ""
    return f"{mean}{deviation}{of}"


def _gap(cell: Cell) -> str:
    if (found := cell.difference) is None:
        return "--"
    mean, low, high = (cell.value.text(number) for number in (found.mean, found.low, found.high))
    sign = "+" if found.mean >= 0 else ""
    return f"${sign}{mean}$\\,{{\\scriptsize[${low}$, ${high}$]}}"


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + " \\\\"
