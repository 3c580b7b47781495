"""zstd: lossless compression of the array's bytes, or of what another encoding made: `int8+zstd`.

What it saves depends on the values, so it has no formula and is only measured. Before it, numbers of several bytes
are taken apart into planes (all first bytes, then all second ones): exponents are alike, and side by side they
compress. The frame must say how many bytes it holds, and these must be what the announced shape needs; nothing is
allocated for any other. The package `zstandard` is an extra: Python's own library has zstd only from 3.14 on.
"""

from types import ModuleType
from typing import Any

import numpy as np

from fedsim.contract import Field
from fedsim.encodings import base
from fedsim.encodings.base import Array, Buffer, Draws, Shape, decoded
from fedsim.errors import CodingError, UserError

LEVEL = 3


class Encoding(base.Encoding):
    on_top = True

    def __init__(self, argument: str = "", inner: base.Encoding | None = None):
        super().__init__(argument)
        self._inner = inner or base.Encoding()
        self._is_alone = inner is None
        self.is_lossless = self._is_alone or self._inner.is_lossless
        self._library = _library()

    @property
    def name(self) -> str:
        return self.module if self._is_alone else f"{self._inner.name}+{self.module}"

    def unsuited(self, field: Field) -> str:
        return "" if self._is_alone else self._inner.unsuited(field)

    def num_bytes(self, shape: Shape, dtype: np.dtype[Any]) -> None:
        return None

    def encode(self, array: Array, draws: Draws) -> Buffer:
        data = self._inner.encode(array, draws)
        planes = np.frombuffer(data, np.uint8).reshape(-1, self._width(array.shape, array.dtype)).T
        # The header says how many bytes it holds, and no checksum: TCP has one.
        compressor = self._library.ZstdCompressor(level=LEVEL, write_content_size=True)
        return bytes(compressor.compress(np.ascontiguousarray(planes)))

    def decode(self, data: Buffer, shape: Shape, dtype: np.dtype[Any]) -> Array:
        expected, zstandard = self._inner.num_bytes(shape, dtype), self._library
        try:
            announced = zstandard.get_frame_parameters(data).content_size
            if announced != expected:
                raise CodingError(f"needs {expected:,} bytes for its shape, its zstd frame holds {announced:,}")
            planes = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False) if expected else b""
        except zstandard.ZstdError as error:
            raise CodingError(f"is no zstd frame: {error}") from None
        rows = np.frombuffer(planes, np.uint8).reshape(self._width(shape, dtype), -1).T
        return decoded(self._inner, np.ascontiguousarray(rows).data.cast("B") if expected else b"", shape, dtype)

    def _width(self, shape: Shape, dtype: np.dtype[Any]) -> int:
        """Bytes of a number where all that is sent are numbers of one type, else 1."""
        size, num_bytes = int(np.prod(shape, dtype=np.int64)), self._inner.num_bytes(shape, dtype) or 0
        return num_bytes // size if size and num_bytes and num_bytes % size == 0 else 1


def _library() -> ModuleType:
    try:
        import zstandard
    except ImportError:
        raise UserError(
            "the encoding zstd needs the package zstandard, which is not installed here; "
            "pip install 'fedsim-htfl[zstd]', or leave zstd out."
        ) from None
    return zstandard
