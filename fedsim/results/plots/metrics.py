"""The clients' training loss, and whatever numbers a method's server reports, each in a panel of its own."""

from pathlib import Path

import numpy as np

from fedsim.results.load import METRICS, LoadedRun
from fedsim.results.plots import drawing

DRAWN_ELSEWHERE = ("margin_max", "margin_mean", "server_accuracy")
SUFFIXES = ("_first", "_before", "_last_batch", "_last")
"""Numbers that differ only in one of these are one quantity at several moments: they share a panel."""
COLUMNS = 3
MAX_PANELS = 12


def panels(run: LoadedRun) -> dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Quantity -> line -> rounds and values."""
    found: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    reported = [name for name in run.metrics.columns if name not in METRICS and name not in DRAWN_ELSEWHERE]
    for name in ["train_loss", *reported]:
        rounds, values = run.metrics.known(name)
        if len(rounds):
            quantity = next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), name)
            found.setdefault(quantity, {})[name.removeprefix(quantity).strip("_")] = (rounds, values)
    return found


def draw_metrics(run: LoadedRun, stem: Path) -> list[Path]:
    """Small panels side by side."""
    found = dict(list(panels(run).items())[:MAX_PANELS])
    if not found:
        return []
    columns = min(COLUMNS, len(found))
    rows = -(-len(found) // columns)
    figure = drawing.new_figure(width=2.6 * columns if columns > 1 else 4.0, height=0.3 + 2.0 * rows)
    for index, (quantity, lines) in enumerate(found.items()):
        axes = figure.add_subplot(rows, columns, index + 1)
        ends = []
        for number, (moment, (rounds, values)) in enumerate(lines.items()):
            look = drawing.series_style(number)
            axes.plot(rounds, values, linewidth=1.3, **look)
            ends.append((float(rounds[-1]), float(values[-1]), (moment or "end").replace("_", " "), look["color"]))
        axes.set_title(quantity.replace("_", " "), fontsize=9)
        axes.set_xlabel("round", fontsize=8)
        axes.grid(axis="y")
        drawing.whole_numbers(axes)
        if len(ends) > 1:
            drawing.label_ends(axes, ends, size=7)
    return drawing.save(figure, stem)
