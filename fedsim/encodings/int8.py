"""int8: a byte for each number, and for each row its largest magnitude as float32.

Rounded at random, so that what is lost has the mean zero:

    t = 127 · x / m,  m = max |x| of the row;   q = ⌊t⌋ + 1 with probability t − ⌊t⌋, else ⌊t⌋;   x̂ = m · (q / 127)

The frame holds all m, then all q. Arrays of rank 1 (weights, margins) are cut into rows of 1,024 numbers. A row of
zeros has m = 0 and arrives as zeros; x = ± m arrives as it is.
"""

from collections.abc import Iterator
from math import ceil
from typing import Any

import numpy as np

from fedsim.encodings import base
from fedsim.encodings.base import Array, Buffer, Draws, Shape, as_bytes, narrowed

LEVELS = 127
ROW_OF_A_VECTOR = 1024
_CHUNK = 1 << 17
"""Numbers that are worked on at once: what a core's cache holds."""


class Encoding(base.Encoding):
    def num_bytes(self, shape: Shape, dtype: np.dtype[Any]) -> int:
        num_rows, num_columns = _rows(shape)
        size = int(np.prod(shape, dtype=np.int64))
        return (num_rows if num_columns else 0) * 4 + size

    def encode(self, array: Array, draws: Draws) -> Buffer:
        values, generator = narrowed(array, "float32", "use plain"), draws()
        maxima, levels = [], []
        for chunk_RW in _chunks(values):
            maxima_R = np.maximum(chunk_RW.max(axis=1), -chunk_RW.min(axis=1))
            scaled_RW = chunk_RW / np.where(maxima_R > 0, maxima_R, np.float32(1))[:, None]
            scaled_RW *= np.float32(LEVELS)
            below_RW = np.floor(scaled_RW)
            # The fraction is exact, so whole numbers, among them all extremes, are never moved.
            scaled_RW -= below_RW
            below_RW += generator.random(chunk_RW.shape, np.float32) < scaled_RW
            maxima.append(maxima_R)
            levels.append(below_RW.astype(np.int8).reshape(-1))
        return as_bytes([*maxima, *levels])

    def decode(self, data: Buffer, shape: Shape, dtype: np.dtype[Any]) -> Array:
        result = np.empty(shape, np.float32)
        if not result.size:
            return result.astype(dtype)
        num_rows = _rows(shape)[0]
        maxima = np.frombuffer(data, "<f4", num_rows)
        levels = np.frombuffer(data, np.int8, offset=num_rows * 4)
        row = position = 0
        with np.errstate(over="ignore", invalid="ignore"):  # of what a hostile peer calls a maximum
            for chunk_RW in _chunks(result):
                rows, size = len(chunk_RW), chunk_RW.size
                np.divide(
                    levels[position : position + size].reshape(chunk_RW.shape), np.float32(LEVELS), out=chunk_RW
                )
                chunk_RW *= maxima[row : row + rows, None]
                row, position = row + rows, position + size
        return result.astype(dtype, copy=False)


def _rows(shape: Shape) -> tuple[int, int]:
    """R and W; the last row of a vector may be shorter."""
    size = int(np.prod(shape, dtype=np.int64))
    if len(shape) >= 2:
        return shape[0], size // shape[0] if shape[0] else 0
    return ceil(size / ROW_OF_A_VECTOR), min(size, ROW_OF_A_VECTOR)


def _chunks(values: Array) -> Iterator[Array]:
    """All rows as (R, W), views of the array, some at a time."""
    flat, (num_rows, width) = values.reshape(-1), _rows(values.shape)
    if not flat.size:
        return
    whole = flat.size // width
    rows_RW = flat[: whole * width].reshape(whole, width)
    step = max(1, _CHUNK // width)
    yield from (rows_RW[start : start + step] for start in range(0, whole, step))
    if whole < num_rows:
        yield flat[whole * width :].reshape(1, -1)
