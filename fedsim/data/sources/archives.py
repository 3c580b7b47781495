"""Published data sets that come as a few large files: CIFAR's pickles and SVHN's .mat files."""

from functools import partial
from pathlib import Path

import numpy as np

from fedsim.data.sources.base import Allocate, Decoded, Source, check_labels, reading
from fedsim.data.sources.unpickle import read_pickle

CIFAR_FILES = {
    10: (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
    100: ("train", "test"),
}
SVHN_FILES = ("train_32x32.mat", "test_32x32.mat")


def find_cifar(folder: Path, num_classes: int) -> Source | None:
    files = tuple(folder / name for name in CIFAR_FILES[num_classes])
    return Source(partial(read_cifar, files, num_classes), files) if all(map(Path.is_file, files)) else None


def find_svhn(folder: Path, num_classes: int) -> Source | None:
    files = tuple(folder / name for name in SVHN_FILES)
    return Source(partial(read_svhn, files, num_classes), files) if all(map(Path.is_file, files)) else None


def read_cifar(files: tuple[Path, ...], num_classes: int, allocate: Allocate) -> Decoded:
    """The last file is the test set. Rows are 3 × 32 × 32 bytes."""
    images, labels = [], []
    for path in files:
        with reading(path):
            with path.open("rb") as file:
                batch = read_pickle(file)
            images.append(batch["data"].reshape(-1, 3, 32, 32))
            own_labels = np.array(batch["fine_labels" if "fine_labels" in batch else "labels"])
        labels.append(check_labels(own_labels, len(images[-1]), num_classes, path))
    inputs = allocate((sum(map(len, images)), 32, 32, 3), np.uint8)
    np.concatenate(images, out=inputs.transpose(0, 3, 1, 2))
    all_labels = np.concatenate(labels)
    return Decoded(inputs, all_labels, num_classes, len(all_labels) - len(labels[-1]))


def read_svhn(files: tuple[Path, ...], num_classes: int, allocate: Allocate) -> Decoded:
    """X is (32, 32, 3, N); y says 10 for the digit 0."""
    from scipy.io import loadmat

    images, labels = [], []
    for path in files:
        with reading(path):
            content = loadmat(str(path))
            images.append(content["X"].transpose(3, 0, 1, 2))
            own_labels = content["y"].astype(np.int64) % 10
        labels.append(check_labels(own_labels, len(images[-1]), num_classes, path))
    inputs = allocate((sum(map(len, images)), *images[0].shape[1:]), np.uint8)
    np.concatenate(images, out=inputs)
    return Decoded(inputs, np.concatenate(labels), num_classes, len(labels[0]))
