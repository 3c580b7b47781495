"""Arrays in files that have no name: in memory where there is room, otherwise on disk.

What a client's process and an executor hand to each other lies in such files, and they travel as open descriptors.
A file is there as long as somebody holds it: whatever is killed, nothing is left behind. The layout is that of
safetensors, so that the copy of a state under a name is a checkpoint.
"""

import json
import math
import mmap
import os
import tempfile
from pathlib import Path

import numpy as np

from fedsim.contract import Arrays
from fedsim.errors import UserError
from nodes.launchers.processes import available_bytes

_NAMES = {
    np.dtype(numpy_name): name
    for name, numpy_name in {
        "F64": "<f8",
        "F32": "<f4",
        "F16": "<f2",
        "BOOL": "bool",
        "I64": "<i8",
        "I32": "<i4",
        "I16": "<i2",
        "I8": "i1",
        "U64": "<u8",
        "U32": "<u4",
        "U16": "<u2",
        "U8": "u1",
    }.items()
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_RESERVED_BYTES = 1 << 30
"""Of the free memory, what files leave to those who compute."""
_LENGTH_BYTES = 8


class Nameless:
    """A file with arrays in it. It is gone when the last process that holds it closes it or ends."""

    def __init__(self, descriptor: int):
        self.descriptor = descriptor

    @classmethod
    def of(cls, arrays: Arrays, folder: Path | None = None) -> "Nameless":
        """`folder` is where it lies when there is no room in memory; by default where temporary files lie."""
        size = sum(array.nbytes for array in arrays.values())
        in_memory = available_bytes() - size > _RESERVED_BYTES
        file = cls(_in_memory() if in_memory else _on_disk(folder or Path(tempfile.gettempdir())))
        try:
            _write(file.descriptor, arrays)
        except OSError as error:
            file.close()
            where = "memory" if in_memory else str(folder or tempfile.gettempdir())
            raise UserError(f"{size >> 20} MiB cannot be kept in {where}: {error.strerror}; make room.") from None
        return file

    @classmethod
    def opened(cls, path: Path) -> "Nameless":
        """A file that has a name, and may lose it meanwhile."""
        try:
            return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise UserError(f"the saved state {path} cannot be read: {error}.") from None

    def arrays(self) -> Arrays:
        """All arrays, as views that may be written to: nobody else sees that, and the file stays as it is."""
        mapped = mmap.mmap(self.descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        start = _LENGTH_BYTES + int.from_bytes(mapped[:_LENGTH_BYTES], "little")
        header = json.loads(mapped[_LENGTH_BYTES:start])
        return {
            name: np.ndarray(item["shape"], _DTYPES[item["dtype"]], mapped, offset=start + item["data_offsets"][0])
            for name, item in header.items()
            if name != "__metadata__"
        }

    def content(self) -> memoryview:
        """The whole file, to be copied."""
        return memoryview(mmap.mmap(self.descriptor, 0, prot=mmap.PROT_READ))

    def close(self) -> None:
        os.close(self.descriptor)


def _in_memory() -> int:
    return os.memfd_create("fedsim-arrays", os.MFD_CLOEXEC)


def _on_disk(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


def _write(descriptor: int, arrays: Arrays) -> None:
    header, end = {}, 0
    # The largest elements first, so that all are aligned.
    ordered = sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    for name, array in ordered:
        dtype = array.dtype.newbyteorder("<") if array.dtype.byteorder == ">" else array.dtype
        header[name] = {
            "dtype": _NAMES[dtype],
            "shape": list(array.shape),
            "data_offsets": [end, end + array.nbytes],
        }
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for name, array in ordered:
            little_endian = np.asarray(array, _DTYPES[str(header[name]["dtype"])], order="C")
            file.write(little_endian.reshape(math.prod(array.shape)).data.cast("B") if array.size else b"")
