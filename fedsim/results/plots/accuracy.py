"""Accuracy: by round, by what it cost on the wire, and of every client. Of one run or of several together.

Dimensions: M clients, R rounds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from fedsim.results.load import LoadedRun
from fedsim.results.plots import drawing
from fedsim.results.plots.drawing import INK, MUTED, PALETTE
from fedsim.results.wording import FURTHER_ACCURACIES, size

WIDE_RANGE = 20
"""From this ratio on between the costs of several runs, a linear axis would squeeze the cheap ones together."""
MAX_NUMBERED_CLIENTS = 30
LINES = {"pooled_accuracy": "all samples", "client_mean_accuracy": "mean client", **FURTHER_ACCURACIES}


def draw_by_round(run: LoadedRun, stem: Path) -> list[Path]:
    """All accuracies that the run measured, and where nine of ten clients are."""
    if run.best is None:
        return []
    figure = drawing.new_figure()
    axes = figure.add_subplot()
    bands = client_bands(run)
    if len(bands):
        rounds, low, high = bands.T
        axes.fill_between(rounds, 100 * low, 100 * high, color=PALETTE[0], alpha=0.14, linewidth=0)
    ends = []
    for index, (name, label) in enumerate(LINES.items()):
        if name in run.metrics and len(run.metrics.known(name)[0]):
            rounds, shares = run.metrics.known(name)
            ends.append(
                _curve(axes, rounds, shares, f"{label.removeprefix('clients ')} {100 * shares[-1]:.1f} %", index)
            )
    best_round, best = run.best
    axes.plot(
        [best_round], [100 * best], "o", markersize=7, markerfacecolor="none", color=INK, markeredgewidth=1.2
    )
    _label(axes, "round")
    drawing.whole_numbers(axes)
    drawing.label_ends(axes, ends)
    return drawing.save(figure, stem)


def draw_by_bytes(run: LoadedRun, stem: Path) -> list[Path]:
    """What each accuracy had cost by the time it was measured."""
    if run.best is None or not len(run.ledger):
        return []
    figure = drawing.new_figure()
    axes = figure.add_subplot()
    cost, shares = accuracy_by_bytes(run)
    end = _curve(axes, cost, shares, f"{100 * shares[-1]:.1f} %\n{size(int(cost[-1]))}", 0)
    _label(axes, "bytes on the wire, up and down")
    axes.xaxis.set_major_formatter(FuncFormatter(short_size))
    drawing.label_ends(axes, [end])
    return drawing.save(figure, stem)


def draw_clients(run: LoadedRun, stem: Path) -> list[Path]:
    """One row a client, one column a round; the last accuracy beside it."""
    clients, rounds, shares_MR = client_accuracies(run)
    if not len(clients):
        return []
    numbered = len(clients) <= MAX_NUMBERED_CLIENTS
    figure = drawing.new_figure(height=max(1.8, 0.9 + 0.2 * len(clients)) if numbered else 3.6)
    axes = figure.add_subplot()
    image = axes.imshow(100 * shares_MR, aspect="auto", cmap="cividis", vmin=0, vmax=100, interpolation="nearest")
    axes.spines[:].set_visible(False)
    axes.set_xlabel("round")
    axes.set_ylabel("client")
    columns = _ticks(len(rounds), 10)
    axes.set_xticks(columns, [str(rounds[column]) for column in columns])
    rows = range(len(clients)) if numbered else _ticks(len(clients), 20)
    axes.set_yticks(list(rows), [str(clients[row]) for row in rows])
    figure.colorbar(image, ax=axes, label="accuracy, %", fraction=0.05, pad=0.12 if numbered else 0.03)
    if numbered:
        for row, last in enumerate(_last_known(shares_MR)):
            text = "–" if np.isnan(last) else f"{100 * last:.0f}"
            axes.text(len(rounds) - 0.35, row, text, va="center", fontsize=7.5, color=INK)
    return drawing.save(figure, stem)


def draw_comparison_by_round(runs: Mapping[str, LoadedRun], stem: Path) -> list[Path]:
    """All runs in one picture."""
    return _compare(runs, "round", stem)


def draw_comparison_by_bytes(runs: Mapping[str, LoadedRun], stem: Path) -> list[Path]:
    """All runs that have a wire, by what each accuracy had cost."""
    return _compare(
        {name: run for name, run in runs.items() if len(run.ledger)}, "bytes on the wire, up and down", stem
    )


def _compare(runs: Mapping[str, LoadedRun], unit: str, stem: Path) -> list[Path]:
    runs = {name: run for name, run in runs.items() if run.best is not None}
    if not runs:
        return []
    figure = drawing.new_figure(width=7.2, height=4.0)
    axes = figure.add_subplot()
    ends, largest = [], []
    for index, (name, run) in enumerate(runs.items()):
        places, shares = run.metrics.known("accuracy") if unit == "round" else accuracy_by_bytes(run)
        ends.append(_curve(axes, places, shares, f"{name} {100 * shares[-1]:.1f}", index))
        largest.append(float(places[-1]))
    _label(axes, unit)
    if unit == "round":
        drawing.whole_numbers(axes)
    else:
        if max(largest) > WIDE_RANGE * min(largest) > 0:
            axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(short_size))
    drawing.label_ends(axes, ends)
    return drawing.save(figure, stem)


def accuracy_by_bytes(run: LoadedRun) -> tuple[np.ndarray, np.ndarray]:
    """What each accuracy had cost, and the accuracies."""
    rounds, shares = run.metrics.known("accuracy")
    cost = bytes_until(run)
    return np.array([cost[int(round)] for round in rounds]), shares


def bytes_until(run: LoadedRun) -> dict[int, int]:
    """Round -> wire bytes, up and down, that its accuracy had cost when it was measured.

    A round begins with what comes down and an evaluation; training and what goes up come after it. What is sent
    only to evaluate clients that do not take part, handshakes and the experiment itself are not the method's cost.
    """
    ledger = run.ledger
    counted = (ledger["purpose"] == "method") | (ledger["purpose"] == "setup")
    rounds = run.metrics["round"]
    first = -1  # where set-up is booked
    both: dict[str, np.ndarray] = {}
    for way in ("up", "down"):
        chosen = counted & (ledger["direction"] == way)
        weights = ledger["wire_bytes"][chosen]
        both[way] = np.bincount(ledger["round"][chosen] - first, weights, minlength=int(rounds.max()) - first + 1)
    before = np.cumsum(both["up"] + both["down"])
    return {int(round): int(before[round - first - 1] + both["down"][round - first]) for round in rounds}


def client_accuracies(run: LoadedRun) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Clients, rounds, and the (M, R) accuracies; NaN where a client was not tested."""
    tested = run.clients["tested"] > 0
    clients, rows = np.unique(run.clients["client"][tested], return_inverse=True)
    rounds, columns = np.unique(run.clients["round"][tested], return_inverse=True)
    shares_MR = np.full((len(clients), len(rounds)), np.nan)
    shares_MR[rows, columns] = run.clients["correct"][tested] / run.clients["tested"][tested]
    return clients, rounds, shares_MR


def client_bands(run: LoadedRun) -> np.ndarray:
    """(R, 3): round, and the 5th and 95th percentile of the clients' accuracies in it."""
    _, rounds, shares_MR = client_accuracies(run)
    if not len(rounds):
        return np.empty((0, 3))
    low, high = np.nanpercentile(shares_MR, [5, 95], axis=0)
    return np.stack([rounds, low, high], axis=1)


def short_size(value: float, _: object = None) -> str:
    """Bytes on an axis: 2 MB, not 2.00 MB."""
    number, unit = size(max(0, round(value))).split()
    return f"{float(number):g} {unit}"


def _curve(axes: Axes, x: np.ndarray, shares: np.ndarray, label: str, index: int) -> tuple[float, float, str, str]:
    look = drawing.series_style(index)
    axes.plot(x, 100 * shares, marker=drawing.marker_for(len(x)), **look)
    return float(x[-1]), float(100 * shares[-1]), label, look["color"]


def _label(axes: Axes, unit: str) -> None:
    axes.set_xlabel(unit)
    axes.set_ylabel("accuracy, %")
    axes.grid(axis="y")
    axes.tick_params(color=MUTED)


def _last_known(shares_MR: np.ndarray) -> list[float]:
    last = []
    for shares_R in shares_MR:
        known = shares_R[~np.isnan(shares_R)]
        last.append(float(known[-1]) if len(known) else float("nan"))
    return last


def _ticks(number: int, most: int) -> Sequence[int]:
    return range(0, number, -(-number // most))
