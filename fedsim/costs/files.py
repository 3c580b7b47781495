"""Writes cost tables and charts into a folder. The same measurements give the same files, so old ones go."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from fedsim.costs.measured import SettingCosts
from fedsim.costs.projection import project
from fedsim.costs.tables import to_csv, to_latex, to_markdown
from fedsim.errors import UserError
from fedsim.results.plots.costs import draw_bars, draw_series

SERIES_COLUMNS = (
    "dataset",
    "group",
    "method",
    "clients",
    "measured",
    "elements_up",
    "elements_down",
    "wire_bytes",
)


def write_files(folder: Path, all_series: Sequence[Sequence[SettingCosts]], num_clients: int) -> list[Path]:
    """Every series is one data set and group with ascending numbers of clients, continued to `num_clients`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be made: {error.strerror}.") from None
    settings = [setting for series in all_series for setting in series]
    texts = {
        "comm_cost.csv": to_csv(settings),
        "comm_cost.md": "\n".join(to_markdown(setting) for setting in settings),
        "comm_cost.tex": "\n".join(to_latex(setting) for setting in settings),
    }
    paths = []
    for name, text in texts.items():
        paths.append(folder / name)
        paths[-1].write_text(text, encoding="utf-8")
    for setting in settings:
        if setting.methods:
            paths += draw_bars(setting, folder / f"{_stem(setting)}-{setting.num_clients}")
    long_series = [series for series in all_series if len(series) > 1 and series[-1].methods]
    if long_series:
        paths.append(_write_series(folder / "comm_cost_series.csv", long_series, num_clients))
    for series in long_series:
        largest = series[-1]
        projections = {method.name: [project(method, largest, num_clients)] for method in largest.methods}
        paths += draw_series(series, projections, folder / f"{_stem(largest)}-series")
    return paths


def _stem(setting: SettingCosts) -> str:
    group = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in setting.group)
    return f"comm_cost-{Path(setting.dataset).stem}-{group}"


def _write_series(path: Path, all_series: Sequence[Sequence[SettingCosts]], num_clients: int) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(SERIES_COLUMNS)
        for series in all_series:
            largest = series[-1]
            for setting in series:
                for method in setting.methods:
                    up, down = (method.flow(way).elements // setting.num_rounds for way in ("up", "down"))
                    wire_bytes = method.both.wire_bytes // setting.num_rounds
                    where = (setting.dataset, setting.group, method.name, setting.num_clients)
                    writer.writerow([*where, True, up, down, wire_bytes])
            for method in largest.methods:
                far = project(method, largest, num_clients)
                where = (largest.dataset, largest.group, method.name, num_clients)
                writer.writerow([*where, False, far.elements_up, far.elements_down, far.wire_bytes])
    return path
