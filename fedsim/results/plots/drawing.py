"""What all pictures share: one look, colours that colour-blind people tell apart, labels at the lines themselves.

Every picture is saved as PNG and as SVG. `themed` turns such an SVG into one that follows the light or dark
theme of the page that it is put into, which is why the colours below are used and no others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import ColorType

INK, MUTED, FAINT, GRID, PAPER = "#24292f", "#6e7781", "#c9ced6", "#e4e7eb", "#ffffff"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b5ba6", "#8c6d31")
"""Okabe and Ito's colours, without their yellow and black, which do not show on white or on black."""
LINE_STYLES = ("-", "--", ":", "-.")
WIDTH_INCHES, HEIGHT_INCHES = 5.0, 3.2
"""Small, so that letters stay readable where a phone shrinks the picture to its own width."""

_STYLE = {
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.7,
    "lines.markersize": 3.5,
    "svg.hashsalt": "fedsim",
}
_THEMED = {INK: "ink", MUTED: "muted", FAINT: "faint", GRID: "grid", PAPER: "paper"} | {
    colour: f"c{index}" for index, colour in enumerate(PALETTE)
}


def style() -> AbstractContextManager[None]:
    """`with style():` around everything that makes a picture."""
    return matplotlib.rc_context(_STYLE)


def new_figure(width: float = WIDTH_INCHES, height: float = HEIGHT_INCHES) -> Figure:
    """Without pyplot, so that nothing depends on a display."""
    return Figure(figsize=(width, height), layout="constrained")


def series_style(index: int) -> dict[str, str]:
    """Colour and line style of the n-th of several lines; both together are distinct for 32 of them."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "linestyle": LINE_STYLES[index // len(PALETTE) % len(LINE_STYLES)],
    }


def whole_numbers(axes: Axes) -> None:
    """Rounds are counted: no tick between two of them."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def marker_for(num_points: int) -> str | None:
    """Few points are marked, for a line alone does not show where they are."""
    return "o" if num_points <= 30 else None


def label_ends(axes: Axes, ends: Iterable[tuple[float, float, str, ColorType]], size: float = 8) -> None:
    """Write (x, y, text, colour) right of the ends of lines, moved apart where they would overlap."""
    found = sorted(ends, key=lambda end: end[1])
    if not found:
        return
    figure = axes.get_figure(root=True)
    assert figure is not None
    axes.autoscale_view()
    if engine := figure.get_layout_engine():
        engine.execute(figure)  # the labels change widths only, so heights are final from here on
    points_per_pixel = 72 / figure.dpi
    wanted = [axes.transData.transform((x, y))[1] * points_per_pixel for x, y, _, _ in found]
    for (x, y, text, colour), place, own in zip(found, _spread_apart(wanted, 1.15 * size), wanted, strict=True):
        axes.annotate(
            text, (x, y), xytext=(5, place - own), textcoords="offset points", va="center", fontsize=size,
            color=colour, annotation_clip=False,
        )  # fmt: skip


def _spread_apart(wanted: Sequence[float], gap: float) -> list[float]:
    """The nearest places in the same order that are at least `gap` apart; `wanted` ascends.

    Groups of labels that touch are centred on the mean of where their members want to be.
    """
    groups: list[list[float]] = []
    for place in wanted:
        groups.append([place])
        while len(groups) > 1 and _top(groups[-2], gap) + gap > _bottom(groups[-1], gap):
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_bottom(group, gap) + gap * index for group in groups for index in range(len(group))]


def _bottom(group: list[float], gap: float) -> float:
    return float(np.mean(group)) - gap * (len(group) - 1) / 2


def _top(group: list[float], gap: float) -> float:
    return float(np.mean(group)) + gap * (len(group) - 1) / 2


def save(figure: Figure, stem: Path) -> list[Path]:
    """As PNG and as SVG; the same picture gives the same bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    with matplotlib.rc_context({"svg.hashsalt": "fedsim"}):
        figure.savefig(paths[0], dpi=150, bbox_inches="tight")
        figure.savefig(paths[1], bbox_inches="tight", metadata={"Date": None})
    return paths


def themed(svg: str, prefix: str) -> str:
    """An SVG as an element of an HTML page: its colours are the page's variables, its ids its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid=")|((?:xlink:)?href="#)|(url\(#)', rf"\g<0>{prefix}-", svg)
    # Width and height in points would keep the picture from shrinking; its proportion is in the viewBox.
    svg = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return re.sub(r"(?<=[: ])#[0-9a-f]{6}\b", lambda found: _variable(found.group()), svg)


def _variable(colour: str) -> str:
    return f"var(--{_THEMED[colour]})" if colour in _THEMED else colour
