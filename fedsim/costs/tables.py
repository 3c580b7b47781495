"""Cost tables as CSV, Markdown and LaTeX, and the cells that every kind of table shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pandas import DataFrame

from fedsim.costs.formula import ALL_HELD, pretty
from fedsim.costs.measured import AMOUNTS, Flow, MethodCost, SettingCosts
from fedsim.costs.printed import printed_formulae

NUMBERS_FROM = 3
"""The first column of numbers."""

FLOW_COLUMNS = ("way", "encoding", "formula", *AMOUNTS, "overhead_percent", "formula_agrees", "kernel_agrees")
CSV_COLUMNS = (
    *("dataset", "group", "clients", "rounds", "curve", "method", *FLOW_COLUMNS),
    *("paper_millions", "paper_source", "note"),
)

DASH = "–"


def cells(method: MethodCost, flow: Flow, *, coded: bool = False) -> dict[str, str]:
    """One line of a table for people, by heading; `coded` where any line of it is about encodings."""
    kernel = DASH if flow.kernel_bytes is None else f"{flow.kernel_bytes:,} {mark(flow.kernel_agrees)}"
    return {
        "method": method.title if flow.way == "up" else "",
        "way": flow.way,
        "formula": pretty(flow.formula),
        "by formula": f"{flow.formula_elements:,}",
        "elements": f"{flow.elements:,} {mark(flow.formula_agrees)}",
        **(encoded_cells(flow) if coded else {}),
        "payload B": f"{flow.payload_bytes:,}",
        "message B": f"{flow.message_bytes:,}",
        "wire B": f"{flow.wire_bytes:,}",
        "kernel B": kernel,
        "overhead": overhead(flow),
        "paper, M": printed(flow),
    }


def is_coded(setting: SettingCosts) -> bool:
    return any(flow.encoding for method in setting.methods for flow in method.flows)


def encoded_cells(flow: Flow) -> dict[str, str]:
    """What travels in which encoding, what it is in memory, and how many bytes follow from that."""

    def number(value: int | None) -> str:
        return DASH if value is None else f"{value:,}"

    return {
        "encoding": flow.encoding or DASH,
        "decoded B": number(flow.decoded_bytes),
        "payload by formula": number(flow.formula_bytes),
    }


def mark(agrees: bool | None) -> str:
    return {True: "✓", False: "✗", None: DASH}[agrees]


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
    shared = "  ".join(f"{pretty(name)} = {value:,}" for name, value in setting.letters.items())
    own = "  ".join(f"{pretty(name)} = {value:,} ({', '.join(titles)})" for (name, value), titles in users.items())
    notes = [f"{method.title}: {method.note}." for method in setting.methods if method.note]
    return [line for line in (shared, own, *notes) if line]


def sources(setting: SettingCosts) -> list[str]:
    """The papers that the table quotes."""
    return sorted({flow.printed.source for method in setting.methods for flow in method.flows if flow.printed})


def verdict(setting: SettingCosts) -> str:
    """One sentence: does everything agree?"""
    flows = [flow for method in setting.methods for flow in method.flows if flow.way != "both"]
    right = sum(flow.formula_agrees for flow in flows)
    audit = {
        key: sum(method.audit[key] for method in setting.methods) for key in ("agree", "checked", "connections")
    }
    kernel = f"the kernel agrees to the byte on {audit['agree']} of {audit['connections']} connections"
    if not audit["checked"]:
        kernel = "this platform has no TCP byte counters to compare with"
    if compared := [flow.kernel_agrees for flow in flows if flow.kernel_agrees is not None]:
        kernel += f" and on {sum(compared)} of {len(compared)} counts of rounds"
    return f"{right} of {len(flows)} formulae equal the measured elements; {kernel}"


# ------------------------------------------------------------------------------------------------------ files


def to_csv(settings: Iterable[SettingCosts]) -> str:
    """One line a method and way, for all settings: what pandas reads."""
    rows = []
    for setting in settings:
        where = (setting.dataset, setting.group, setting.num_clients, setting.num_rounds, setting.curve)
        for method in setting.methods:
            for flow in method.flows:
                values = (getattr(flow, column) for column in FLOW_COLUMNS)
                rounded = (round(value, 4) if isinstance(value, float) else value for value in values)
                paper = (flow.printed.millions, flow.printed.source) if flow.printed else ("", "")
                rows.append([*where, method.name, *rounded, *paper, method.note])
    # Objects, so that numbers beside an empty cell stay whole.
    return str(DataFrame(rows, columns=CSV_COLUMNS, dtype=object).to_csv(index=False, lineterminator="\n"))


def markdown_table(rows: Sequence[Mapping[str, str]], numbers_from: int = NUMBERS_FROM) -> str:
    rule = ["---" if place < numbers_from else "---:" for place in range(len(rows[0]))]
    escaped = [[cell.replace("|", r"\|") for cell in row.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [rows[0], rule, *escaped])


def to_markdown(setting: SettingCosts) -> str:
    coded = is_coded(setting)
    rows = [cells(method, flow, coded=coded) for method in setting.methods for flow in method.flows]
    parts = [f"## {setting.title}", *([markdown_table(rows)] if rows else [])]
    parts.append("\n".join(f"- {line}" for line in [*legend(setting), f"{verdict(setting)}."]))
    if setting.refused:
        parts.append("Not possible here:")
        parts.append("\n".join(f"- {title}: {reason}" for title, reason in setting.refused.items()))
    formulae = [
        {"method": method.title, "paper": paper, "formula": formula}
        for method in setting.methods
        for paper, formula in printed_formulae(method.name).items()
    ]
    if formulae:
        parts += ["Formulae as printed, up and down together:", markdown_table(formulae)]
    return "\n\n".join(parts) + "\n"


def to_latex(setting: SettingCosts) -> str:
    """A tabular for the package booktabs."""
    headings = "method & way & formula & elements & payload B & message B & wire B & kernel B & paper (M)"
    lines = [rf"% {setting.title}", r"\begin{tabular}{lllrrrrrr}", r"\toprule", rf"{headings} \\"]
    for method in setting.methods:
        lines.append(r"\midrule")
        for flow in method.flows:
            title = method.title.replace("_", r"\_") if flow.way == "up" else ""
            amounts = (flow.elements, flow.payload_bytes, flow.message_bytes, flow.wire_bytes, flow.kernel_bytes)
            numbers = ["--" if amount is None else f"{amount:,}".replace(",", r"\,") for amount in amounts]
            paper = flow.printed.millions if flow.printed else "--"
            lines.append(" & ".join([title, flow.way, latex_formula(flow.formula), *numbers, paper]) + r" \\")
    refused = [f"% not possible here: {title}: {reason}" for title, reason in setting.refused.items()]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *refused]) + "\n"


def latex_formula(formula: str) -> str:
    """`M*(head+gen)` as mathematics."""

    def token(match: re.Match[str]) -> str:
        word = match.group()
        if word == ALL_HELD:
            return r"\textstyle\sum_i C_i"
        return word if len(word) == 1 else rf"\mathit{{{word}}}"

    words = re.sub(r"[^\W\d]+", token, formula).replace("*", r" \cdot ")
    return f"${words}$" if words else ""
