"""What all pictures share: one look, colours that colour-blind people tell apart, labels at the lines themselves.

A picture is a function with `@plot` or `@comparison` above it, in one of the modules that `gallery` names. Every
picture is saved as PNG and as SVG. `themed` turns such an SVG into one that follows the light or dark theme of the
page that it is put into, which is why the colours below are used and no others.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.typing import ColorType
from pandas import Series
from scipy.optimize import isotonic_regression

from fedsim.errors import UserError
from fedsim.results.wording import size as in_words

INK, MUTED, FAINT, GRID, PAPER = "#24292f", "#6e7781", "#c9ced6", "#e4e7eb", "#ffffff"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b5ba6", "#8c6d31")
"""Okabe and Ito's colours, without their yellow and black, which do not show on white or on black."""
SERIES = [{"color": colour, "linestyle": line} for line in ("-", "--", ":", "-.") for colour in PALETTE]
"""Of the lines in one picture: 32 that differ."""
WIDTH_INCHES, HEIGHT_INCHES = 5.0, 3.2
"""Small, so that letters stay readable where a phone shrinks the picture to its own width."""
COMPARISON_INCHES = 7.2
"""Several runs need more room."""
_POINTS = 72.0
"""In an inch."""
_BESIDE_SHARE = 0.4
"""Of the width that axes have, what labels may take that stand beside the ends of lines."""
_HANDLE_INCHES = 0.6
"""What a label below a picture takes beside its text: a piece of its line, and room."""
_NO_BREAK = "\N{NO-BREAK SPACE}"
_fitted: ContextVar[tuple[float, float | None] | None] = ContextVar("fitted", default=None)

_STYLE = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), MUTED),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 8),
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.7,
    "lines.markersize": 3.5,
}
_THEMED = {INK: "ink", MUTED: "muted", FAINT: "faint", GRID: "grid", PAPER: "paper"} | {
    colour: f"c{index}" for index, colour in enumerate(PALETTE)
}
Draw = Callable[..., Figure | None]


@dataclass(frozen=True)
class Plot:
    """A picture of a run. Called with one, it gives the figure, or None where the run has no data for it."""

    name: str
    title: str
    caption: str
    draw: Draw
    wide: bool = False

    def __call__(self, subject: Any) -> Figure | None:
        return self.draw(subject)


class Comparison(Plot):
    """A picture of several runs, which it is given as a `groups.Runs`."""


def plot(name: str, title: str, caption: str, *, wide: bool = False) -> Callable[[Draw], Plot]:
    """Above a function that draws a run."""
    return lambda draw: Plot(name, title, caption, draw, wide)


def comparison(name: str, title: str, caption: str) -> Callable[[Draw], Comparison]:
    """Above a function that draws several runs together."""
    return lambda draw: Comparison(name, title, caption, draw, wide=True)


def style() -> AbstractContextManager[None]:
    """`with style():` around everything that makes a picture."""
    return matplotlib.rc_context(_STYLE)


@contextmanager
def fitted(width: float, height: float | None = None) -> Iterator[None]:
    """All pictures that are drawn inside have this width, whatever they ask for."""
    token = _fitted.set((width, height))
    try:
        yield
    finally:
        _fitted.reset(token)


def width_of(wanted: float) -> float:
    """What a picture of this width will have."""
    found = _fitted.get()
    return found[0] if found else wanted


def new_figure(width: float = WIDTH_INCHES, height: float = HEIGHT_INCHES, *, scale_height: bool = True) -> Figure:
    """Without pyplot, so that nothing depends on a display."""
    if found := _fitted.get():
        # Letters keep their size, so a smaller picture must not lose all of its height.
        scaled = height * max(0.65, min(1.0, found[0] / width)) if scale_height else height
        width, height = found[0], found[1] or scaled
    return Figure(figsize=(width, height), layout="constrained")


def new_axes(width: float = WIDTH_INCHES, height: float = HEIGHT_INCHES) -> tuple[Figure, Axes]:
    figure = new_figure(width, height)
    return figure, figure.add_subplot()


def series_style(index: int) -> Mapping[str, str]:
    """Colour and line style of the n-th of several lines."""
    return SERIES[index % len(SERIES)]


def whole_numbers(axes: Axes) -> None:
    """Rounds are counted: no tick between two of them."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def bytes_axis(axes: Axes) -> None:
    """2 MB, not 2.00 MB."""

    def short(value: float, _: object) -> str:
        number, unit = in_words(max(0, round(value))).split()
        return f"{float(number):g} {unit}"

    axes.xaxis.set_major_formatter(FuncFormatter(short))


def draw_lines(
    axes: Axes,
    lines: Iterable[tuple[str, Series]],
    looks: Sequence[Mapping[str, Any]] = SERIES,
    *,
    x_label: str = "round",
    y_label: str = "",
    from_zero: bool = False,
    size: float = 0,
    **common: Any,
) -> None:
    """(label, values by their place on the x-axis), each with its label at its end, or all labels below where one
    is too long for that; gaps are bridged."""
    ends, named = [], {}
    for (label, series), look in zip(lines, itertools.cycle(looks), strict=False):
        known = series[np.isfinite(series)]
        if len(known):
            marker = "o" if len(known) <= 30 else None  # a line alone does not show where few points are
            axes.plot(known.index, known, **{"marker": marker, **look, **common})
            if label:
                ends.append((float(known.index[-1]), float(known.iloc[-1]), label, look["color"]))
                named[label] = look
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(axis="y")
    if x_label == "round":
        whole_numbers(axes)
    if from_zero:
        axes.set_ylim(bottom=0)
    if has_room_beside(axes, named, size):
        label_ends(axes, ends, size)
    else:
        label_below(axes, named)


def has_room_beside(axes: Axes, labels: Iterable[str], size: float = 0) -> bool:
    place = axes.get_subplotspec()
    columns = place.get_gridspec().ncols if place else 1
    room = _BESIDE_SHARE * axes.get_figure(root=True).get_size_inches()[0] / columns
    return all(_inches(label, size or _label_size()) <= room for label in labels)


def label_below(axes: Axes, looks: Mapping[str, Mapping[str, Any]]) -> None:
    """The labels of lines under all axes. The picture grows by what they need, unless its height was asked for."""
    figure = axes.get_figure(root=True)
    if figure.legends:  # axes beside each other share one
        return
    size = _points("legend.fontsize")
    width, height = figure.get_size_inches()
    texts = [wrapped(label, width - _HANDLE_INCHES, size) for label in looks]
    columns = min(len(texts), max(1, int(width // (max(_inches(text, size) for text in texts) + _HANDLE_INCHES))))
    handles = [axes.plot([], [], label=text, **look)[0] for text, look in zip(texts, looks.values(), strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
    found = _fitted.get()
    if found is None or found[1] is None:
        lines = math.ceil(len(texts) / columns) * max(text.count("\n") + 1 for text in texts)
        figure.set_size_inches(width, height + 1.6 * size * lines / _POINTS)


def wrapped(text: str, width: float, size: float) -> str:
    """In lines of about so many inches at most, broken after commas where there are any, or else at spaces."""
    letters = int(len(text) * width / max(width, _inches(text, size)))
    if ", " in text:
        text = text.replace(" ", _NO_BREAK).replace(f",{_NO_BREAK}", ", ")
    filled = textwrap.fill(text, max(1, letters), break_long_words=False, break_on_hyphens=False)
    return filled.replace(_NO_BREAK, " ")


def _inches(text: str, size: float) -> float:
    lines = [line for line in text.split("\n") if line.strip()]
    return max((TextPath((0, 0), line, size=size).get_extents().width for line in lines), default=0.0) / _POINTS


def tick_size() -> float:
    """Of the letters at ticks, in points."""
    return _points("ytick.labelsize")


def _label_size() -> float:
    return _points("font.size") - 1


def _points(name: str) -> float:
    """Sizes may be words, such as medium."""
    return float(FontProperties(size=matplotlib.rcParams[name]).get_size_in_points())


def label_ends(axes: Axes, ends: Iterable[tuple[float, float, str, ColorType]], size: float = 0) -> None:
    """Write (x, y, text, colour) right of the ends of lines, moved apart where they would overlap."""
    size = size or _label_size()
    found = sorted(ends, key=lambda end: end[1])
    if not found:
        return
    figure = axes.get_figure(root=True)
    axes.autoscale_view()
    if engine := figure.get_layout_engine():
        engine.execute(figure)  # the labels change widths only, so heights are final from here on
    points_per_pixel = _POINTS / figure.dpi
    wanted = axes.transData.transform([(x, y) for x, y, _, _ in found])[:, 1] * points_per_pixel
    for (x, y, text, colour), place, own in zip(found, _spread_apart(wanted, 1.15 * size), wanted, strict=True):
        axes.annotate(
            text, (x, y), xytext=(5, place - own), textcoords="offset points", va="center", fontsize=size,
            color=colour, annotation_clip=False,
        )  # fmt: skip


def _spread_apart(wanted: np.ndarray, gap: float) -> np.ndarray:
    """The nearest places in the same order that are at least `gap` apart; `wanted` ascends.

    Without the gaps that is the nearest series that does not descend.
    """
    gaps = gap * np.arange(len(wanted))
    return isotonic_regression(wanted - gaps).x + gaps


def spread(items: Sequence[int], most: int) -> list[int]:
    """At most so many of the items, evenly, with the first and the last among them."""
    picked = np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)
    return [items[index] for index in picked]


def place_axes(figure: Figure, corner: tuple[float, float], width: float, height: float) -> Axes:
    """Axes whose inside has exactly this size in inches, so that what is drawn keeps its proportion."""
    full = figure.get_size_inches()
    return figure.add_axes((corner[0] / full[0], corner[1] / full[1], width / full[0], height / full[1]))


def save(figure: Figure, stem: Path) -> list[Path]:
    """As PNG and as SVG; the same picture gives the same bytes."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({"svg.hashsalt": "fedsim"}):
            figure.savefig(paths[0], dpi=150, bbox_inches="tight")
            figure.savefig(paths[1], bbox_inches="tight", metadata={"Date": None})
    except OSError as error:
        raise UserError(f"no picture can be written to {stem.parent}: {error.strerror}.") from None
    return paths


def themed(svg: str, prefix: str) -> str:
    """An SVG as an element of an HTML page: its colours are the page's variables, its ids its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid=")|((?:xlink:)?href="#)|(url\(#)', rf"\g<0>{prefix}-", svg)
    # Width and height in points would keep the picture from shrinking; its proportion is in the viewBox.
    svg = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    return re.sub(r"(?<=[: ])#[0-9a-f]{6}\b", lambda found: _variable(found.group()), svg)


def _variable(colour: str) -> str:
    return f"var(--{_THEMED[colour]})" if colour in _THEMED else colour
