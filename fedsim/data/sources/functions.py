"""Data that a user's own Python code makes: `./data.py:load`, a function, or something made already.

What it gives may be
- (x, y), or (x_train, y_train, x_test, y_test), or ((x_train, y_train), (x_test, y_test)), of arrays or tensors;
- a dictionary of arrays, named as in an .npz file;
- a torch Dataset, or a pair of them for training and test; every sample is read once.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.data.sources import npz
from fedsim.data.sources.arrays import Part, Told, assemble
from fedsim.data.sources.base import Allocate, Decoded, Source
from fedsim.data.sources.images import to_array
from fedsim.errors import UserError
from fedsim.own import loading, spelling


def find(text: str, side: int = 0) -> Source:
    """The file is imported here, so that one that is broken or lacks the name is known at once."""
    place, name = spelling.split(text)
    value, file = loading.load(place, name), Path(str(loading.load_module(place).__file__))
    settings = f"{file} {loading.sha256(place)}"
    return Source(
        partial(read, value, text, file, side), settings=settings, name=f"{file.stem}-{name}", computed=True
    )


def read(value: Any, text: str, file: Path, side: int, allocate: Allocate) -> Decoded:
    with loading.explained(f"{text} failed", file):
        made = value() if callable(value) else value
        parts, told = _parts(made, text, side)
    return assemble(parts, text, allocate, told=told)


def read_samples(dataset: Any, where: str, side: int = 0) -> Part:
    """All (input, label) of something with a length and numbered samples; Pillow's images become arrays."""
    size = (side, side) if side else None
    labels: list[Any] = []
    inputs: np.ndarray | None = None
    for row in range(len(dataset)):
        sample = dataset[row]
        if not isinstance(sample, tuple | list) or len(sample) < 2:
            raise UserError(
                f"sample {row} of {where} is {type(sample).__name__}; it must be a pair (input, label)."
            )
        keep_grey = inputs is None or inputs.shape[-1] == 1
        own = (
            to_array(sample[0], size, keep_grey=keep_grey)
            if hasattr(sample[0], "convert")
            else np.asarray(sample[0])
        )
        if inputs is None:
            inputs = np.empty((len(dataset), *own.shape), own.dtype)
        if own.shape != inputs.shape[1:]:
            raise UserError(
                f"sample {row} of {where} has the shape {own.shape}, the first one {inputs.shape[1:]}; make them "
                "alike, or give images and set data.image_size."
            )
        inputs[row] = own
        labels.append(np.asarray(sample[1]).item())
    if inputs is None:
        raise UserError(f"{where} has no samples; give a data set with at least one for each class.")
    return inputs, np.array(labels)


def _parts(made: Any, where: str, side: int) -> tuple[list[Part], Told]:
    if isinstance(made, Mapping):
        return npz.choose(made, where)
    if _is_dataset(made):
        made = (made,)
    if isinstance(made, tuple | list) and made:
        if len(made) <= 2 and all(map(_is_dataset, made)):
            names = getattr(made[0], "classes", ())  # torchvision's data sets have them
            return [read_samples(own, where, side) for own in made], Told(class_names=tuple(map(str, names)))
        if len(made) == 2 and all(isinstance(own, tuple | list) and len(own) == 2 for own in made):
            return [_arrays(own) for own in made], Told()
        if len(made) in (2, 4):
            return [_arrays(made[first : first + 2]) for first in range(0, len(made), 2)], Told()
    raise UserError(
        f"{where} gave {_described(made)}; it must give (x, y) or (x_train, y_train, x_test, y_test), a "
        "dictionary of these, or a torch Dataset or a pair of them."
    )


def _is_dataset(value: Any) -> bool:
    """Samples by number, and no array, which has a type of numbers."""
    is_plain = isinstance(value, tuple | list | Mapping | str) or hasattr(value, "dtype")
    return not is_plain and hasattr(value, "__getitem__") and hasattr(value, "__len__")


def _arrays(pair: Sequence[Any]) -> Part:
    return np.asarray(pair[0]), np.asarray(pair[1])


def _described(made: Any) -> str:
    return f"{len(made)} things" if isinstance(made, tuple | list) else f"something of type {type(made).__name__}"
