"""Prototypes: where they lie, and how far apart.

The map is FedTGP's figure 5: circles are the clients' prototypes, triangles the global ones, colours and numbers
classes. A margin is the distance of a prototype to the nearest other one, of the same client or among the global
ones; the margins by class are FedTGP's figure 1 and ProtoNorm's figure 5.

Dimensions: N prototypes of all clients, n global ones, C classes, K features.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import hsv_to_rgb, to_hex

from fedsim.results.load import LoadedRun
from fedsim.results.plots import drawing
from fedsim.results.plots.drawing import INK, MUTED, PALETTE, PAPER

MAX_POINTS = 600
"""t-SNE of more takes too long to wait for; of more, evenly spread clients are shown."""
MAX_NUMBERED = 40
CLASS_COLOURS = (*PALETTE, "#b2182b", MUTED)
MAX_CLASS_LINES = 12

Embedding = Callable[[np.ndarray], np.ndarray]


def draw_map(run: LoadedRun, stem: Path) -> list[Path]:
    """PCA and t-SNE of the last round whose prototypes were recorded."""
    names = ("client_prototypes", "client_ids", "client_classes", "global_prototypes", "global_classes")
    recorded = run.records(*names)
    if not recorded:
        return []
    round = max(recorded)
    vectors_NK, clients_N, classes_N, global_nK, global_n = (recorded[round][name] for name in names)
    shown = _some_clients(clients_N, MAX_POINTS - len(global_nK))
    vectors_NK, classes_N = vectors_NK[shown], classes_N[shown]
    if len(vectors_NK) + len(global_nK) < 3:
        return []
    figure = drawing.new_figure(width=7.6, height=3.9)
    for panel, (name, embed) in enumerate((("PCA", pca), ("t-SNE", t_sne))):
        axes = figure.add_subplot(1, 2, panel + 1)
        points_N2 = embed(np.concatenate([vectors_NK, global_nK]))
        scatter_classes(axes, points_N2[: len(vectors_NK)], classes_N, points_N2[len(vectors_NK) :], global_n)
        axes.set_title(f"{name}, round {round}")
    return drawing.save(figure, stem)


def draw_margins(run: LoadedRun, stem: Path) -> list[Path]:
    """Mean and largest margin of the clients' prototypes and of the global ones, round by round."""
    rows = margins_by_round(run)
    if not rows:
        return []
    figure = drawing.new_figure()
    axes = figure.add_subplot()
    rounds = np.array(sorted(rows))
    ends = []
    lines = {
        "client_max": ("clients, largest", PALETTE[0], "--"),
        "client_mean": ("clients, mean", PALETTE[0], "-"),
        "global_max": ("global, largest", PALETTE[1], "--"),
        "global_mean": ("global, mean", PALETTE[1], "-"),
    }
    for name, (label, colour, line) in lines.items():
        values = np.array([rows[round][name] for round in rounds])
        known = ~np.isnan(values)
        if known.any():
            axes.plot(rounds[known], values[known], line, color=colour, marker=drawing.marker_for(len(rounds)))
            ends.append((rounds[known][-1], values[known][-1], label, colour))
    axes.set_xlabel("round")
    axes.set_ylabel("prototype margin")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    drawing.whole_numbers(axes)
    drawing.label_ends(axes, ends)
    return drawing.save(figure, stem)


def draw_class_margins(run: LoadedRun, stem: Path) -> list[Path]:
    """Left: global margins of every class over the rounds. Right: in the last one, beside the best client's."""
    recorded = run.records("global_margins", "prototype_scale", "client_margins", "client_classes")
    if not recorded:
        return []
    rounds = np.array(sorted(recorded))
    margins_RC = np.stack([recorded[r]["global_margins"] * recorded[r]["prototype_scale"] for r in rounds])
    num_classes = margins_RC.shape[1]
    figure = drawing.new_figure(width=7.6, height=3.6)
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1.25, 1]})
    draw_margin_lines(left, rounds, margins_RC)
    left.set_ylabel("margin of the global prototype")
    last = recorded[int(rounds[-1])]
    best_C = best_client_margins(last["client_margins"], last["client_classes"], num_classes)
    _dumbbells(right, margins_RC[-1], best_C)
    return drawing.save(figure, stem)


def draw_margin_lines(axes: Axes, rounds: np.ndarray, margins_RC: np.ndarray) -> None:
    """One line for each class, named at its end; NaN where it had no margin. Many classes are a faint bundle."""
    few = margins_RC.shape[1] <= MAX_CLASS_LINES
    marker = drawing.marker_for(len(rounds)) if few else None
    ends = []
    for label, values in enumerate(margins_RC.T):
        known = ~np.isnan(values)
        if known.any():
            colour = class_colour(label) if few else PALETTE[1]
            axes.plot(
                rounds[known], values[known], color=colour, linewidth=1.2, marker=marker, alpha=1 if few else 0.25
            )
            ends.append((float(rounds[known][-1]), float(values[known][-1]), str(label), colour))
    axes.set_xlabel("round")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    drawing.whole_numbers(axes)
    if few:
        drawing.label_ends(axes, ends, size=7)


def draw_comparison(runs: Mapping[str, LoadedRun], stem: Path) -> list[Path]:
    """The largest global margin of several runs, and the mean of their clients."""
    rows = {name: margins_by_round(run) for name, run in runs.items()}
    if sum(map(bool, rows.values())) < 2:
        return []
    figure = drawing.new_figure(width=7.6, height=3.6)
    for panel, (column, title) in enumerate(
        (("client_mean", "clients' prototypes, mean margin"), ("global_mean", "global prototypes, mean margin"))
    ):
        axes = figure.add_subplot(1, 2, panel + 1)
        ends = []
        for index, (name, of_run) in enumerate(rows.items()):
            if of_run:
                look = drawing.series_style(index)
                rounds = np.array(sorted(of_run))
                values = np.array([of_run[round][column] for round in rounds])
                axes.plot(rounds, values, **look)
                ends.append((float(rounds[-1]), float(values[-1]), name, look["color"]))
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("round")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
        drawing.whole_numbers(axes)
        drawing.label_ends(axes, ends, size=7.5)
    return drawing.save(figure, stem)


def margins_by_round(run: LoadedRun) -> dict[int, dict[str, float]]:
    """Mean and largest margin of the clients and of the global prototypes as clients use them; NaN: unknown."""
    recorded = run.records("client_margins", "global_margins", "prototype_scale")
    rows = {}
    for round, arrays in recorded.items():
        scaled = arrays["global_margins"] * arrays["prototype_scale"]
        rows[round] = {
            f"{name}_{kind}": _of_known(margins, reduce)
            for name, margins in (("client", arrays["client_margins"]), ("global", scaled))
            for kind, reduce in (("mean", np.mean), ("max", np.max))
        }
    return rows


def best_client_margins(margins_N: np.ndarray, classes_N: np.ndarray, num_classes: int) -> np.ndarray:
    """(C,) for each class the largest margin that any client's prototype of it has; NaN where nobody has one."""
    best_C = np.full(num_classes, -np.inf)
    known = ~np.isnan(margins_N)
    np.maximum.at(best_C, classes_N[known], margins_N[known])
    return np.where(np.isinf(best_C), np.nan, best_C)


def pca(vectors_NK: np.ndarray) -> np.ndarray:
    """On one thread: the tables are small, and threads wait for each other on a busy machine."""
    from sklearn.decomposition import PCA
    from threadpoolctl import threadpool_limits

    vectors_NK = vectors_NK.astype(np.float64)
    if vectors_NK.shape[1] < 2:
        vectors_NK = np.pad(vectors_NK, ((0, 0), (0, 1)))
    with threadpool_limits(1):
        return PCA(2, svd_solver="full").fit_transform(vectors_NK)


def t_sne(vectors_NK: np.ndarray) -> np.ndarray:
    """On one thread: more would also make the result depend on their number."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    start_N2 = pca(vectors_NK)
    start_N2 = 1e-4 * start_N2 / max(start_N2[:, 0].std(), 1e-12)  # as scikit-learn's own init="pca"
    perplexity = min(30.0, (len(vectors_NK) - 1) / 3)
    with threadpool_limits(1):
        model = TSNE(
            2, init=start_N2.astype(np.float32), perplexity=perplexity, learning_rate="auto", random_state=0
        )
        return model.fit_transform(vectors_NK.astype(np.float32))


def class_colour(label: int) -> str:
    """Ten that differ as far as they can, then around the colour circle; numbers tell apart what looks alike."""
    if label < len(CLASS_COLOURS):
        return CLASS_COLOURS[label]
    return to_hex(hsv_to_rgb((label * 0.618034 % 1.0, 0.75, 0.72)))  # the golden section: neighbours lie far apart


def scatter_classes(
    axes: Axes, clients_N2: np.ndarray, classes_N: np.ndarray, global_n2: np.ndarray, global_n: np.ndarray
) -> None:
    """Points of samples or clients as circles, global prototypes as triangles with the number of their class."""
    colours = [class_colour(int(label)) for label in classes_N]
    axes.scatter(*clients_N2.T, s=18, c=colours or None, alpha=0.6, linewidths=0)
    colours = [class_colour(int(label)) for label in global_n]
    axes.scatter(*global_n2.T, s=75, c=colours or None, marker="^", edgecolors=INK, linewidths=0.9, zorder=3)
    if len(global_n) <= MAX_NUMBERED:
        for (x, y), label in zip(global_n2, global_n, strict=True):
            axes.annotate(str(label), (x, y), xytext=(0, 5), textcoords="offset points", ha="center", fontsize=7.5,
                          color=INK, zorder=4)  # fmt: skip
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(True)
    axes.margins(0.08)


def _dumbbells(axes: Axes, global_C: np.ndarray, best_C: np.ndarray) -> None:
    """Both as shares of the largest among clients, as the papers draw them: the scale of features says nothing."""
    unit = np.nanmax(best_C) if (~np.isnan(best_C)).any() else np.nanmax(global_C)
    classes = np.arange(len(global_C))
    few = len(classes) <= MAX_NUMBERED
    axes.vlines(classes, best_C / unit, global_C / unit, color=drawing.GRID, linewidth=2 if few else 1)
    axes.plot(classes, best_C / unit, "o", color=PALETTE[0], markersize=5 if few else 2.5, label="best client")
    axes.plot(classes, global_C / unit, "^", color=PALETTE[1], markersize=6 if few else 3, label="global",
              markeredgecolor=PAPER, markeredgewidth=0.4)  # fmt: skip
    axes.set_ylim(bottom=0)
    axes.set_xlabel("class")
    axes.set_ylabel("margin / largest of a client")
    if few and len(classes) <= 20:
        axes.set_xticks(classes)
    axes.grid(axis="y")
    axes.legend(frameon=False, fontsize=7.5, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0,
                handletextpad=0.3)  # fmt: skip


def _some_clients(clients_N: np.ndarray, most: int) -> np.ndarray:
    """Which rows to show: those of all clients, or of as many evenly spread ones as fit."""
    everyone = np.unique(clients_N)
    num = len(everyone)
    while num > 1:
        picked = everyone[np.linspace(0, len(everyone) - 1, num).round().astype(int)]
        rows = np.isin(clients_N, picked)
        if rows.sum() <= most:
            return rows
        num = min(num - 1, int(num * most / rows.sum()))
    return np.isin(clients_N, everyone[:1])


def _of_known(values: np.ndarray, reduce: Callable[[np.ndarray], float]) -> float:
    known = values[~np.isnan(values)]
    return float(reduce(known)) if len(known) else float("nan")
