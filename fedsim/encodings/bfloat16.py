"""bfloat16: the upper half of a float32, to the nearest. Eight significant bits, and nearly float32's range."""

from typing import Any

import numpy as np

from fedsim.encodings import base
from fedsim.encodings.base import Array, Buffer, Draws, Shape, as_bytes, narrowed
from fedsim.errors import CodingError

_INFINITE = np.uint16(0x7F80)


class Encoding(base.Encoding):
    def num_bytes(self, shape: Shape, dtype: np.dtype[Any]) -> int:
        return int(np.prod(shape, dtype=np.int64)) * 2

    def encode(self, array: Array, draws: Draws) -> Buffer:
        bits = np.ascontiguousarray(narrowed(array, "float32", "use plain")).view(np.uint32)
        # To the nearest, and of two that are as near to the even one.
        upper = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        if num_beyond := int(((upper & _INFINITE) == _INFINITE).sum()):
            raise CodingError(
                f"holds {num_beyond} of {array.size} values beyond 3.38953e+38, the largest bfloat16; use plain"
            )
        return as_bytes([upper])

    def decode(self, data: Buffer, shape: Shape, dtype: np.dtype[Any]) -> Array:
        bits = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        return bits.view(np.float32).astype(dtype, copy=False).reshape(shape)
