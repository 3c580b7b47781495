"""Accuracy: by round, by what it cost on the wire, and of every client. Of several runs in compared.py.

Dimensions: M clients, R rounds.
"""

from matplotlib.figure import Figure
from pandas import DataFrame, Series

from fedsim.metrics import KNOWN, describe
from fedsim.results.load import LoadedRun
from fedsim.results.plots import drawing
from fedsim.results.plots.drawing import INK, PALETTE, plot
from fedsim.results.retimed import over_profiles, seconds_until
from fedsim.results.wording import size

WIDE_RANGE = 20
"""From this ratio on between the costs of several runs, a linear axis would squeeze the cheap ones together."""
MAX_NUMBERED_CLIENTS = 30
BYTES = "bytes on the wire, up and down"
VIRTUAL_SECONDS = "seconds of the virtual clock"


@plot(
    "accuracy_by_round", "Accuracy by round",
    "Measured at the start of a round, with what the rounds before have taught. The band holds nine of ten "
    "clients; the ring marks the best round. Grey: rounds in which clients were lost, so about the others only.",
)  # fmt: skip
def draw_by_round(run: LoadedRun) -> Figure | None:
    if run.best is None:
        return None
    figure, axes = drawing.new_axes()
    shares_MR = 100 * client_accuracies(run)
    low_R, high_R = shares_MR.quantile([0.05, 0.95]).to_numpy()
    axes.fill_between(shares_MR.columns, low_R, high_R, color=PALETTE[0], alpha=0.14, linewidth=0)
    # Known ones first, so that each has the same colour in every report.
    names = [name for name in dict.fromkeys([*KNOWN, *run.metrics]) if describe(name).plot == "accuracy"]
    lines = [(describe(name).label, 100 * run.series(name)) for name in names]
    lines = [(f"{label} {shares.iloc[-1]:.1f} %" if len(shares) else "", shares) for label, shares in lines]
    drawing.draw_lines(axes, lines, y_label="accuracy, %")
    for round in run.partial_rounds:
        axes.axvspan(round - 0.5, round + 0.5, color=INK, alpha=0.08, linewidth=0)
    best_round, best = run.best
    axes.plot(
        [best_round], [100 * best], "o", markersize=7, markerfacecolor="none", color=INK, markeredgewidth=1.2
    )
    return figure


@plot(
    "accuracy_by_bytes", "Accuracy by bytes",
    "All that the method had sent up and down when the accuracy was measured, with framing and headers.",
)  # fmt: skip
def draw_by_bytes(run: LoadedRun) -> Figure | None:
    if run.best is None or not len(run.ledger):
        return None
    shares = accuracy_by_bytes(run)
    figure, axes = drawing.new_axes()
    drawing.bytes_axis(axes)
    label = f"{shares.iloc[-1]:.1f} %\n{size(int(shares.index[-1]))}"
    drawing.draw_lines(axes, [(label, shares)], x_label=BYTES, y_label="accuracy, %")
    return figure


@plot(
    "accuracy_over_links", "Accuracy by time over links",
    "As time would go by over six kinds of links, by the virtual clock: every client on a device of its own, with "
    "computing as measured.",
)  # fmt: skip
def draw_over_links(run: LoadedRun) -> Figure | None:
    if run.best is None or not len(run.ledger):
        return None
    shares = 100 * run.series("accuracy")
    lines = {link: seconds_until(times) for (link, _), times in over_profiles(run).items()}
    figure, axes = drawing.new_axes()
    ends = [until[shares.index[-1]] for until in lines.values()]
    if max(ends) > WIDE_RANGE * min(ends) > 0:
        axes.set_xscale("log")
    drawn = [(link, shares.set_axis([until[round] for round in shares.index])) for link, until in lines.items()]
    drawing.draw_lines(axes, drawn, x_label=VIRTUAL_SECONDS, y_label="accuracy, %")
    return figure


@plot(
    "accuracy_of_clients", "Accuracy of every client",
    "On each client's own test samples, in percent; the number at the end of a row is the last one.",
)  # fmt: skip
def draw_clients(run: LoadedRun) -> Figure | None:
    shares_MR = client_accuracies(run)
    num_clients, num_rounds = shares_MR.shape
    if not num_clients:
        return None
    numbered = num_clients <= MAX_NUMBERED_CLIENTS
    figure, axes = drawing.new_axes(height=max(1.8, 0.9 + 0.2 * num_clients) if numbered else 3.6)
    image = axes.imshow(100 * shares_MR, aspect="auto", cmap="cividis", vmin=0, vmax=100, interpolation="nearest")
    axes.spines[:].set_visible(False)
    axes.set_xlabel("round")
    axes.set_ylabel("client")
    columns = list(range(0, num_rounds, -(-num_rounds // 10)))
    axes.set_xticks(columns, shares_MR.columns[columns])
    rows = list(range(0, num_clients, 1 if numbered else -(-num_clients // 20)))
    axes.set_yticks(rows, shares_MR.index[rows])
    figure.colorbar(image, ax=axes, label="accuracy, %", fraction=0.05, pad=0.12 if numbered else 0.03)
    if numbered:
        for row, last in enumerate(shares_MR.ffill(axis=1).iloc[:, -1]):
            axes.text(num_rounds - 0.35, row, f"{100 * last:.0f}", va="center", fontsize=7.5, color=INK)
    return figure


def accuracy_by_bytes(run: LoadedRun) -> Series:
    """Accuracies in per cent, by what each had cost."""
    shares = 100 * run.series("accuracy")
    return shares.set_axis(bytes_until(run)[shares.index])


def bytes_until(run: LoadedRun) -> Series:
    """Round -> wire bytes, up and down, that its accuracy had cost when it was measured.

    A round begins with what comes down and an evaluation; training and what goes up come after it. What is sent
    only to evaluate clients that do not take part, handshakes and the experiment itself are not the method's cost.
    """
    own = run.ledger[run.ledger["purpose"].isin(("method", "setup"))]
    sent = own.pivot_table("wire_bytes", "round", "direction", aggfunc="sum")
    sent = sent.reindex(index=range(-1, run.metrics["round"].max() + 1), columns=("up", "down")).fillna(0)
    return (sent.sum(axis=1).cumsum() - sent["up"]).astype(int)[run.metrics["round"]]


def client_accuracies(run: LoadedRun) -> DataFrame:
    """(M, R), by client and round; NaN where a client was not tested."""
    return run.client_shares.pivot_table("accuracy", "client", "round", aggfunc="last")
