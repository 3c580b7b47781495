"""Arrays of a user's own, in any common layout, as the arrays that are stored.

Letters: N samples, H height, W width, ch channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsim.data.sources.base import Allocate, Decoded, check_labels
from fedsim.errors import UserError

Part = tuple[np.ndarray, np.ndarray]
"""Inputs and labels of a training or a test set."""

_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Told:
    """What a source says of its samples beside inputs and labels."""

    class_names: tuple[str, ...] = ()
    groups: np.ndarray | None = None
    """Whose sample each one is, of all sets in their order: words or numbers."""
    vocabulary: int = 0
    """How many tokens there are, where samples are texts."""


def assemble(
    parts: Sequence[Part],
    where: Path | str,
    allocate: Allocate,
    *,
    num_classes: int | None = None,
    told: Told = Told(),
) -> Decoded:
    """The training set and, if there is one, the test set after it.

    Labels are class numbers below `num_classes` where that is given; otherwise whatever tells classes apart.
    """
    inputs = [in_stored_layout(own, where, told.vocabulary) for own, _ in parts]
    if len({(own.shape[1:], own.dtype) for own in inputs}) > 1:
        shapes = " and ".join(f"{own.dtype} {own.shape[1:]}" for own in inputs)
        raise UserError(f"samples of the training and the test set in {where} are {shapes}; make them alike.")
    labels = [_one_for_each(own, len(x), where) for x, (_, own) in zip(inputs, parts, strict=True)]
    numbers, names = number_classes(np.concatenate(labels), where, num_classes, told.class_names)
    groups, group_names = number_groups(told.groups, len(numbers), where)
    stored = allocate((len(numbers), *inputs[0].shape[1:]), inputs[0].dtype.type)
    np.concatenate(inputs, out=stored)
    num_found = int(numbers.max(initial=-1)) + 1
    return Decoded(
        stored,
        numbers,
        num_classes or len(names) or num_found,
        len(labels[0]),
        class_names=names,
        kind="tokens" if told.vocabulary else "",
        vocabulary=told.vocabulary,
        groups=groups,
        group_names=group_names,
    )


def number_groups(
    groups: np.ndarray | None, num_samples: int, where: Path | str
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Whose sample each one is, as numbers from 0 on in sorted order, and the names."""
    if groups is None:
        return None, ()
    if groups.shape != (num_samples,):
        raise UserError(
            f"{where} says of {groups.size} samples whose they are, and holds {num_samples}; say it of each one."
        )
    found, numbers = np.unique(groups, return_inverse=True)
    return numbers.astype(np.int64), tuple(map(str, found.tolist()))


def in_stored_layout(inputs: np.ndarray, where: Path | str, vocabulary: int = 0) -> np.ndarray:
    """Bytes are images, (N, H, W), (N, H, W, ch) or (N, ch, H, W), and become (N, H, W, ch). Other numbers must be
    floats and are passed on as they are, as float32; in images of floats the channels come first. With a
    vocabulary they are tokens, whole numbers (N, L)."""
    inputs = np.asarray(inputs)
    if vocabulary:
        return _tokens(inputs, vocabulary, where)
    if inputs.dtype == np.uint8 and inputs.ndim in (3, 4):
        images = inputs[..., None] if inputs.ndim == 3 else inputs
        return images.transpose(0, 2, 3, 1) if _has_channels_only_at(images, 1) else images
    if inputs.dtype.kind == "f" and inputs.ndim >= 2:
        numbers = inputs.astype(np.float32, copy=False)
        if not (finite := np.isfinite(numbers)).all():
            row = int(np.argwhere(~finite)[0, 0])
            raise UserError(
                f"{where} has {(~finite).sum()} values that are no finite numbers, the first in sample {row}; "
                "fill them in or leave these samples out."
            )
        return (
            numbers.transpose(0, 3, 1, 2) if numbers.ndim == 4 and _has_channels_only_at(numbers, 3) else numbers
        )
    raise UserError(
        f"{where} has inputs of type {inputs.dtype} and shape {inputs.shape}; images must be uint8 (N, H, W) or "
        "(N, H, W, ch), other data floats (N, ...); whole numbers (N, L) are texts where `vocabulary` beside them "
        "says how many tokens there are."
    )


def _tokens(inputs: np.ndarray, vocabulary: int, where: Path | str) -> np.ndarray:
    if inputs.dtype.kind not in "iu" or inputs.ndim != 2:
        raise UserError(
            f"{where} has a vocabulary of {vocabulary} tokens but inputs of type {inputs.dtype} and shape "
            f"{inputs.shape}; texts are whole numbers (N, L), 0 behind their end."
        )
    smallest, largest = int(inputs.min(initial=0)), int(inputs.max(initial=0))
    if smallest < 0 or largest >= vocabulary:
        raise UserError(
            f"{where} has tokens from {smallest} to {largest}, but its vocabulary of {vocabulary} goes from 0 to "
            f"{vocabulary - 1}; set vocabulary to {largest + 1} or more, and leave negative numbers out."
        )
    return inputs.astype(np.int32)


def number_classes(
    labels: np.ndarray, where: Path | str, num_classes: int | None = None, names: Sequence[str] = ()
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class numbers from 0 on, and the names of the classes unless they are these numbers.

    Words, or numbers with gaps such as -1 and 1, become classes in sorted order.
    """
    if labels.dtype.kind == "f":
        if not (labels == np.rint(labels)).all():
            raise UserError(
                f"{where} has labels such as {labels[labels != np.rint(labels)][0]:g}; a label must be a class, a "
                "whole number or a word."
            )
        labels = labels.astype(np.int64)
    if labels.dtype.kind in "SO":
        labels = np.array([item.decode() if isinstance(item, bytes) else str(item) for item in labels.tolist()])
    if num_classes is not None:
        return check_labels(labels, len(labels), num_classes, where), tuple(names) if len(
            names
        ) == num_classes else ()
    if len(names) and labels.dtype.kind in "iu":
        return check_labels(labels, len(labels), len(names), where), tuple(names)
    if labels.dtype.kind not in "iubU":
        raise UserError(f"{where} has labels of type {labels.dtype}; a label must be a class number or a word.")
    found, numbers = np.unique(labels, return_inverse=True)
    if labels.dtype.kind in "iu" and np.array_equal(found, np.arange(len(found))):
        return numbers.astype(np.int64), ()
    return numbers.astype(np.int64), tuple(map(str, found.tolist()))


def _one_for_each(labels: np.ndarray, num_inputs: int, where: Path | str) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim > 2 or (labels.ndim == 2 and labels.shape[1] != 1):
        raise UserError(
            f"{where} has labels of shape {labels.shape}; give one class for each sample, such as y.argmax(1)."
        )
    if labels.size != num_inputs:
        raise UserError(
            f"{where} holds {num_inputs} inputs but {labels.size} labels; it needs one for each input."
        )
    return labels.ravel()


def _has_channels_only_at(images: np.ndarray, axis: int) -> bool:
    """Whether this axis, and not the other that may hold them, has the size of colour channels."""
    other = 4 - axis
    return images.shape[axis] in _CHANNELS and images.shape[other] not in _CHANNELS
