"""Small data sets in the publishers' file layouts, as tests write them."""

from pathlib import Path

import numpy as np

from fedsim.data.sources import sensors


def write_ag_news(folder: Path, num: int = 12) -> Path:
    """Rows of AG News: class from 1, title, description, all quoted."""
    made = folder / "ag_news_csv"
    made.mkdir(parents=True)
    words = ("peace treaty", "football match", "stock market", "new software")
    for part, count in (("train", num), ("test", num // 3)):
        rows = [
            f'"{row % 4 + 1}","{words[row % 4].title()} {row}","The {words[row % 4]}, again.\\"'
            for row in range(count)
        ]
        (made / f"{part}.csv").write_text("\n".join(rows) + "\n")
    return made


def write_har(folder: Path, subjects: dict[str, list[int]] | None, num: int = 12, steps: int = 128) -> Path:
    """Signal c of window i at step t is 100 i + 10 c + t / 1000, so that any mix-up shows."""
    made = folder / "UCI HAR Dataset"
    for part in ("train", "test"):
        signals = made / part / "Inertial Signals"
        signals.mkdir(parents=True)
        windows = np.arange(num)[:, None] + (0 if part == "train" else num)
        for channel, signal in enumerate(sensors.HAR_SIGNALS):
            values = 100 * windows + 10 * channel + np.arange(steps) / 1000
            np.savetxt(signals / f"{signal}_{part}.txt", values, fmt="%.7e")
        np.savetxt(made / part / f"y_{part}.txt", np.arange(num) % 6 + 1, fmt="%d")
        if subjects:
            np.savetxt(made / part / f"subject_{part}.txt", subjects[part], fmt="%d")
    return made


def write_pamap2(folder: Path, activities: dict[str, list[tuple[int, int]]]) -> Path:
    """`{"subject101": [(activity, rows), …]}`; column c of row r is c + r / 1000, some values are missing."""
    made = folder / "PAMAP2_Dataset" / "Protocol"
    made.mkdir(parents=True)
    for name, runs in activities.items():
        table = np.add.outer(np.arange(sum(rows for _, rows in runs)) / 1000, np.arange(54.0))
        table[:, 1] = np.concatenate([np.full(rows, activity) for activity, rows in runs])
        table[3, 4] = np.nan
        np.savetxt(made / f"{name}.dat", table, fmt="%.6g")
    return made.parent
