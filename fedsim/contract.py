"""What a method may send: the contract that the border checks on both sides of the wire.

A contract names every array, its payload kind, its shape and its type. Shapes are written as words:
`"n K"` is a matrix of n rows and K columns. Letters that the experiment defines (C classes, K features,
M clients, `ch h w` of an image, `ch length` or `ch sensors length` of a signal, `dim` of a vector, `length` and
`vocab` of texts) are fixed; every other letter is free but must mean the same number in all arrays of one message.
A message carries all arrays of its direction or none. What a round costs follows from the contract
(`fedsim/costs/formula.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from fedsim.errors import ContractError

Arrays = dict[str, np.ndarray]


class Payload(StrEnum):
    """Kinds of knowledge. What a kind reveals is the privacy and cost argument of a method."""

    PROTOTYPES = "prototypes"
    FEATURES = "features"  # features of public samples (Fed2PKD)
    LOGITS = "logits"
    MARGINS = "margins"
    IMAGES = "images"  # generated ones (FedKTL)
    SAMPLES = "samples"  # public ones, of any kind
    LATENTS = "latents"  # the vector half of FedKTL's image-vector pairs
    COUNTS = "counts"  # how many samples of each class: a privacy cost
    PARAMETERS = "parameters"  # weights: only the weight-sharing baselines declare it
    GUIDES = "guides"  # FedL2G's guiding vectors, and on the way up their gradients
    INDEX = "index"  # class or sample numbers that say what the rows of another array are

    @property
    def is_knowledge(self) -> bool:
        """What papers count; indices are only beside it."""
        return self is not Payload.INDEX


@dataclass(frozen=True)
class Field:
    """One array of a message."""

    payload: Payload
    shape: str
    dtype: str = "float32"

    @cached_property
    def numpy_dtype(self) -> np.dtype:
        return np.dtype(self.dtype)

    @cached_property
    def words(self) -> list[str]:
        """The letters and numbers of its shape."""
        return self.shape.split()

    def bind(self, shape: tuple[int, ...], letters: dict[str, int]) -> str | None:
        """Match a real shape; free letters met for the first time are added. Returns what is wrong, if any."""
        if len(self.words) != len(shape):
            return f"has {len(shape)} dimensions, declared {len(self.words)} ({self.shape})"
        for word, size in zip(self.words, shape, strict=True):
            expected = int(word) if word.isdigit() else letters.setdefault(word, size)
            if expected != size:
                meaning = "" if word.isdigit() else f" with {word} = {expected}"
                return f"has shape {shape}, declared ({self.shape}){meaning}"
        return None


Fields = Mapping[str, Field]

CLASSES_HELD = "n"
"""The letter that counts classes: in what goes up those of the client, in what goes down those of anyone."""


def class_ids(letter: str = CLASSES_HELD) -> Field:
    """The companion of an array with one row per class held: which class each row is."""
    return Field(Payload.INDEX, letter, "int32")


def sample_ids(letter: str) -> Field:
    """The companion of an array with one row per public sample: which of them each row is."""
    return Field(Payload.INDEX, letter, "int32")


DIRECTIONS = ("up", "down", "setup_up", "setup_down")


@dataclass(frozen=True)
class Contract:
    """Everything a method may send. `setup_*` travels once, before the first round."""

    up: Fields = field(default_factory=dict)
    down: Fields = field(default_factory=dict)
    setup_up: Fields = field(default_factory=dict)
    setup_down: Fields = field(default_factory=dict)
    note: str = ""
    """What shapes cannot say of the cost: that a size depends on weights, for example."""

    def payloads(self) -> set[Payload]:
        """All kinds that may travel, in any direction."""
        return {item.payload for way in DIRECTIONS for item in getattr(self, way).values()}


class Announced(Protocol):
    """An array, or what is known of one that is still encoded."""

    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


def check(arrays: Arrays, fields: Fields, dimensions: Mapping[str, int], where: str) -> None:
    """Raise ContractError, naming `where` and the field, unless `arrays` is exactly what `fields` declares."""
    check_announced(arrays, fields, dimensions, where)
    check_values(arrays, where)


def check_announced(
    arrays: Mapping[str, Announced], fields: Fields, dimensions: Mapping[str, int], where: str
) -> None:
    """Names, types and shapes: all that can be known before anything is decoded."""
    if not arrays:
        return
    for name in arrays:
        if name not in fields:
            declared = ", ".join(sorted(fields)) or "nothing"
            raise ContractError(f"{where}: field {name!r} is not in the contract (declared: {declared})")
    letters = dict(dimensions)
    for name, declared_field in fields.items():
        if name not in arrays:
            raise ContractError(f"{where}: field {name!r} is declared but missing")
        array = arrays[name]
        if array.dtype != declared_field.numpy_dtype:
            raise ContractError(
                f"{where}: field {name!r} has dtype {array.dtype}, declared {declared_field.dtype}"
            )
        if wrong := declared_field.bind(array.shape, letters):
            raise ContractError(f"{where}: field {name!r} {wrong}")


def check_values(arrays: Arrays, where: str) -> None:
    """Nothing that is not a number passes."""
    for name, array in arrays.items():
        # As `.all()`, without the detour through Python that numpy's method takes.
        if array.dtype.kind == "f" and not np.logical_and.reduce(np.isfinite(array), axis=None):
            count = int(array.size - np.isfinite(array).sum())
            raise ContractError(f"{where}: field {name!r} holds {count} non-finite values of {array.size}")
