"""Several runs in one picture: a line for each method with a band over its seeds, a panel for each other setting.

What was varied beside methods and their options, such as the data set, has panels of its own: accuracies of
different tasks in one would be compared by whoever looks at it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas import DataFrame, Series

from fedsim.metrics import worst_tenth
from fedsim.results.groups import Group, Runs
from fedsim.results.load import LoadedRun
from fedsim.results.plots import drawing
from fedsim.results.plots.accuracy import BYTES, VIRTUAL_SECONDS, WIDE_RANGE, bytes_until
from fedsim.results.plots.drawing import INK, MUTED, Comparison, comparison
from fedsim.results.retimed import Clock, over_profiles
from fedsim.results.values import accuracies_of_clients
from fedsim.world.links import PROFILES

MAX_PANELS = 9
PANEL_INCHES = 2.3
_LABEL_SHARE = 0.45
"""Of a panel's width, what labels may take that stand left of it."""
SECONDS = "seconds of all rounds before"
_LOCAL = {"color": MUTED, "linestyle": "--"}
_BAND = "The line is the mean over seeds, the band one standard deviation to both sides; grey and dashed: Local."

Looks = Mapping[str, Mapping[str, Any]]
Curve = Callable[[LoadedRun], DataFrame | None]


@comparison("accuracy_by_round", "Accuracy by round", _BAND)
def compare_by_round(runs: Runs) -> Figure | None:
    return _curves(runs, lambda run: _points(run, run.series("accuracy").index), "round")


@comparison(
    "accuracy_by_logits", "Accuracy by logits",
    "Of methods that predict by prototypes, the same networks read out by the largest logit; of others, the "
    f"accuracy. {_BAND}",
)  # fmt: skip
def compare_by_logits(runs: Runs) -> Figure | None:
    """Where there are prototypes to do without."""
    if not any(len(run.series("logit_accuracy")) for run in runs.runs):
        return None

    def curve(run: LoadedRun) -> DataFrame:
        name = "logit_accuracy" if len(run.series("logit_accuracy")) else "accuracy"
        return _points(run, run.series(name).index, name)

    return _curves(runs, curve, "round")


@comparison(
    "accuracy_by_bytes", "Accuracy by bytes",
    f"All that a method had sent up and down when the accuracy was measured, with framing and headers. {_BAND}",
)  # fmt: skip
def compare_by_bytes(runs: Runs) -> Figure | None:
    """Of all runs that have a wire."""
    return _curves(runs, lambda run: _points(run, bytes_until(run)) if len(run.ledger) else None, BYTES)


@comparison(
    "accuracy_by_seconds", "Accuracy by time",
    f"As time went by on the machine: runs that were alone on it and runs that were not do not compare. {_BAND}",
)  # fmt: skip
def compare_by_seconds(runs: Runs) -> Figure | None:
    return _curves(runs, lambda run: _points(run, seconds_until(run)), SECONDS)


@comparison(
    "accuracy_over_links", "Accuracy by time over links",
    "As time would go by over six kinds of links, by the virtual clock: every client on a device of its own, with "
    f"computing as measured. {_BAND}",
)  # fmt: skip
def compare_over_links(runs: Runs) -> Figure | None:
    if not all(len(run.ledger) for run in runs.runs):
        return None
    clocks = {run: over_profiles(run) for run in runs.runs}
    return by_virtual_seconds(clocks, list(PROFILES), "devices")(runs)


@comparison(
    "accuracy_of_clients", "How even it is among clients",
    "Accuracies of all clients in the best round, of all seeds together: the box holds the middle half, the line "
    "in it is the median, whiskers reach the 5th and the 95th of a hundred. Worst tenth: the mean of the tenth of "
    "the clients that has least; σ: the deviation among clients; both are means over seeds.",
)  # fmt: skip
def compare_clients(runs: Runs) -> Figure | None:
    panels, looks = arranged(runs)
    if not any(len(_clients(group)) for lines in panels.values() for group in lines.values()):
        return None
    width = _LABEL_SHARE * drawing.width_of(drawing.COMPARISON_INCHES) / _num_columns(panels)
    labels = {label: drawing.wrapped(label, width, drawing.tick_size()) for label in looks}
    num_lines = max(
        sum(labels[label].count("\n") for label in lines) + 3 * len(lines) for lines in panels.values()
    )
    figure, grid = _grid(panels, height=0.9 + 0.14 * num_lines)
    for axes, (title, lines) in zip(grid, panels.items(), strict=True):
        _boxes(axes, lines, looks, labels)
        axes.set_title(title)
        axes.set_xlabel("accuracy of a client, %")
    return figure


def by_virtual_seconds(clocks: Mapping[LoadedRun, Clock], links: Sequence[str], schedule: str) -> Comparison:
    """As time would have gone by over these links, a panel for each."""

    def draw(runs: Runs) -> Figure | None:
        drawn = {link: _lines(runs, link) for link in links}
        _, looks = arranged(runs)
        return _panels(drawn, looks, VIRTUAL_SECONDS)

    def _lines(runs: Runs, link: str) -> dict[str, DataFrame]:
        def curve(run: LoadedRun) -> DataFrame:
            times = {time.round: time.arrives for time in clocks[run][link, schedule]}
            return _points(run, Series(times, dtype=float))

        panels, _ = arranged(runs)
        lines = {label: group for groups in panels.values() for label, group in groups.items()}
        return {label: points for label, group in lines.items() if len(points := mean_curve(group, curve))}

    return Comparison("accuracy_by_virtual_seconds", "Accuracy by time over links", _BAND, draw, wide=True)


def seconds_until(run: LoadedRun) -> Series:
    """Round -> seconds of all rounds before it."""
    spent = Series({round: said["seconds"] for round, said in sorted(run.rounds.items())}, dtype=float)
    return spent.cumsum().shift(fill_value=0.0)


def mean_curve(group: Group, curve: Curve) -> DataFrame:
    """By round: x, mean and deviation (NaN for a single run) over the runs; only rounds that all have."""
    found = [points for run in group.shown.values() if (points := curve(run)) is not None]
    if not found:
        return DataFrame({"x": [], "mean": [], "deviation": []})
    together = pandas.concat(found, axis=1, join="inner", keys=range(len(found)))
    shares = together.xs("accuracy", axis=1, level=1)
    x = together.xs("x", axis=1, level=1).mean(axis=1)
    return DataFrame({"x": x, "mean": shares.mean(axis=1), "deviation": shares.std(axis=1, ddof=1)}).dropna(
        subset=["x", "mean"]
    )


def arranged(runs: Runs) -> tuple[dict[str, dict[str, Group]], Looks]:
    """Panel -> line -> group, and how each line looks wherever it is."""
    of_lines = [key for key in runs.varied if key.startswith("method.")]
    of_panels = [key for key in runs.varied if key not in of_lines]
    titles = [runs.label(group, of_panels) if of_panels else "" for group in runs.groups]
    if not of_lines or len(set(titles)) > MAX_PANELS:
        of_lines, titles = [], [""] * len(runs.groups)
    labels = [runs.label(group, of_lines) for group in runs.groups] if of_lines else runs.labels
    panels: dict[str, dict[str, Group]] = {}
    for title, label, group in zip(titles, labels, runs.groups, strict=True):
        panels.setdefault(title, {})[label if label not in panels.get(title, {}) else group.first.name] = group
    local = {label for lines in panels.values() for label, group in lines.items() if group.is_local}
    if len(local) == len(set(labels)) > 1:
        local = set()  # where all are Local it is no baseline
    others = [label for label in dict.fromkeys(labels) if label not in local]
    looks = {label: drawing.series_style(index) for index, label in enumerate(others)}
    return panels, looks | dict.fromkeys(local, _LOCAL)


def _points(run: LoadedRun, x: Any, name: str = "accuracy") -> DataFrame:
    shares = 100 * run.series(name)
    places = x if not isinstance(x, Series) else x.reindex(shares.index)
    return DataFrame({"x": np.asarray(places, float), "accuracy": shares}, index=shares.index)


def _curves(runs: Runs, curve: Curve, x_label: str) -> Figure | None:
    panels, looks = arranged(runs)
    drawn = {
        title: {label: points for label, group in lines.items() if len(points := mean_curve(group, curve))}
        for title, lines in panels.items()
    }
    return _panels(drawn, looks, x_label)


def _panels(panels: Mapping[str, Mapping[str, DataFrame]], looks: Looks, x_label: str) -> Figure | None:
    drawn = {title: lines for title, lines in panels.items() if lines}
    if not drawn:
        return None
    figure, grid = _grid(drawn, height=drawing.HEIGHT_INCHES if len(drawn) == 1 else 2.2, share_y=True)
    for axes, (title, lines) in zip(grid, drawn.items(), strict=True):
        axes.set_title(title)
        _axis(axes, [points["x"].iloc[-1] for points in lines.values()], x_label)
        for label, points in lines.items():
            low, high = points["mean"] - points["deviation"], points["mean"] + points["deviation"]
            colour = looks[label]["color"]
            axes.fill_between(points["x"], low, high, color=colour, alpha=0.16, linewidth=0)
        named = [
            (_with_value(label, points["mean"].iloc[-1]) if len(drawn) == 1 else "", points.set_index("x")["mean"])
            for label, points in lines.items()
        ]
        drawing.draw_lines(axes, named, [looks[label] for label in lines], x_label=x_label, y_label="accuracy, %")
    if len(drawn) > 1:
        drawing.label_below(grid[0], {label: looks[label] for lines in drawn.values() for label in lines})
        for axes in grid:
            axes.label_outer(remove_inner_ticks=False)
            if x_label == VIRTUAL_SECONDS:  # every link has times of its own
                axes.tick_params(labelbottom=True)
    return figure


def _with_value(label: str, value: float) -> str:
    """`FedTGP 69.2`, but `tau = 10: 69.2`, or one would take it for a part of the setting."""
    return f"{label}{':' * ('=' in label)} {value:.1f}"


def _axis(axes: Axes, ends: Sequence[float], x_label: str) -> None:
    is_wide = max(ends) > WIDE_RANGE * min(ends) > 0
    if x_label == VIRTUAL_SECONDS or (x_label == BYTES and is_wide):
        axes.set_xscale("log")
    if x_label == BYTES:
        drawing.bytes_axis(axes)


def _grid(panels: Mapping[str, Any], height: float, *, share_y: bool = False) -> tuple[Figure, list[Axes]]:
    """As many panels beside each other as the width has room for."""
    columns = _num_columns(panels)
    rows = -(-len(panels) // columns)
    figure = drawing.new_figure(drawing.COMPARISON_INCHES, height * rows, scale_height=False)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y).flatten()
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    return figure, list(grid[: len(panels)])


def _num_columns(panels: Mapping[str, Any]) -> int:
    return max(1, min(len(panels), int(drawing.width_of(drawing.COMPARISON_INCHES) // PANEL_INCHES)))


def _clients(group: Group) -> list[Series]:
    found = [accuracies_of_clients(run, "best") for run in group.shown.values()]
    return [shares for shares in found if len(shares)]


def _boxes(axes: Axes, lines: Mapping[str, Group], looks: Looks, labels: Mapping[str, str]) -> None:
    known = {label: shares for label, group in lines.items() if (shares := _clients(group))}
    for place, (label, of_seeds) in enumerate(known.items()):
        colour, everyone = looks[label]["color"], pandas.concat(of_seeds).to_numpy()
        line = {"color": colour, "linewidth": 1.2}
        axes.boxplot(
            [everyone], positions=[place], orientation="horizontal", widths=0.5, whis=(5, 95), showfliers=False,
            boxprops=line, whiskerprops=line, capprops=line, medianprops={"color": INK, "linewidth": 1.4},
        )  # fmt: skip
        # Spread by a fixed rule, not by chance: the same runs give the same picture.
        heights = place + 0.3 * (np.arange(len(everyone)) * 0.618 % 1 - 0.5)
        axes.plot(everyone, heights, "o", markersize=2, color=colour, alpha=0.45, markeredgewidth=0)
    texts = [
        f"{labels[label]}\nworst tenth {np.mean([worst_tenth(s) for s in of_seeds]):.1f}, "
        f"σ {np.mean([s.std(ddof=0) for s in of_seeds]):.1f}"
        for label, of_seeds in known.items()
    ]
    axes.set_yticks(range(len(known)), texts)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(known) - 0.5, -0.5)
    axes.set_xlim(-2, 102)
    axes.grid(axis="x")
