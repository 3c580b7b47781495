"""Prototypes: where they lie, and how far apart.

The map is FedTGP's figure 5: circles are the clients' prototypes, triangles the global ones, colours and numbers
classes. A margin is the distance of a prototype to the nearest other one, of the same client or among the global
ones; the margins by class are FedTGP's figure 1 and ProtoNorm's figure 5.

Dimensions: N prototypes of all clients, n global ones, C classes, K features.
"""

from collections.abc import Callable, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import hsv_to_rgb, to_hex
from matplotlib.figure import Figure
from pandas import DataFrame, Series
from threadpoolctl import threadpool_limits

from fedsim.results.groups import Runs
from fedsim.results.load import LoadedRun
from fedsim.results.plots import drawing
from fedsim.results.plots.drawing import INK, MUTED, PALETTE, PAPER, comparison, plot

MAX_POINTS = 600
"""t-SNE of more takes too long to wait for; of more, evenly spread clients are shown."""
MAX_NUMBERED = 40
CLASS_COLOURS = (*PALETTE, "#b2182b", MUTED)
MAX_CLASS_LINES = 12


@plot(
    "prototype_map", "Map of prototypes",
    "Circles are prototypes of clients, triangles the global ones; colours and numbers are classes.", wide=True,
)  # fmt: skip
def draw_map(run: LoadedRun) -> Figure | None:
    names = ("client_prototypes", "client_ids", "client_classes", "global_prototypes", "global_classes")
    recorded = run.records(*names)
    if not recorded:
        return None
    round = max(recorded)
    vectors_NK, clients_N, classes_N, global_nK, global_n = (recorded[round][name] for name in names)
    shown = _some_clients(clients_N, MAX_POINTS - len(global_nK))
    if shown.sum() + len(global_nK) < 3:
        return None
    figure = drawing.new_figure(width=7.6, height=3.9)
    for axes, (name, embed) in zip(figure.subplots(1, 2), (("PCA", pca), ("t-SNE", t_sne)), strict=True):
        draw_embedded(axes, embed, vectors_NK[shown], classes_N[shown], global_nK, global_n)
        axes.set_title(f"{name}, round {round}")
    return figure


@plot(
    "margins", "Prototype margins",
    "The distance of a prototype to the nearest other one: of the same client, or among the global ones.",
)  # fmt: skip
def draw_margins(run: LoadedRun) -> Figure | None:
    margins = margins_by_round(run)
    if not len(margins):
        return None
    figure, axes = drawing.new_axes()
    lines = [
        ("clients, largest", margins["client_max"]), ("clients, mean", margins["client_mean"]),
        ("global, largest", margins["global_max"]), ("global, mean", margins["global_mean"]),
    ]  # fmt: skip
    looks = [{"color": colour, "linestyle": line} for colour in PALETTE[:2] for line in ("--", "-")]
    drawing.draw_lines(axes, lines, looks, y_label="prototype margin", from_zero=True)
    return figure


@plot(
    "norms", "Lengths of features and prototypes",
    "Mean length of the clients' features of test samples, and of the global prototypes as clients use them; the "
    "band goes from the shortest prototype to the longest.",
)  # fmt: skip
def draw_norms(run: LoadedRun) -> Figure | None:
    features, prototypes = run.series("feature_norm"), run.series("prototype_norm")
    if not len(features) or not len(prototypes):
        return None
    figure, axes = drawing.new_axes()
    shortest, longest = run.series("prototype_norm_min"), run.series("prototype_norm_max")
    axes.fill_between(shortest.index, shortest, longest, color=PALETTE[1], alpha=0.14, linewidth=0)
    drawing.draw_lines(
        axes, [("features", features), ("prototypes", prototypes)], y_label="length", from_zero=True
    )
    return figure


@plot(
    "class_margins", "Margins by class",
    "Left: of each global prototype. Right: after the last round, beside the largest that any client has.",
    wide=True,
)  # fmt: skip
def draw_class_margins(run: LoadedRun) -> Figure | None:
    recorded = run.records("global_margins", "prototype_scale", "client_margins", "client_classes")
    if not recorded:
        return None
    margins_RC = DataFrame([_scaled(arrays) for arrays in recorded.values()], index=list(recorded))
    figure = drawing.new_figure(width=7.6, height=3.6)
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1.25, 1]})
    draw_margin_lines(left, margins_RC, "margin of the global prototype")
    last, last_C = recorded[max(recorded)], margins_RC.iloc[-1].to_numpy()
    _dumbbells(right, last_C, best_client_margins(last["client_margins"], last["client_classes"], len(last_C)))
    return figure


def draw_margin_lines(axes: Axes, margins_RC: DataFrame, y_label: str) -> None:
    """One line for each class, named at its end; NaN where it had no margin. Many classes are a faint bundle."""
    few = margins_RC.shape[1] <= MAX_CLASS_LINES
    lines = [(str(label) if few else "", series) for label, series in margins_RC.items()]
    looks = [{"color": class_colour(label)} for label in range(len(lines))]
    faint = [{"color": PALETTE[1], "alpha": 0.25, "marker": None}]
    drawing.draw_lines(
        axes, lines, looks if few else faint, y_label=y_label, from_zero=True, size=7, linewidth=1.2
    )


@comparison(
    "margins", "Prototype margins", "The distance of a prototype to the nearest other one, in one run each."
)
def compare_margins(runs: Runs) -> Figure | None:
    rows = {name: margins_by_round(run) for name, run in runs.firsts.items()}
    if sum(len(margins) > 0 for margins in rows.values()) < 2:
        return None
    figure = drawing.new_figure(width=7.6, height=3.6)
    titles = {"client": "clients' prototypes, mean margin", "global": "global prototypes, mean margin"}
    for axes, whose in zip(figure.subplots(1, 2), titles, strict=True):
        axes.set_title(drawing.wrapped(titles[whose], drawing.width_of(7.6) / 2.4, size=9), fontsize=9)
        lines = [(name, margins.get(f"{whose}_mean", Series(dtype=float))) for name, margins in rows.items()]
        drawing.draw_lines(axes, lines, from_zero=True, size=7.5, marker=None)
    return figure


def margins_by_round(run: LoadedRun) -> DataFrame:
    """Mean and largest margin of the clients and of the global prototypes as clients use them; NaN: unknown."""
    rows = {
        round: {
            f"{whose}_{reduced}": value
            for whose, margins in (("client", arrays["client_margins"]), ("global", _scaled(arrays)))
            for reduced, value in Series(margins).agg(["mean", "max"]).items()
        }
        for round, arrays in run.records("client_margins", "global_margins", "prototype_scale").items()
    }
    return DataFrame.from_dict(rows, orient="index")


def _scaled(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The global margins as clients use them."""
    return arrays["global_margins"] * arrays["prototype_scale"]


def best_client_margins(margins_N: np.ndarray, classes_N: np.ndarray, num_classes: int) -> np.ndarray:
    """(C,) for each class the largest margin that any client's prototype of it has; NaN where nobody has one."""
    return Series(margins_N).groupby(classes_N).max().reindex(range(num_classes)).to_numpy()


def pca(vectors_NK: np.ndarray) -> np.ndarray:
    from sklearn.decomposition import PCA

    vectors_NK = vectors_NK.astype(np.float64)
    if vectors_NK.shape[1] < 2:
        vectors_NK = np.pad(vectors_NK, ((0, 0), (0, 1)))
    return PCA(2, svd_solver="full").fit_transform(vectors_NK)


def t_sne(vectors_NK: np.ndarray) -> np.ndarray:
    from sklearn.manifold import TSNE

    start_N2 = pca(vectors_NK)
    start_N2 = (1e-4 * start_N2 / max(start_N2[:, 0].std(), 1e-12)).astype(np.float32)  # as init="pca" does
    perplexity = min(30.0, (len(vectors_NK) - 1) / 3)
    model = TSNE(2, init=start_N2, perplexity=perplexity, learning_rate="auto", random_state=0)
    return model.fit_transform(vectors_NK.astype(np.float32))


def class_colour(label: int) -> str:
    """Ten that differ as far as they can, then around the colour circle; numbers tell apart what looks alike."""
    if label < len(CLASS_COLOURS):
        return CLASS_COLOURS[label]
    return to_hex(hsv_to_rgb((label * 0.618034 % 1.0, 0.75, 0.72)))  # the golden section: neighbours lie far apart


def draw_embedded(
    axes: Axes,
    embed: Callable[[np.ndarray], np.ndarray],
    vectors_NK: np.ndarray,
    classes_N: np.ndarray,
    global_nK: np.ndarray,
    global_n: np.ndarray,
) -> None:
    """Vectors of samples or clients as circles, global prototypes as triangles with the number of their class."""
    # More threads would wait for each other on a busy machine, and t-SNE would depend on their number.
    with threadpool_limits(1):
        points_N2 = embed(np.concatenate([vectors_NK, global_nK]))
    own_N2, global_n2 = np.split(points_N2, [len(vectors_NK)])
    own, others = ([class_colour(int(label)) for label in labels] or None for labels in (classes_N, global_n))
    axes.scatter(*own_N2.T, s=18, c=own, alpha=0.6, linewidths=0)
    axes.scatter(*global_n2.T, s=75, c=others, marker="^", edgecolors=INK, linewidths=0.9, zorder=3)
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
    everyone = np.unique(clients_N).tolist()
    num, rows = len(everyone), np.ones(len(clients_N), dtype=bool)
    while num > 1 and rows.sum() > most:
        num = min(num - 1, int(num * most / rows.sum()))
        rows = np.isin(clients_N, drawing.spread(everyone, num))
    return rows
