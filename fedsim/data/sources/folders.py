"""Data sets that come as one file per image: class folders, Tiny-ImageNet, Flowers102."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedsim.data.sources.base import Allocate, Decoded, Source, check_labels, reading
from fedsim.data.sources.images import in_parallel, to_array
from fedsim.errors import UserError

IMAGE_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
TEST_FOLDERS = ("val", "test")
MIXED_SIZE = 64
"""Side for images of different sizes where none is given; what the papers use for Flowers102."""


@dataclass(frozen=True)
class Listing:
    """Image files with their labels, training images first."""

    paths: tuple[Path, ...]
    labels: np.ndarray
    num_classes: int
    num_train: int
    class_names: tuple[str, ...] = ()

    def read(self, side: int, allocate: Allocate) -> Decoded:
        """Decode all images to side × side, or to their own size if that is 0 and all agree."""
        if side:
            shape = (side, side)
        else:
            sizes = set(in_parallel(_size, self.paths))
            shape = sizes.pop() if len(sizes) == 1 else (MIXED_SIZE, MIXED_SIZE)
        inputs = allocate((len(self.paths), *shape, 3), np.uint8)

        def decode(row: int) -> None:
            inputs[row] = _decode(shape, self.paths[row])

        in_parallel(decode, range(len(self.paths)))
        return Decoded(inputs, self.labels, self.num_classes, self.num_train, class_names=self.class_names)


def find_tree(folder: Path, num_classes: int | None = None, *, side: int = 0) -> Source | None:
    """`train/<class>/…` with `val` or `test` beside it, or `<class>/…` alone."""
    training = folder / "train" if (folder / "train").is_dir() else folder
    classes = [path.name for path in _subfolders(training)]
    train = _list_classes(training, classes)
    if not train:
        return None
    if num_classes and len(classes) != num_classes:
        raise UserError(
            f"{training} has {len(classes)} class folders, not {num_classes}; unpack the data set again."
        )
    test: list[tuple[Path, int]] = []
    if training != folder:
        for name in TEST_FOLDERS:
            test = test or _list_annotated(folder / name, classes) or _list_classes(folder / name, classes)
    paths, labels = zip(*train, *test, strict=True)
    listing = Listing(paths, np.array(labels, dtype=np.int64), len(classes), len(train), tuple(classes))
    return Source(partial(listing.read, side), paths, settings=f"side {side}")


def find_flowers102(folder: Path, num_classes: int, *, side: int = 0) -> Source | None:
    """torchvision's layout: jpg/image_00001.jpg …, imagelabels.mat (from 1), setid.mat (the test set)."""
    tables = (folder / "imagelabels.mat", folder / "setid.mat")
    if not all(map(Path.is_file, tables)):
        return None
    files = (*tables, *sorted((folder / "jpg").glob("image_*.jpg")))
    return Source(partial(_read_flowers102, files, num_classes, side), files, settings=f"side {side}")


def _read_flowers102(files: tuple[Path, ...], num_classes: int, side: int, allocate: Allocate) -> Decoded:
    from scipy.io import loadmat

    label_file, split_file, *paths = files
    with reading(label_file):
        labels = loadmat(str(label_file))["labels"].ravel().astype(np.int64) - 1
    labels = check_labels(labels, len(paths), num_classes, label_file)
    with reading(split_file):
        is_test = np.isin(np.arange(1, len(paths) + 1), loadmat(str(split_file))["tstid"])
    order = np.argsort(is_test, kind="stable")  # training and validation images first
    ordered = tuple(paths[row] for row in order)
    return Listing(ordered, labels[order], num_classes, int((~is_test).sum())).read(side, allocate)


def _subfolders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _list_classes(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """Images at any depth below each class folder, in the order of their names."""
    found = []
    for label, name in enumerate(classes):
        for parent, _, names in sorted(os.walk(folder / name)):
            images = sorted(file for file in names if Path(file).suffix.lower() in IMAGE_SUFFIXES)
            found += [(Path(parent, file), label) for file in images]
    return found


def _list_annotated(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """Tiny-ImageNet's validation set: all images in one folder, their classes in a table."""
    table = folder / "val_annotations.txt"
    if not table.is_file():
        return []
    label_of = {name: label for label, name in enumerate(classes)}
    with reading(table):
        rows = [line.split("\t") for line in table.read_text().splitlines()]
        return [(folder / "images" / row[0], label_of[row[1]]) for row in rows]


def _size(path: Path) -> tuple[int, int]:
    from PIL import Image

    with reading(path), Image.open(path) as image:
        return image.height, image.width


def _decode(shape: tuple[int, int], path: Path) -> np.ndarray:
    from PIL import Image

    with reading(path), Image.open(path) as image:
        return to_array(image, shape)
