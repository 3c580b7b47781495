"""The idx files of MNIST and its relatives, plain or gzipped."""

import gzip
import struct
from functools import partial
from pathlib import Path

import numpy as np

from fedsim.data.sources.base import Allocate, Decoded, Source, check_labels, reading

PARTS = ("train", "t10k")


def find(folder: Path, num_classes: int | None = None) -> Source | None:
    """Images and labels of the training set and of the test set, unless one of the four is missing."""
    found = []
    for part in PARTS:
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            paths = (folder / f"{part}-{kind}", folder / f"{part}-{kind}.gz")
            found += [path for path in paths if path.is_file()][:1]
    return Source(partial(read, tuple(found), num_classes), tuple(found)) if len(found) == 4 else None


def read(files: tuple[Path, ...], num_classes: int | None, allocate: Allocate) -> Decoded:
    """Without a number of classes, the labels say how many there are."""
    train_images, train_labels, test_images, test_labels = (read_array(path) for path in files)
    with reading(files[1]):
        num_classes = num_classes or int(train_labels.max()) + 1
    labels = [
        check_labels(train_labels, len(train_images), num_classes, files[1]),
        check_labels(test_labels, len(test_images), num_classes, files[3]),
    ]
    with reading(files[2]):
        inputs = allocate((len(train_images) + len(test_images), *train_images.shape[1:], 1), np.uint8)
        np.concatenate([train_images, test_images], out=inputs[..., 0])
    return Decoded(inputs, np.concatenate(labels), num_classes, len(train_labels))


def read_array(path: Path) -> np.ndarray:
    """An idx file of bytes: two zeros, type 8, the rank, big-endian sizes, then the values."""
    with reading(path):
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        zeros, kind, rank = struct.unpack_from(">HBB", content)
        if zeros or kind != 8:
            raise ValueError("it does not start as an idx file of bytes")
        shape = struct.unpack_from(f">{rank}I", content, 4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)
