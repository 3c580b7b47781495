"""One copy of the samples, and the views that nodes have of it.

Letters: B batch, D input values, H height, W width.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from fedsim.data import feeding
from fedsim.data.inputs import InputShape, Kind

CHUNK_BYTES = 512 * 1024
"""Batches are converted this many bytes of float32 at a time: small enough to stay in a core's cache, large
enough that batches of ten do not pay a dozen calls each."""


@dataclass(frozen=True)
class Dataset:
    """All samples of a data set. The first `num_train` rows are the official training set.

    `inputs` is memory-mapped: images, uint8 (N, H, W, ch), which are normalised when a batch is made; tokens,
    int32 (N, L), see `inputs.py`; or float32 (N, ...) in the layout that models read, which is passed on as it is.
    """

    name: str
    inputs: np.ndarray
    labels: np.ndarray  # (N,) int64
    num_classes: int
    num_train: int
    class_names: Sequence[str] = ()
    """Where the source has names for its classes; without any, a class is called by its number."""
    known_fingerprint: str = ""
    kind: Kind | Literal[""] = ""
    """What a sample is, where its number of dimensions does not say it."""
    vocabulary: int = 0
    """How many tokens there are, of texts."""

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal samples in equal order, on every machine. The store knows it, so nothing is read."""
        return self.known_fingerprint or fingerprint_of(self)

    def class_name(self, label: int) -> str:
        return self.class_names[label] if self.class_names else str(label)

    @property
    def input_shape(self) -> InputShape:
        """The shape of one sample as a model sees it, (ch, h, w) or (D,), and what it is."""
        if self.inputs.dtype == np.uint8:
            height, width, channels = self.inputs.shape[1:]
            return InputShape((channels, height, width), "image")
        return InputShape(self.inputs.shape[1:], self.kind, self.vocabulary)


def fingerprint_of(dataset: Dataset) -> str:
    """A hash of all inputs and labels in their order, of the number of classes and where the test set starts."""
    vocabulary = f"/{dataset.vocabulary}" if dataset.vocabulary else ""
    digest = hashlib.sha256(f"{dataset.num_classes}/{dataset.num_train}{vocabulary}".encode())
    for array in (dataset.inputs, dataset.labels):
        little_endian = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        digest.update(f"/{little_endian.dtype.str}{little_endian.shape}".encode())
        digest.update(little_endian.data)
    return digest.hexdigest()[:32]


@dataclass(frozen=True)
class Subset:
    """Some rows of a data set, in a fixed order. Unless `labelled`, no label can be read: all are -1."""

    dataset: Dataset
    indices: np.ndarray
    labelled: bool = True

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def labels(self) -> np.ndarray:
        if not self.labelled:
            return np.full(len(self.indices), -1, dtype=np.int64)
        return np.asarray(self.dataset.labels[self.indices], dtype=np.int64)

    def batches(
        self,
        batch_size: int,
        *,
        drop_last: bool = False,
        order: np.ndarray | None = None,
        device: torch.device | str | None = None,
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(x, y) per batch: x float32 (B, ch, h, w) normalised to [-1, 1], or whatever a sample is; y int64 (B,).

        `order` is a permutation of range(len(self)); without it the order is the one that the partition drew.
        """
        rows = self.indices if order is None else self.indices[order]
        labels = self.labels if order is None else self.labels[order]
        stop = len(rows) - len(rows) % batch_size if drop_last else len(rows)
        sample_bytes = 4 * int(np.prod(self.dataset.input_shape))
        chunk_size = batch_size * max(1, CHUNK_BYTES // (batch_size * sample_bytes))
        for first in range(0, stop, chunk_size):
            last = min(first + chunk_size, stop)
            x = _as_model_input(feeding.take(self.dataset.inputs, rows[first:last], device))
            y = feeding.to_device(labels[first:last].copy(), device)
            yield from zip(x.split(batch_size), y.split(batch_size), strict=True)


def _as_model_input(raw: torch.Tensor) -> torch.Tensor:
    """Images travel to the device as bytes and become floats there: a quarter of the copy."""
    if raw.dtype is torch.int32:
        return raw.long()  # token numbers, as layers want them
    if raw.dtype is not torch.uint8:
        return raw
    # x / 127.5 - 1 has the very bits of (x / 255 - .5) / .5: doubling is exact in binary floating point.
    # Channels move forward while the values are still bytes, a quarter of the traffic that floats would be.
    return raw.permute(0, 3, 1, 2).contiguous().float().div_(127.5).sub_(1.0)


@dataclass(frozen=True)
class ClientData:
    """What one client holds."""

    train: Subset
    test: Subset

    @cached_property
    def classes(self) -> np.ndarray:
        """The classes present in the training part, ascending."""
        return np.flatnonzero(self.class_counts)

    @cached_property
    def class_counts(self) -> np.ndarray:
        """(C,) int64: training samples of each class."""
        return np.bincount(self.train.labels, minlength=self.train.dataset.num_classes)
