"""All pictures of a run, in the order of its report. One that a run has no data for is left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from PIL import Image

from fedsim.errors import UnknownName, UserError
from fedsim.results.groups import Runs
from fedsim.results.load import LoadedRun
from fedsim.results.plots import (
    accuracy,
    compared,
    data,
    distillation,
    drawing,
    ktl,
    metrics,
    prototypes,
    timing,
    traffic,
)
from fedsim.results.plots.drawing import Comparison, Plot

MODULES = (accuracy, compared, data, traffic, timing, prototypes, distillation, ktl, metrics)
PLOTS = [found for module in MODULES for found in vars(module).values() if type(found) is Plot]
COMPARISONS = [found for module in MODULES for found in vars(module).values() if type(found) is Comparison]

WIDE_PIXELS = 1300
"""A picture of many clients or classes that is wider than this would be too small in half a page."""


@dataclass(frozen=True)
class Picture:
    """What was drawn, as PNG and as SVG."""

    plot: Plot
    png: Path
    svg: Path

    @property
    def is_wide(self) -> bool:
        with Image.open(self.png) as image:
            return self.plot.wide or image.width > WIDE_PIXELS

    @property
    def themed(self) -> Markup:
        """As an element of a page."""
        return Markup(drawing.themed(self.svg.read_text(), self.plot.name))


def for_runs(runs: Runs) -> tuple[LoadedRun | Runs, Sequence[Plot]]:
    """What can be drawn, and of what: of a single run all that its report has, of several how they compare."""
    return (runs.runs[0], PLOTS) if len(runs.runs) == 1 else (runs, COMPARISONS)


def named(plots: Sequence[Plot], name: str) -> Plot:
    for found in plots:
        if found.name == name:
            return found
    if any(name == other.name for other in PLOTS):
        raise UserError(f"{name} is a picture of one run; name one run, or another picture: --list names them.")
    raise UnknownName("picture", name, [found.name for found in plots])


def draw(plots: Sequence[Plot], subject: LoadedRun | Runs, folder: Path) -> list[Picture]:
    """Of a run, or of several together, into a folder."""
    with drawing.style():
        figures = ((plot, plot(subject)) for plot in plots)
        return [Picture(plot, *drawing.save(figure, folder / plot.name)) for plot, figure in figures if figure]
