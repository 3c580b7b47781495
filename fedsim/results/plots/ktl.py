"""Pictures of FedKTL: what its generator made (figures 4, 5, 6 and 8 of the paper).

Dimensions: C classes, R rows of a grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from fedsim.errors import UserError
from fedsim.results.groups import Runs
from fedsim.results.load import LoadedRun
from fedsim.results.plots.drawing import comparison, place_axes, plot, spread

if TYPE_CHECKING:
    from fedsim.data import ClientData

MAX_ROUNDS = 8
MAX_CLASSES = 12
TILE_INCHES = 0.62
LABEL_INCHES = 1.1
GAP = 0.06
"""Between images, relative to the side of one."""


@plot("generated_images", "Generated images", "What the server's generator made for each class.", wide=True)
def draw_generated(run: LoadedRun) -> Figure | None:
    recorded = run.records("images")
    if not recorded:
        return None
    rows = {f"round {round}": recorded[round]["images"] for round in spread(sorted(recorded), MAX_ROUNDS)}
    return draw_images(rows)


@comparison(
    "generated_images", "Generated images",
    "A client's own images, and what the generators made for the same classes in the last round of one run each.",
)  # fmt: skip
def compare_generated(runs: Runs, client: int = 0) -> Figure | None:
    firsts = runs.firsts
    recorded = {name: images for name, run in firsts.items() if (images := run.records("images"))}
    if len(recorded) < 2:
        return None
    from fedsim.data import Federation

    last = {name: images[max(images)]["images"] for name, images in recorded.items()}
    try:
        own = own_images(Federation(firsts[next(iter(recorded))].experiment).client(client))
    except UserError:  # runs are looked at on machines without their data, too
        return draw_images(last)
    classes = spread(sorted(own), MAX_CLASSES)
    rows = {f"client {client}": np.stack([own[label] for label in classes])}
    rows |= {name: images[classes] for name, images in last.items()}
    return draw_images(rows, classes)


def draw_images(rows: Mapping[str, np.ndarray], classes: Sequence[int] | None = None) -> Figure:
    """A grid: one row for each entry of `rows`, (C, ch, h, w) uint8, and one column for each class.

    `classes` says which class each image is of; without it they are 0 … C − 1, and some are picked of many.
    """
    if classes is None:
        classes = spread(range(len(next(iter(rows.values())))), MAX_CLASSES)
        rows = {name: images[list(classes)] for name, images in rows.items()}
    grid, (step_y, step_x) = _mosaic(list(rows.values()))
    width, height = TILE_INCHES * len(classes), TILE_INCHES * len(rows)
    figure = Figure(figsize=(width + LABEL_INCHES, height + LABEL_INCHES), dpi=200)
    axes = place_axes(figure, (0.8 * LABEL_INCHES, 0.5 * LABEL_INCHES), width, height)
    axes.imshow(grid, cmap="gray", vmin=0, vmax=255, interpolation="nearest", aspect="auto")
    axes.set_yticks((np.arange(len(rows)) + 0.5) * step_y - 0.5, list(rows), fontsize=8)
    axes.set_xticks((np.arange(len(classes)) + 0.5) * step_x - 0.5, [str(c) for c in classes], fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("class")
    return figure


def own_images(data: ClientData) -> dict[int, np.ndarray]:
    """Class -> the first training image of it, (ch, h, w) uint8."""
    from fedsim.equations.etf import to_bytes

    train = data.train
    firsts = [int(np.argmax(train.labels == label)) for label in data.classes]
    ((images, labels),) = replace(train, indices=train.indices[firsts]).batches(len(firsts))
    return dict(zip(labels.tolist(), to_bytes(images.numpy()), strict=True))


def _mosaic(rows: list[np.ndarray]) -> tuple[np.ndarray, tuple[int, int]]:
    """All images in one white-framed picture (grey, or colour if any is), and the size of a cell."""
    channels = max(images.shape[1] for images in rows)
    height, width = rows[0].shape[2:]
    # Whole pixels of a finer grid, so that the gaps are thin for small images too.
    fine = max(1, round(96 / max(height, width)))
    gap = max(1, round(GAP * width * fine))
    frame = (gap // 2, gap - gap // 2)
    images = np.stack([np.broadcast_to(of_row, (len(of_row), channels, height, width)) for of_row in rows])
    images = images.repeat(fine, axis=3).repeat(fine, axis=4)
    images = np.pad(images, ((0, 0), (0, 0), (0, 0), frame, frame), constant_values=255)
    num_rows, num_columns, _, *cell = images.shape
    grid = images.transpose(0, 3, 1, 4, 2).reshape(num_rows * cell[0], num_columns * cell[1], channels)
    return (grid[:, :, 0] if channels == 1 else grid), (cell[0], cell[1])
