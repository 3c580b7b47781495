"""Pictures of what methods cost: bars for one setting, lines over the number of clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import EngFormatter

from fedsim.costs.measured import WAYS, SettingCosts
from fedsim.costs.projection import Point
from fedsim.results.plots.drawing import PALETTE, label_ends, new_figure, save, series_style, style
from fedsim.results.wording import size

COLOURS = {"up": PALETTE[1], "down": PALETTE[0]}
BAR_HEIGHT = 0.4


def draw_bars(setting: SettingCosts, stem: Path) -> list[Path]:
    """Wire bytes up and down of every method, the cheapest on top, on a logarithmic scale."""
    methods = sorted(setting.methods, key=lambda method: -method.flow("both").wire_bytes)
    with style():
        figure = new_figure(7.0, 1.2 + 0.36 * len(methods))
        axes = figure.subplots()
        for way, shift in zip(WAYS, (BAR_HEIGHT / 2, -BAR_HEIGHT / 2), strict=True):
            amounts = [method.flow(way).wire_bytes for method in methods]
            places = [place + shift for place in range(len(methods))]
            bars = axes.barh(places, amounts, height=BAR_HEIGHT, color=COLOURS[way], label=way)
            axes.bar_label(bars, [size(amount) for amount in amounts], padding=3, fontsize=7)
        axes.set_yticks(range(len(methods)), [method.title for method in methods])
        axes.set_xscale("log")
        axes.margins(x=0.16)
        axes.xaxis.set_major_formatter(EngFormatter("B"))
        axes.set_xlabel("bytes on the wire, all clients together")
        axes.set_title(setting.title)
        axes.grid(axis="x")
        axes.legend(frameon=False, loc="upper right")
        return save(figure, stem)


def draw_series(largest: SettingCosts, points: Sequence[Point], stem: Path) -> list[Path]:
    """Wire bytes of a round against the number of clients: measured, and from there on by the formula."""
    with style():
        figure = new_figure(7.0, 4.6)
        axes = figure.subplots()
        ends = []
        for index, method in enumerate(largest.methods):
            *measured, last, far = [(one.clients, one.wire_bytes) for one in points if one.method == method.name]
            looks = series_style(index)
            axes.plot(*zip(*measured, last, strict=True), marker="o", **looks)
            axes.plot(*zip(last, far, strict=True), alpha=0.45, **looks)
            ends.append((*far, method.title, looks["color"]))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.yaxis.set_major_formatter(EngFormatter("B"))
        axes.set_xlabel("clients: dots are measured, pale lines follow the verified formula")
        axes.set_ylabel("bytes on the wire in a round")
        axes.set_title(f"{largest.dataset}, {largest.group}")
        axes.grid(True)
        label_ends(axes, ends)
        return save(figure, stem)
