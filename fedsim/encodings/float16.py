"""float16: half precision, to the nearest. Eleven significant bits, and nothing beyond 65,504."""

from typing import Any

import numpy as np

from fedsim.encodings import base
from fedsim.encodings.base import Array, Buffer, Draws, Shape, as_bytes, narrowed


class Encoding(base.Encoding):
    def num_bytes(self, shape: Shape, dtype: np.dtype[Any]) -> int:
        return int(np.prod(shape, dtype=np.int64)) * 2

    def encode(self, array: Array, draws: Draws) -> Buffer:
        return as_bytes([narrowed(array, "float16", "use bfloat16 or int8")])

    def decode(self, data: Buffer, shape: Shape, dtype: np.dtype[Any]) -> Array:
        return np.frombuffer(data, "<f2").astype(dtype).reshape(shape)
