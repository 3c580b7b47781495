"""Writes cost tables and charts into a folder. The same measurements give the same files, so old ones go."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pandas import DataFrame

from fedsim.costs.measured import SettingCosts
from fedsim.costs.projection import points
from fedsim.costs.tables import to_csv, to_latex, to_markdown
from fedsim.errors import UserError
from fedsim.results.plots.costs import draw_bars, draw_series


def write_files(folder: Path, all_series: Sequence[Sequence[SettingCosts]], num_clients: int) -> list[Path]:
    """Every series is one data set and group with ascending numbers of clients, continued to `num_clients`."""
    require_place(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the folder {folder} cannot be made: {error.strerror}; choose another place.") from None
    settings = [setting for series in all_series for setting in series]
    texts = {
        "comm_cost.csv": to_csv(settings),
        "comm_cost.md": "\n".join(map(to_markdown, settings)),
        "comm_cost.tex": "\n".join(map(to_latex, settings)),
    }
    pictures = []
    for setting in settings:
        if setting.methods:
            pictures += draw_bars(setting, folder / f"{_stem(setting)}-{setting.num_clients}")
    rows = []
    for series in all_series:
        largest = series[-1]
        if len(series) > 1 and largest.methods:
            line = points(series, num_clients)
            rows += [{"dataset": largest.dataset, "group": largest.group, **asdict(point)} for point in line]
            pictures += draw_series(largest, line, folder / f"{_stem(largest)}-series")
    if rows:
        texts["comm_cost_series.csv"] = DataFrame(rows).to_csv(index=False, lineterminator="\n")
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [*(folder / name for name in texts), *pictures]


def require_place(folder: Path) -> None:
    """That the folder can be made, or written into, is worth knowing before minutes of measurements are lost."""
    place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not place.is_dir():
        raise UserError(f"the folder {folder} cannot be made: {place} is no folder; choose another place.")
    if not os.access(place, os.W_OK):
        raise UserError(f"the folder {folder} cannot be written: {place} is closed to you; choose another place.")


def _stem(setting: SettingCosts) -> str:
    group = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in setting.group)
    return f"comm_cost-{Path(setting.dataset).stem}-{group}"
