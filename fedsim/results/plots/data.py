"""Pictures of a partition: the papers' bubble chart, and a heat map with the numbers.

Letters: M clients, C classes. Figures are made without pyplot, so nothing here depends on a display.
"""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator

from fedsim.results.load import LoadedRun
from fedsim.results.plots.drawing import GRID, PALETTE, place_axes, plot

COLOUR = PALETTE[0]
CELL_INCHES = 0.36
"""Side of one (client, class) cell, as long as the figure stays within its limits."""
MIN_SIDE_INCHES, MAX_WIDTH_INCHES, MAX_HEIGHT_INCHES = 2.4, 16.0, 14.0
MARGIN_INCHES = 0.75
LEGEND_INCHES = 1.2
MAX_NUMBERED_CELLS = 400


@plot(
    "data_distribution", "Who holds what",
    "The area of a circle is the number of samples of a class that a client holds, for training and testing.",
)  # fmt: skip
def draw_run(run: LoadedRun) -> Figure | None:
    return draw_bubbles(partition_counts(run), "") if len(run.partition) else None


def partition_counts(run: LoadedRun) -> np.ndarray:
    """(M, C) samples, training and test together."""
    table = run.partition
    counts_MC = np.zeros((run.experiment.run.clients, table["class"].max() + 1), dtype=np.int64)
    counts_MC[table["client"], table["class"]] = table["train"] + table["test"]
    return counts_MC


def draw_bubbles(counts_MC: np.ndarray, title: str) -> Figure:
    """One circle per client and class; its area is the number of samples."""
    num_clients, num_classes = counts_MC.shape
    width, height = _grid_inches(num_clients, num_classes)
    figure = Figure(figsize=(width + MARGIN_INCHES + LEGEND_INCHES, height + 2 * MARGIN_INCHES))
    axes = place_axes(figure, (MARGIN_INCHES, MARGIN_INCHES), width, height)
    _label(axes, num_clients, num_classes, title)
    axes.set_xlim(-1, num_clients)
    axes.set_ylim(-1, num_classes)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)

    # scatter's size is an area: the square of the diameter in points.
    cell_points = 72 * min(width / (num_clients + 1), height / (num_classes + 1))
    diameter = cell_points * _diameter_in_cells(counts_MC, cell_points)
    points_per_sample = diameter**2 / counts_MC.max()
    # The edge does not count to the area, but a single sample among thousands would not be seen without it.
    style = {"facecolor": COLOUR, "edgecolor": COLOUR, "alpha": 0.75, "linewidths": 0.8}
    clients, classes = np.nonzero(counts_MC)
    areas = counts_MC[clients, classes] * points_per_sample
    axes.scatter(clients, classes, s=areas, clip_on=False, zorder=3, **style)

    for size in _round_sizes(int(counts_MC.max())):
        axes.scatter([], [], s=size * points_per_sample, label=f"{size:,}", **style)
    spacing = 0.5 + max(0.0, diameter / 10 - 1)  # in units of the font size
    axes.legend(
        title="samples", loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False,
        labelspacing=spacing, handletextpad=0.6 + spacing / 4, borderpad=spacing / 2,
    )  # fmt: skip
    return figure


def draw_heat_map(counts_MC: np.ndarray, title: str) -> Figure:
    """Samples per client and class in colour, with the sizes of clients above and of classes at the side."""
    num_clients, num_classes = counts_MC.shape
    width, height = _grid_inches(num_clients, num_classes)
    bars = 0.7
    figure = Figure(figsize=(width + 2 * MARGIN_INCHES + 2 * bars, height + 2 * MARGIN_INCHES + bars))
    axes = place_axes(figure, (MARGIN_INCHES, MARGIN_INCHES), width, height)
    counts_CM = np.ma.masked_equal(counts_MC.T, 0)
    norm = LogNorm(vmin=1, vmax=max(2, int(counts_MC.max())))
    image = axes.imshow(counts_CM, cmap="Blues", norm=norm, aspect="auto", origin="lower")
    _label(axes, num_clients, num_classes, "")
    if counts_MC.size <= MAX_NUMBERED_CELLS:
        _write_numbers(axes, counts_MC, norm)

    above = axes.inset_axes((0, 1 + 0.06 / height, 1, bars / height), sharex=axes)
    above.bar(range(num_clients), counts_MC.sum(axis=1), color=COLOUR, width=0.8 if num_clients <= 50 else 1)
    above.set_title(title, fontsize=11)
    aside = axes.inset_axes((1 + 0.06 / width, 0, bars / width, 1), sharey=axes)
    aside.barh(range(num_classes), counts_MC.sum(axis=0), color=COLOUR, height=0.8 if num_classes <= 50 else 1)
    above.yaxis.set_major_locator(MaxNLocator(2))
    aside.xaxis.set_major_locator(MaxNLocator(1))
    for bar_axes in (above, aside):
        bar_axes.tick_params(labelsize=7)
        bar_axes.spines[["top", "right"]].set_visible(False)
    above.tick_params(labelbottom=False)
    aside.tick_params(labelleft=False)

    scale = axes.inset_axes((1 + (bars + 0.25) / width, 0, 0.16 / width, 1))
    figure.colorbar(image, cax=scale, label="samples", format=LogFormatter())
    scale.tick_params(labelsize=8)
    return figure


def _grid_inches(num_clients: int, num_classes: int) -> tuple[float, float]:
    width = np.clip(CELL_INCHES * (num_clients + 1), MIN_SIDE_INCHES, MAX_WIDTH_INCHES)
    height = np.clip(CELL_INCHES * (num_classes + 1), MIN_SIDE_INCHES, MAX_HEIGHT_INCHES)
    return float(width), float(height)


def _label(axes: Axes, num_clients: int, num_classes: int, title: str) -> None:
    # A page or a screen shrinks a large picture to its own width, and its letters with it.
    scale = max(1.0, max(axes.get_figure(root=True).get_size_inches()) / 9)
    axes.set_xlabel("client", fontsize=10 * scale)
    axes.set_ylabel("class", fontsize=10 * scale)
    axes.set_title(title, fontsize=11 * scale)
    axes.tick_params(labelsize=8 * scale)
    axes.set_xticks(_ticks(num_clients))
    axes.set_yticks(_ticks(num_classes))


def _ticks(number: int) -> range:
    """At most 25 of the numbers from 0 on, in round steps."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, number) if number <= 25 * step)
    return range(0, number, step)


def _write_numbers(axes: Axes, counts_MC: np.ndarray, norm: LogNorm) -> None:
    for client, label in np.argwhere(counts_MC):
        count = int(counts_MC[client, label])
        colour = "white" if norm(count) > 0.6 else "0.2"
        axes.text(client, label, str(count), ha="center", va="center", fontsize=6.5, color=colour)


def _diameter_in_cells(counts_MC: np.ndarray, cell_points: float) -> float:
    """Of the largest circle. Where most are far smaller it may leave its cell, so that those are seen."""
    spread = counts_MC.max() / np.median(counts_MC[counts_MC > 0])
    return float(np.clip(np.sqrt(spread) / 3, 0.95, 1.4 if cell_points > 15 else 2.2))


def _round_sizes(largest: int) -> list[int]:
    """Up to three sizes for the legend, each with one digit that is not zero."""
    sizes = {int(float(f"{largest * share:.0e}")) for share in (0.05, 0.3, 1)}
    return sorted(size for size in sizes if size)
