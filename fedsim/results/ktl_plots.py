"""Pictures of FedKTL: generated images (figures 4, 5, 6 and 8 of the paper) and the two losses of its server.

    python -m fedsim.results.ktl_plots runs/some          images over the rounds and losses, into runs/some/plots
    python -m fedsim.results.ktl_plots runs/a runs/b      also the last images of all runs under a client's own

Dimensions: C classes, R rows of a grid.
"""

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from safetensors.numpy import load_file

from fedsim.data import ClientData, Federation
from fedsim.errors import UserError
from fedsim.results.data_plots import COLOUR, _save
from fedsim.results.folder import RunFolder

OTHER_COLOUR = "#c2571a"
MAX_ROUNDS = 8
MAX_CLASSES = 12
TILE_INCHES = 0.62
LABEL_INCHES = 1.1
GAP = 0.06
"""Between images, relative to the side of one."""


def draw_run(folder: Path, out: Path | None = None) -> list[Path]:
    """Both pictures of a run folder; `out` is where to put them, by default in its folder plots."""
    out = out or folder / "plots"
    name = folder.name
    images = recorded_images(folder)
    rows = {f"round {round}": images[round] for round in spread(sorted(images), MAX_ROUNDS)}
    paths = draw_images(rows, f"{name}: generated images", out / "generated_images")
    losses = recorded_losses(folder)
    if losses:  # a run without alignment has none
        paths += draw_losses(losses, f"{name}: losses of the alignment", out / "alignment_losses")
    return paths


def draw_comparison(folders: Sequence[Path], out: Path, client: int = 0) -> list[Path]:
    """One image of each class that a client holds, and below them what the generators of several runs made."""
    experiment = RunFolder.open(folders[0]).experiment()
    own = own_images(Federation(experiment).client(client))
    classes = spread(sorted(own), MAX_CLASSES)
    rows = {f"client {client}": np.stack([own[label] for label in classes])}
    for folder in folders:
        images = recorded_images(folder)
        rows[folder.name] = images[max(images)][classes]
    return draw_images(rows, "Data and generated images", out / "comparison", classes)


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
    return _save(figure, stem)


def draw_losses(losses: Mapping[str, Mapping[int, float]], title: str, stem: Path) -> list[Path]:
    """L^MMD and L^MSE after each round, each with its own scale: they differ in size by orders of magnitude."""
    figure = Figure(figsize=(6.0, 3.4), layout="constrained")
    left = figure.add_subplot()
    right = left.twinx()
    for axes, name, colour, label in (
        (left, "mmd", COLOUR, r"$L^{\mathrm{MMD}}$"),
        (right, "mse", OTHER_COLOUR, r"$L^{\mathrm{MSE}}$"),
    ):
        rounds, values = zip(*sorted(losses[name].items()), strict=True)
        marker = "o" if len(rounds) <= 30 else None
        axes.plot(rounds, values, color=colour, marker=marker, markersize=3, linewidth=1.4)
        axes.set_ylabel(label, color=colour)
        axes.tick_params(axis="y", colors=colour, labelsize=8)
        axes.set_ylim(bottom=0)
        axes.spines["top"].set_visible(False)
    left.set_xlabel("round")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.grid(color="0.92", linewidth=0.6)
    left.set_title(title, fontsize=10)
    return _save(figure, stem)


def recorded_images(folder: Path) -> dict[int, np.ndarray]:
    """Round -> (C, ch, h, w) uint8."""
    images = {}
    for path in sorted((folder / "records").glob("round-*.safetensors")):
        arrays = load_file(path)
        if "images" in arrays:
            images[int(path.stem.removeprefix("round-"))] = arrays["images"]
    if not images:
        raise UserError(f"{folder} has no generated images; give the folder of a fedktl run.")
    return images


def recorded_losses(folder: Path) -> dict[str, dict[int, float]]:
    """`mmd` and `mse` by round; empty where the run has none."""
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("mmd")]
    if not rows:
        return {}
    return {name: {int(row["round"]): float(row[name]) for row in rows} for name in ("mmd", "mse")}


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


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw what FedKTL's generator made.")
    parser.add_argument("folders", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--client", type=int, default=0, help="whose own images are shown for comparison")
    given = parser.parse_args()
    paths = [path for folder in given.folders for path in draw_run(folder)]
    if len(given.folders) > 1:
        paths += draw_comparison(given.folders, given.folders[0] / "plots", given.client)
    print(*paths, sep="\n")


if __name__ == "__main__":
    main()
