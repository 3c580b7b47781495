"""Pictures of FedKTL: what its generator made (figures 4, 5, 6 and 8 of the paper).

Dimensions: C classes, R rows of a grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from fedsim.results.load import LoadedRun
from fedsim.results.plots.drawing import save

if TYPE_CHECKING:
    from fedsim.data import ClientData

MAX_ROUNDS = 8
MAX_CLASSES = 12
TILE_INCHES = 0.62
LABEL_INCHES = 1.1
GAP = 0.06
"""Between images, relative to the side of one."""


def draw_generated(run: LoadedRun, stem: Path) -> list[Path]:
    """The images of some rounds, evenly spread, with the first and the last."""
    recorded = run.records("images")
    if not recorded:
        return []
    rows = {f"round {round}": recorded[round]["images"] for round in spread(sorted(recorded), MAX_ROUNDS)}
    return draw_images(rows, "", stem)


def draw_comparison(runs: Mapping[str, LoadedRun], stem: Path, client: int = 0) -> list[Path]:
    """One image of each class that a client holds, and below them what the generators of several runs made."""
    recorded = {name: images for name, run in runs.items() if (images := run.records("images"))}
    if len(recorded) < 2:
        return []
    from fedsim.data import Federation

    own = own_images(Federation(runs[next(iter(recorded))].experiment).client(client))
    classes = spread(sorted(own), MAX_CLASSES)
    rows = {f"client {client}": np.stack([own[label] for label in classes])}
    for name, images in recorded.items():
        rows[name] = images[max(images)]["images"][classes]
    return draw_images(rows, "", stem, classes)


def draw_images(
    rows: Mapping[str, np.ndarray], title: str, stem: Path, classes: Sequence[int] | None = None
) -> list[Path]:
    """A grid: one row for each entry of `rows`, (C, ch, h, w) uint8, and one column for each class.

    `classes` says which class each image is of; without it they are 0 … C − 1, and some are picked of many.
    """
    if classes is None:
        classes = spread(range(len(next(iter(rows.values())))), MAX_CLASSES)
        rows = {name: images[list(classes)] for name, images in rows.items()}
    grid, side = _mosaic(list(rows.values()))
    width, height = TILE_INCHES * len(classes), TILE_INCHES * len(rows)
    figure = Figure(figsize=(width + LABEL_INCHES, height + LABEL_INCHES), dpi=200)
    corner = (0.8 * LABEL_INCHES, 0.5 * LABEL_INCHES)
    full_width, full_height = figure.get_size_inches()
    axes = figure.add_axes(
        (corner[0] / full_width, corner[1] / full_height, width / full_width, height / full_height)
    )
    axes.imshow(grid, cmap="gray", vmin=0, vmax=255, interpolation="nearest", aspect="auto")
    step_y, step_x = side
    axes.set_yticks((np.arange(len(rows)) + 0.5) * step_y - 0.5, list(rows), fontsize=8)
    axes.set_xticks((np.arange(len(classes)) + 0.5) * step_x - 0.5, [str(c) for c in classes], fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("class")
    axes.set_title(title, fontsize=10)
    return save(figure, stem)


def own_images(data: ClientData) -> dict[int, np.ndarray]:
    """Class -> the first training image of it, (ch, h, w) uint8."""
    train = data.train
    firsts = {int(label): int(np.argmax(train.labels == label)) for label in data.classes}
    return {label: train.dataset.inputs[train.indices[row]].transpose(2, 0, 1) for label, row in firsts.items()}


def spread(items: Sequence[int], most: int) -> list[int]:
    """At most so many of the items, evenly, with the first and the last among them."""
    picked = np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)
    return [items[index] for index in picked]


def _mosaic(rows: list[np.ndarray]) -> tuple[np.ndarray, tuple[int, int]]:
    """All images in one white-framed picture (grey, or colour if any is), and the size of a cell."""
    channels = max(images.shape[1] for images in rows)
    height, width = rows[0].shape[2:]
    # Whole pixels of a finer grid, so that the gaps are thin for small images too.
    fine = max(1, round(96 / max(height, width)))
    height, width = height * fine, width * fine
    gap = max(1, round(GAP * width))
    cell = (height + gap, width + gap)
    grid = np.full((len(rows) * cell[0], len(rows[0]) * cell[1], channels), 255, np.uint8)
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            pixels = image.transpose(1, 2, 0).repeat(fine, axis=0).repeat(fine, axis=1)
            top, left = row * cell[0] + gap // 2, column * cell[1] + gap // 2
            grid[top : top + height, left : left + width] = pixels
    return (grid[:, :, 0] if channels == 1 else grid), cell
