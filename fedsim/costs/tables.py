"""Cost tables as CSV, Markdown and LaTeX, and the cells that every kind of table shows."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from fedsim.costs.formula import ALL_HELD, pretty
from fedsim.costs.measured import Flow, MethodCost, SettingCosts
from fedsim.costs.printed import printed_formulae

HEADINGS = (
    "method", "way", "formula", "by formula", "elements", "payload B", "message B", "wire B", "kernel B",
    "overhead", "paper, M",
)  # fmt: skip
NUMBERS_FROM = 3
"""The first column of numbers."""

CSV_COLUMNS = (
    "dataset", "group", "clients", "rounds", "curve", "method", "way", "formula", "formula_elements", "elements",
    "payload_bytes", "message_bytes", "wire_bytes", "kernel_bytes", "heartbeat_bytes", "largest_client_bytes",
    "overhead_percent", "formula_agrees", "kernel_agrees", "paper_millions", "paper_source", "note",
)  # fmt: skip

DASH = "–"


def cells(method: MethodCost, flow: Flow) -> list[str]:
    """One line of a table for people, under `HEADINGS`."""
    kernel = DASH if flow.kernel_bytes is None else f"{flow.kernel_bytes:,} {mark(flow.kernel_agrees)}"
    return [
        method.title if flow.way == "up" else "",
        flow.way,
        pretty(flow.formula),
        f"{flow.expected:,}",
        f"{flow.elements:,} {mark(flow.formula_agrees)}",
        f"{flow.payload_bytes:,}",
        f"{flow.message_bytes:,}",
        f"{flow.wire_bytes:,}",
        kernel,
        overhead(flow),
        printed(flow),
    ]


def mark(agrees: bool) -> str:
    return "✓" if agrees else "✗"


def overhead(flow: Flow) -> str:
    """In percent of the payload, with two digits that count."""
    percent = flow.overhead_percent
    if percent is None:
        return DASH
    return f"{percent:.2g} %" if percent < 99.5 else f"{percent:,.0f} %"


def printed(flow: Flow) -> str:
    """The paper's number, marked where ours rounds to it and otherwise with how far ours is away."""
    if flow.printed is None:
        return ""
    if flow.printed.agrees(flow.elements):
        return f"{flow.printed.millions} ✓"
    return f"{flow.printed.millions} ({flow.printed.difference_percent(flow.elements):+.2g} %)"


def legend(setting: SettingCosts) -> list[str]:
    """What the letters stand for: those that all methods share, then those of some, then notes."""
    users: dict[tuple[str, int], list[str]] = {}
    for method in setting.methods:
        for name, value in method.letters.items():
            if setting.letters.get(name) != value:
                users.setdefault((name, value), []).append(method.title)
    own = [f"{pretty(name)} = {value:,} ({', '.join(titles)})" for (name, value), titles in users.items()]
    notes = [f"{method.title}: {method.note}." for method in setting.methods if method.note]
    shared = "  ".join(f"{pretty(name)} = {value:,}" for name, value in setting.letters.items())
    return [shared, *(["  ".join(own)] if own else []), *notes]


def sources(settings: Iterable[SettingCosts]) -> list[str]:
    """The papers that the tables quote."""
    flows = (flow for setting in settings for method in setting.methods for flow in method.lines)
    return sorted({flow.printed.source for flow in flows if flow.printed})


def verdict(setting: SettingCosts) -> str:
    """One sentence: does everything agree?"""
    flows = [flow for method in setting.methods for flow in method.flows]
    right = sum(flow.formula_agrees for flow in flows)
    connections = sum(method.num_connections for method in setting.methods)
    agreeing = sum(method.num_agreeing for method in setting.methods)
    reconciled = sum(method.num_reconciled for method in setting.methods)
    kernel = f"the kernel agrees to the byte on {agreeing} of {connections} connections"
    if not reconciled:
        kernel = "this platform has no TCP byte counters to compare with"
    compared = [flow for flow in flows if flow.kernel_bytes is not None]
    if compared:
        kernel += f" and on {sum(flow.kernel_agrees for flow in compared)} of {len(compared)} counts of rounds"
    return f"{right} of {len(flows)} formulae equal the measured elements; {kernel}"


# ------------------------------------------------------------------------------------------------------ files


def to_csv(settings: Iterable[SettingCosts]) -> str:
    """One line a method and way, for all settings: what pandas reads."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for setting in settings:
        for method in setting.methods:
            writer.writerows(_csv_row(setting, method, flow) for flow in method.lines)
    return text.getvalue()


def _csv_row(setting: SettingCosts, method: MethodCost, flow: Flow) -> dict[str, object]:
    return {
        "dataset": setting.dataset,
        "group": setting.group,
        "clients": setting.num_clients,
        "rounds": setting.num_rounds,
        "curve": setting.curve,
        "method": method.name,
        "way": flow.way,
        "formula": flow.formula,
        "formula_elements": flow.expected,
        "elements": flow.elements,
        "payload_bytes": flow.payload_bytes,
        "message_bytes": flow.message_bytes,
        "wire_bytes": flow.wire_bytes,
        "kernel_bytes": flow.kernel_bytes,
        "heartbeat_bytes": flow.heartbeat_bytes,
        "largest_client_bytes": flow.largest_client_bytes,
        "overhead_percent": None if flow.overhead_percent is None else round(flow.overhead_percent, 4),
        "formula_agrees": flow.formula_agrees,
        "kernel_agrees": None if flow.kernel_bytes is None else flow.kernel_agrees,
        "paper_millions": flow.printed.millions if flow.printed else None,
        "paper_source": flow.printed.source if flow.printed else None,
        "note": method.note,
    }


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int) -> str:
    rule = ["---" if place < numbers_from else "---:" for place in range(len(headings))]
    escaped = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [headings, rule, *escaped])


def to_markdown(setting: SettingCosts) -> str:
    rows = [cells(method, flow) for method in setting.methods for flow in method.lines]
    parts = [f"## {setting.title}", markdown_table(HEADINGS, rows, NUMBERS_FROM)]
    parts.append("\n".join(f"- {line}" for line in [*legend(setting), f"{verdict(setting)}."]))
    if setting.refused:
        parts.append("Not possible here:")
        parts.append("\n".join(f"- {title}: {reason}" for title, reason in setting.refused.items()))
    formulae = [
        (method.title, source, formula)
        for method in setting.methods
        for source, formula in printed_formulae(method.name).items()
    ]
    if formulae:
        parts.append("Formulae as printed, up and down together:")
        parts.append(markdown_table(("method", "paper", "formula"), formulae, 3))
    return "\n\n".join(parts) + "\n"


def to_latex(setting: SettingCosts) -> str:
    """A tabular for the package booktabs."""
    headings = [
        "method",
        "way",
        "formula",
        "elements",
        "payload B",
        "message B",
        "wire B",
        "kernel B",
        "paper (M)",
    ]
    lines = [
        rf"% {setting.title}",
        r"\begin{tabular}{lll" + "r" * (len(headings) - 3) + "}",
        r"\toprule",
        " & ".join(headings) + r" \\",
    ]
    for method in setting.methods:
        lines.append(r"\midrule")
        lines += [" & ".join(_latex_cells(method, flow)) + r" \\" for flow in method.lines]
    lines += [r"\bottomrule", r"\end{tabular}"]
    refused = [f"% not possible here: {title}: {reason}" for title, reason in setting.refused.items()]
    return "\n".join([*lines, *refused]) + "\n"


def _latex_cells(method: MethodCost, flow: Flow) -> list[str]:
    sizes = (flow.elements, flow.payload_bytes, flow.message_bytes, flow.wire_bytes)
    numbers = [_latex_number(size) for size in sizes]
    kernel = "--" if flow.kernel_bytes is None else _latex_number(flow.kernel_bytes)
    title = method.title.replace("_", r"\_") if flow.way == "up" else ""
    return [
        title,
        flow.way,
        latex_formula(flow.formula) if flow.formula else "",
        *numbers,
        kernel,
        flow.printed.millions if flow.printed else "--",
    ]


def _latex_number(number: int) -> str:
    return f"{number:,}".replace(",", r"\,")


def latex_formula(formula: str) -> str:
    """`M*(head+gen)` as mathematics."""

    def token(match: re.Match[str]) -> str:
        word = match.group()
        if word == ALL_HELD:
            return r"\textstyle\sum_i C_i"
        return word if len(word) == 1 else rf"\mathit{{{word}}}"

    return "$" + re.sub(r"[^\W\d]+", token, formula).replace("*", r" \cdot ") + "$"
