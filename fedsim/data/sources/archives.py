"""Data sets that come as a few large files: CIFAR's pickles, SVHN's .mat files, Keras' .npz layout."""

import zipfile
from functools import partial
from pathlib import Path

import numpy as np

from fedsim.data.sources.base import Allocate, Decoded, Source, check_labels, reading
from fedsim.data.sources.unpickle import read_pickle
from fedsim.errors import UserError

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


def find_npz(path: Path, num_classes: int | None = None) -> Source | None:
    return Source(partial(read_npz, path, num_classes), (path,)) if path.is_file() else None


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


def read_npz(path: Path, num_classes: int | None, allocate: Allocate) -> Decoded:
    """x_train, y_train and, if there is an official test set, x_test, y_test.

    Images are uint8 (N, H, W) or (N, H, W, ch); floats are passed to models as they are.
    """
    with reading(path), zipfile.ZipFile(path):  # numpy would take what is no archive for a pickle
        pass
    with reading(path), np.load(path, allow_pickle=False) as archive:
        parts = ("train", "test") if "x_test" in archive else ("train",)
        labels = [archive[f"y_{part}"] for part in parts]
        if num_classes is None:
            known = len(archive["classes"]) if "classes" in archive else 0
            num_classes = max(known, *(int(own.max(initial=-1)) + 1 for own in labels))
        inputs: np.ndarray | None = None
        start = 0
        for part, own_labels in zip(parts, labels, strict=True):
            own = archive[f"x_{part}"]
            own = own[..., None] if own.dtype == np.uint8 and own.ndim == 3 else own
            check_labels(own_labels, len(own), num_classes, path)
            if inputs is None:
                inputs = allocate((sum(map(len, labels)), *own.shape[1:]), _stored_type(own, path))
            inputs[start : start + len(own)] = own
            start += len(own)
    assert inputs is not None  # there is always a training part
    return Decoded(inputs, np.concatenate(labels).ravel().astype(np.int64), num_classes, len(labels[0]))


def _stored_type(inputs: np.ndarray, path: Path) -> type:
    if inputs.dtype == np.uint8 and inputs.ndim == 4:
        return np.uint8
    if inputs.dtype.kind == "f":
        return np.float32
    raise UserError(
        f"{path} has inputs of type {inputs.dtype} and shape {inputs.shape}; images must be uint8 "
        "(N, H, W, ch), other data float32."
    )
