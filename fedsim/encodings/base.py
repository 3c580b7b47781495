"""What an encoding is: an array in, fewer bytes out, and back. Pure numpy; draws come from a stream that is given.

An encoding is a module of `fedsim/encodings` with a class `Encoding`. It never sees a message, a client or a
socket: the border (`nodes/border.py`) is the only place that calls it, in every kind of node, so a method has
decoded values on both sides whatever travels.

    R rows, W columns: an array of rank 2 or more is R = shape[0] rows; one of rank 1 is a single row
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import numpy as np

from fedsim.contract import Field, Payload
from fedsim.errors import CodingError, UserError

Array = np.ndarray[Any, Any]
Buffer = bytes | memoryview
Shape = tuple[int, ...]
Draws = Callable[[], np.random.Generator]
"""The message's own random stream; asked for only by encodings that round at random."""


class Encoding:
    """Base of all. As it is, bytes travel as the array has them in memory."""

    is_lossless = False
    on_top = False
    """Whether it works on what another encoding made; it is then given that one as `inner`."""

    def __init__(self, argument: str = ""):
        """`argument` is what stands behind the colon: `topk:0.05`."""
        if argument:
            raise UserError(f"the encoding {self.module} takes no number, but {argument!r} was given.")
        self._argument: str = argument

    @property
    def module(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    @property
    def name(self) -> str:
        """As it was asked for, and as it is announced with each array."""
        return f"{self.module}:{self._argument}" if self._argument else self.module

    def unsuited(self, field: Field) -> str:
        """Why this field cannot travel so; nothing where it can."""
        if self.is_lossless:
            return ""
        if field.payload in (Payload.INDEX, Payload.COUNTS):
            return "numbers of classes or samples and counts must arrive as they are"
        if field.dtype not in ("float32", "float64"):
            return f"{field.dtype} is no type that it can shorten"
        return ""

    def num_bytes(self, shape: Shape, dtype: np.dtype[Any]) -> int | None:
        """How many bytes an array becomes; None where that depends on its values."""
        return prod(shape) * dtype.itemsize

    def encode(self, array: Array, draws: Draws) -> Buffer:
        """The bytes that travel. CodingError where a value has no place in them."""
        return as_bytes([array])

    def decode(self, data: Buffer, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """The inverse, of exactly `num_bytes` bytes where these are known. CodingError for anything that `encode`
        would not have made and that cannot be taken for an array."""
        return np.frombuffer(data, dtype).reshape(shape)


def decoded(encoding: Encoding, data: Buffer, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """`decode` after the check that all encodings share: nothing is allocated for a frame of another length."""
    expected = encoding.num_bytes(shape, dtype)
    if expected is not None and len(data) != expected:
        raise CodingError(f"needs {expected:,} bytes of {encoding.name} for its shape, but {len(data):,} came")
    return encoding.decode(data, shape, dtype)


def as_bytes(parts: Iterable[Array]) -> bytes:
    """One after the other, little-endian, row by row."""
    return b"".join(np.ascontiguousarray(part, part.dtype.newbyteorder("<")).tobytes() for part in parts)


def narrowed(array: Array, to: str, remedy: str) -> Array:
    """In a narrower floating-point type, to the nearest. CodingError for values beyond its range."""
    with np.errstate(over="ignore"):
        result = array.astype(to, copy=False)
    if num_beyond := int(result.size - np.isfinite(result).sum()):
        largest = float(np.finfo(to).max)
        beyond = f"holds {num_beyond} of {array.size} values beyond {largest:g}"
        raise CodingError(f"{beyond}, the largest {to}; {remedy}")
    return result
