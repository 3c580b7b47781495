"""A picture for a paper: PDF, SVG or PNG in the width of a column, with letters that can be read there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

from fedsim.errors import UserError
from fedsim.results.plots import drawing
from fedsim.results.plots.drawing import Plot

WIDTHS = {"column": 3.3, "page": 7.0}
"""Of two-column papers, in inches: IEEE has 3.5 and 7.16, ACM 3.33 and 7, CVPR 3.25 and 6.875."""
KINDS = (".pdf", ".svg", ".png")
_UNITS = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}
_LEAST_INCHES, _MOST_INCHES = 1.5, 20.0
_STYLE: dict[str, object] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "lines.linewidth": 1.3,
    "lines.markersize": 2.5,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.5,
    # Type 3 fonts, matplotlib's own choice, are refused by the checks of IEEE and ACM.
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.hashsalt": "fedsim",
}
_FONTS: dict[str, dict[str, object]] = {
    "sans": {"font.family": "sans-serif"},
    "serif": {
        "font.family": "serif",
        "font.serif": ["Times New Roman", "Times", "STIXGeneral"],
        "mathtext.fontset": "stix",
    },
}


@dataclass(frozen=True)
class Page:
    """What a picture has to fit."""

    width: float = WIDTHS["column"]
    height: float | None = None
    font: str = "sans"


def inches(text: str) -> float:
    """`column`, `page`, or a length with its unit."""
    if text in WIDTHS:
        return WIDTHS[text]
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(in|cm|mm|pt)?\s*", text)
    length = float(found[1]) * _UNITS[found[2] or "in"] if found else 0.0
    if not _LEAST_INCHES <= length <= _MOST_INCHES:
        raise UserError(
            f"{text!r} is no length for a figure; write column, page, or between {_LEAST_INCHES:g} and "
            f"{_MOST_INCHES:g} inches, such as 3.5in, 8.5cm or 90mm."
        )
    return length


def draw(plot: Plot, subject: Any, path: Path, page: Page) -> Path:
    if path.suffix not in KINDS:
        raise UserError(f"{path} is to be a picture of what kind? Give it a name that ends in {', '.join(KINDS)}.")
    with (
        drawing.style(),
        matplotlib.rc_context(_STYLE | _FONTS[page.font]),
        drawing.fitted(page.width, page.height),
    ):
        figure = plot(subject)
        if figure is None:
            raise UserError(f"these runs have no data for {plot.name}; --list names the pictures that there are.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Not cut to what is drawn: the width that was asked for is the width that it has.
            figure.savefig(path, dpi=300, metadata={"Date": None} if path.suffix == ".svg" else _undated(path))
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}; choose another place.") from None
    return path


def _undated(path: Path) -> dict[str, None]:
    return {"CreationDate": None} if path.suffix == ".pdf" else {}
