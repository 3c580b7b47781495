"""What went over the wire, by what it was, in both directions, and what the kernel says to it."""

import numpy as np
from matplotlib.figure import Figure
from pandas import DataFrame

from fedsim.results.load import LoadedRun
from fedsim.results.plots import drawing
from fedsim.results.plots.drawing import MUTED, PALETTE, plot
from fedsim.results.wording import audit_line, size

OVERHEAD = ("index", "header", "experiment", "handshake", "unknown")
"""Payloads that are no knowledge: drawn last, after all that a method means to send."""


@plot(
    "traffic", "What went over the wire",
    "By what it was, in the whole run. Headers, class numbers and handshakes are no knowledge, but travel.",
)  # fmt: skip
def draw_traffic(run: LoadedRun) -> Figure | None:
    sums = by_payload(run, "wire_bytes")
    if not len(sums):
        return None
    figure, axes = drawing.new_axes(height=0.9 + 0.42 * len(sums))
    for index, (way, amounts) in enumerate(sums.items()):
        bars = axes.barh(np.arange(len(sums)) + (0.4 * index - 0.2), amounts, height=0.36, color=PALETTE[index])
        shares = 100 * amounts / max(amounts.sum(), 1)
        texts = [f"{way} {size(a)} ({share:.1f} %)" if a else "" for a, share in zip(amounts, shares, strict=True)]
        axes.bar_label(bars, texts, padding=4, fontsize=7.5, color=PALETTE[index])
    axes.set_yticks(range(len(sums)), sums.index)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.35 * sums.max(axis=None))
    drawing.bytes_axis(axes)
    axes.set_xlabel("bytes on the wire, whole run")
    axes.grid(axis="x")
    if run.summary and "audit" in run.summary:
        axes.set_title(audit_line(run.summary["audit"]), fontsize=7.5, color=MUTED)
    return figure


def by_payload(run: LoadedRun, level: str) -> DataFrame:
    """One level of the ledger by payload, up and down; knowledge first, and what took most of the wire first."""
    order = run.ledger.groupby("payload")["wire_bytes"].sum().sort_values(ascending=False, kind="stable").index
    order = sorted(order, key=lambda payload: payload in OVERHEAD)
    sums = run.ledger.pivot_table(level, "payload", "direction", aggfunc="sum", fill_value=0)
    return sums.reindex(index=order, columns=("up", "down"), fill_value=0)
