"""topk: of each row the numbers of the largest magnitude and where they stand; all others arrive as zeros.

`topk` keeps a tenth of a row, `topk:0.02` a fiftieth, `topk:5` five numbers; at least one. The order of a row's
numbers is kept, but for those that become equal. The frame holds all values, row by row, then all positions in
ascending order: one byte each in rows of up to 256 numbers, two in rows of up to 65,536, else four. Of equal
magnitudes the first are kept.
"""

from math import prod
from typing import Any

import numpy as np

from fedsim.contract import Field, Payload
from fedsim.encodings import base
from fedsim.encodings.base import Array, Buffer, Draws, Shape, as_bytes
from fedsim.errors import CodingError, UserError

DEFAULT_SHARE = 0.1
LEAST_SHARE = 0.001


class Encoding(base.Encoding):
    def __init__(self, argument: str = ""):
        super().__init__()
        self._argument = argument
        self._kept = _number(argument) if argument else DEFAULT_SHARE

    def unsuited(self, field: Field) -> str:
        if reason := super().unsuited(field):
            return reason
        if field.payload is Payload.PARAMETERS:
            return "weights do not survive that most of them arrive as zeros"
        if len(field.words) < 2:
            return f"an array of the shape ({field.shape}) has no rows of which it could keep a part"
        return ""

    def num_kept(self, num_columns: int) -> int:
        """Of a row."""
        wanted = self._kept if self._kept >= 1 else self._kept * num_columns
        return min(max(1, round(wanted)), num_columns)

    def num_bytes(self, shape: Shape, dtype: np.dtype[Any]) -> int:
        num_columns = prod(shape[1:])
        size = dtype.itemsize + _position_type(num_columns).itemsize
        return shape[0] * self.num_kept(num_columns) * size

    def encode(self, array: Array, draws: Draws) -> Buffer:
        num_columns = prod(array.shape[1:])
        kept = self.num_kept(num_columns)
        rows_RW = array.reshape(array.shape[0], num_columns)
        if not rows_RW.size:
            return b""
        magnitudes_RW = np.abs(rows_RW)
        # The k-th largest value is the same however it is found, and of equal ones the first are kept.
        least_R1 = np.partition(magnitudes_RW, num_columns - kept, axis=1)[:, num_columns - kept, None]
        larger_RW, equal_RW = magnitudes_RW > least_R1, magnitudes_RW == least_R1
        missing_R1 = kept - larger_RW.sum(axis=1, keepdims=True)
        chosen_RW = larger_RW | (equal_RW & (np.cumsum(equal_RW, axis=1) <= missing_R1))
        positions = np.nonzero(chosen_RW)[1].astype(_position_type(num_columns))
        return as_bytes([rows_RW[chosen_RW], positions])

    def decode(self, data: Buffer, shape: Shape, dtype: np.dtype[Any]) -> Array:
        num_columns = prod(shape[1:])
        kept = self.num_kept(num_columns)
        result_RW = np.zeros((shape[0], num_columns), dtype)
        if not result_RW.size:
            return result_RW.reshape(shape)
        num_values = shape[0] * kept
        values_Rk = np.frombuffer(data, dtype, num_values).reshape(-1, kept)
        positions = np.frombuffer(data, _position_type(num_columns), offset=num_values * dtype.itemsize)
        positions_Rk = positions.astype(np.int64).reshape(-1, kept)
        if not (positions_Rk[:, 1:] > positions_Rk[:, :-1]).all() or (positions_Rk[:, -1] >= num_columns).any():
            raise CodingError(f"has positions that are not ascending numbers below {num_columns}")
        np.put_along_axis(result_RW, positions_Rk, values_Rk, axis=1)
        return result_RW.reshape(shape)


def _position_type(num_columns: int) -> np.dtype[Any]:
    return np.dtype("u1" if num_columns <= 1 << 8 else "<u2" if num_columns <= 1 << 16 else "<u4")


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if LEAST_SHARE <= number < 1 or (number >= 1 and number == int(min(number, 1 << 31))):
        return number
    raise UserError(
        f"topk:{text} is not valid: give the share of a row that is kept, at least {LEAST_SHARE} and below 1, or "
        "how many values are."
    )
