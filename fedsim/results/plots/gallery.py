"""All pictures of a run, in the order of its report. One that a run has no data for is left out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from fedsim.results.load import LoadedRun
from fedsim.results.plots import accuracy, data, distillation, drawing, ktl, metrics, prototypes, timing, traffic


@dataclass(frozen=True)
class Plot:
    """What can be drawn of a run."""

    name: str
    title: str
    caption: str
    draw: Callable[[LoadedRun, Path], list[Path]]
    wide: bool = False


@dataclass(frozen=True)
class Comparison:
    """What can be drawn of several runs, given by the names they are to be shown with."""

    name: str
    title: str
    caption: str
    draw: Callable[[Mapping[str, LoadedRun], Path], list[Path]]
    wide: bool = True


@dataclass(frozen=True)
class Picture:
    """What was drawn."""

    name: str
    title: str
    caption: str
    wide: bool
    png: Path
    svg: Path


WIDE_PIXELS = 1300
"""A picture of many clients or classes that is wider than this would be too small in half a page."""

PLOTS = (
    Plot(
        "accuracy_by_round",
        "Accuracy by round",
        "Measured at the start of a round, with what the rounds before have taught. The band holds nine of ten "
        "clients; the ring marks the best round.",
        accuracy.draw_by_round,
    ),
    Plot(
        "accuracy_by_bytes",
        "Accuracy by bytes",
        "All that the method had sent up and down when the accuracy was measured, with framing and headers.",
        accuracy.draw_by_bytes,
    ),
    Plot(
        "accuracy_of_clients",
        "Accuracy of every client",
        "On each client's own test samples, in percent; the number at the end of a row is the last one.",
        accuracy.draw_clients,
    ),
    Plot(
        "data_distribution",
        "Who holds what",
        "The area of a circle is the number of samples of a class that a client holds, for training and testing.",
        data.draw_run,
    ),
    Plot(
        "traffic",
        "What went over the wire",
        "By what it was, in the whole run. Headers, class numbers and handshakes are no knowledge, but travel.",
        traffic.draw_traffic,
    ),
    Plot(
        "time_by_round",
        "Where a round's time went",
        "For the mean client. Waiting is for a free slot of the machine and for the other clients.",
        timing.draw_rounds,
    ),
    Plot(
        "time_by_client",
        "Where each client's time went",
        "The mean over all rounds.",
        timing.draw_clients,
    ),
    Plot(
        "prototype_map",
        "Map of prototypes",
        "Circles are prototypes of clients, triangles the global ones; colours and numbers are classes.",
        prototypes.draw_map,
        wide=True,
    ),
    Plot(
        "margins",
        "Prototype margins",
        "The distance of a prototype to the nearest other one: of the same client, or among the global ones.",
        prototypes.draw_margins,
    ),
    Plot(
        "class_margins",
        "Margins by class",
        "Left: of each global prototype. Right: after the last round, beside the largest that any client has.",
        prototypes.draw_class_margins,
        wide=True,
    ),
    Plot(
        "server_margins",
        "Margins that the server trained with",
        "One for each class: how far the server's prototype of a class is kept from those of the others.",
        distillation.draw_server_margins,
    ),
    Plot(
        "public_map",
        "What the server's model makes of public samples",
        "t-SNE of its features, coloured by pseudo-label; triangles are the global prototypes.",
        distillation.draw_public_map,
        wide=True,
    ),
    Plot(
        "generated_images",
        "Generated images",
        "What the server's generator made for each class.",
        ktl.draw_generated,
        wide=True,
    ),
    Plot(
        "metrics",
        "Losses and other numbers",
        "The clients' mean training loss, and what the server reports of its own work.",
        metrics.draw_metrics,
        wide=True,
    ),
)

COMPARISONS = (
    Comparison(
        "accuracy_by_round",
        "Accuracy by round",
        "The number beside a name is the run's last accuracy.",
        accuracy.draw_comparison_by_round,
    ),
    Comparison(
        "accuracy_by_bytes",
        "Accuracy by bytes",
        "All that a method had sent up and down when the accuracy was measured, with framing and headers.",
        accuracy.draw_comparison_by_bytes,
    ),
    Comparison(
        "margins",
        "Prototype margins",
        "The distance of a prototype to the nearest other one.",
        prototypes.draw_comparison,
    ),
    Comparison(
        "generated_images",
        "Generated images",
        "A client's own images, and what the generators made for the same classes in the last round.",
        ktl.draw_comparison,
    ),
)


def draw_run(run: LoadedRun, folder: Path) -> list[Picture]:
    """Into a folder, as PNG and SVG."""
    with drawing.style():
        return [_picture(plot, paths) for plot in PLOTS if (paths := plot.draw(run, folder / plot.name))]


def draw_comparison(runs: Mapping[str, LoadedRun], folder: Path) -> list[Picture]:
    with drawing.style():
        return [_picture(plot, paths) for plot in COMPARISONS if (paths := plot.draw(runs, folder / plot.name))]


def _picture(plot: Plot | Comparison, paths: list[Path]) -> Picture:
    png, svg = paths
    with Image.open(png) as image:
        wide = plot.wide or image.width > WIDE_PIXELS
    return Picture(plot.name, plot.title, plot.caption, wide, png, svg)
