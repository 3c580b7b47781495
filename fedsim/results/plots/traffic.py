"""What went over the wire, by what it was, in both directions, and what the kernel says to it."""

from pathlib import Path

import numpy as np
from matplotlib.ticker import FuncFormatter

from fedsim.results.load import LoadedRun
from fedsim.results.plots import drawing
from fedsim.results.plots.accuracy import short_size
from fedsim.results.plots.drawing import MUTED
from fedsim.results.wording import audit_line, size

OVERHEAD = ("index", "header", "experiment", "handshake", "heartbeat", "unknown")
"""Payloads that are no knowledge: drawn last, after all that a method means to send."""


def draw_traffic(run: LoadedRun, stem: Path) -> list[Path]:
    """A bar for each payload and direction; the sums and the kernel's word in the title."""
    sums = payload_bytes(run)
    if not sums:
        return []
    figure = drawing.new_figure(height=0.9 + 0.42 * len(sums))
    axes = figure.add_subplot()
    ways = ("up", "down")
    largest = max(max(of_way.values()) for of_way in sums.values())
    for row, of_way in enumerate(sums.values()):
        for index, way in enumerate(ways):
            bottom = row + 0.2 * (2 * index - 1)
            axes.barh(bottom, of_way[way], height=0.36, color=drawing.PALETTE[index])
            if of_way[way]:
                share = 100 * of_way[way] / max(sum(item[way] for item in sums.values()), 1)
                text = f"{way} {size(of_way[way])} ({share:.1f} %)"
                axes.annotate(text, (of_way[way], bottom), xytext=(4, 0), textcoords="offset points",
                              va="center", fontsize=7.5, color=drawing.PALETTE[index])  # fmt: skip
    axes.set_yticks(range(len(sums)), list(sums))
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.35 * largest)
    axes.xaxis.set_major_formatter(FuncFormatter(short_size))
    axes.set_xlabel("bytes on the wire, whole run")
    axes.grid(axis="x")
    if run.summary and "audit" in run.summary:
        axes.set_title(audit_line(run.summary["audit"]), fontsize=7.5, color=MUTED)
    return drawing.save(figure, stem)


def payload_bytes(run: LoadedRun) -> dict[str, dict[str, int]]:
    """Payload -> wire bytes up and down over the whole run; knowledge first, the largest first."""
    ledger = run.ledger
    sums = {
        str(payload): {
            way: int(ledger.where(payload=payload, direction=way)["wire_bytes"].sum()) for way in ("up", "down")
        }
        for payload in np.unique(ledger["payload"])
    }
    order = sorted(sums, key=lambda name: (name in OVERHEAD, -sum(sums[name].values())))
    return {name: sums[name] for name in order}
