"""The clients' training loss, and whatever numbers a method reports, each in a panel of its own."""

from matplotlib.figure import Figure
from pandas import Series

from fedsim.metrics import describe
from fedsim.results.load import LoadedRun
from fedsim.results.plots import drawing
from fedsim.results.plots.drawing import plot

SUFFIXES = ("_first", "_before", "_last_batch", "_last")
"""Numbers that differ only in one of these are one quantity at several moments: they share a panel."""
COLUMNS = 3
MAX_PANELS = 24
"""Of a method that reports more, the table of metrics has the others."""


def panels(run: LoadedRun) -> dict[str, dict[str, Series]]:
    """Quantity -> moment -> values by round."""
    found: dict[str, dict[str, Series]] = {}
    for name in run.metrics.columns.drop("round"):
        series = run.series(name)
        if describe(name).plot == "panel" and len(series):
            quantity = next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), name)
            found.setdefault(quantity, {})[name.removeprefix(quantity).strip("_")] = series
    return dict(list(found.items())[:MAX_PANELS])


@plot(
    "metrics", "Losses and other numbers",
    "The clients' mean training loss, what else they report, and what the server reports of its own work.",
    wide=True,
)  # fmt: skip
def draw_metrics(run: LoadedRun) -> Figure | None:
    found = panels(run)
    if not found:
        return None
    columns = min(COLUMNS, len(found))
    rows = -(-len(found) // columns)
    figure = drawing.new_figure(width=2.6 * columns if columns > 1 else 4.0, height=0.3 + 2.0 * rows)
    for index, (quantity, moments) in enumerate(found.items()):
        axes = figure.add_subplot(rows, columns, index + 1)
        axes.set_title(describe(quantity).title, fontsize=9)
        labels = [(moment or "end").replace("_", " ") if len(moments) > 1 else "" for moment in moments]
        lines = zip(labels, moments.values(), strict=True)
        drawing.draw_lines(axes, lines, size=7, linewidth=1.3, marker=None)
        axes.xaxis.label.set_size(8)
    return figure
