"""Decodes the bytes of one weight, as `torch.save` wrote them before it used zip archives.

Five small pickles (a magic number, a protocol number, facts about the machine, the description of one storage,
the list of its key), then the number of elements and the elements. `torch.load` would do it, but the pickles
come from the file; here they may name nothing but the type of the storage.
"""

import io
import pickle
import struct
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from fedsim.generators.stylegan.reader import DAMAGE
from fedsim.generators.stylegan.stand_ins import LazyTensor, Refused

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
# The values are plain text, on which a pickle can neither call nor change anything.
STORAGE_TYPES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "<i1",
    "ByteStorage": "<u1",
    "BoolStorage": "?",
}


class _Unpickler(pickle._Unpickler):
    """In Python, as that of the reader."""

    def find_class(self, module: str, name: str) -> str:
        if module != "torch" or name not in STORAGE_TYPES:
            raise Refused(f"wants to use {module}.{name} in place of numbers")
        return STORAGE_TYPES[name]

    def persistent_load(self, pid: object) -> object:
        return pid  # ('storage', type, key, device it was on, number of elements, None)


def decode(tensor: LazyTensor) -> Tensor:
    """The tensor in single precision, contiguous, with memory of its own."""
    try:
        elements = _elements(tensor.storage.content)
    except DAMAGE as error:
        raise Refused(f"has damaged data ({error})") from None
    last = tensor.offset + sum((n - 1) * step for n, step in zip(tensor.size, tensor.stride, strict=True))
    if 0 not in tensor.size and last >= len(elements):
        raise Refused(f"needs {last + 1} numbers but its data have {len(elements)}")
    whole = torch.from_numpy(elements.astype(np.float32))  # a copy: the bytes themselves cannot be written to
    return whole.as_strided(tensor.size, tensor.stride, tensor.offset).contiguous()


def _elements(content: bytes) -> np.ndarray:
    file = io.BytesIO(content)
    magic, protocol, machine, description, keys = (_Unpickler(file).load() for _ in range(5))
    if magic != MAGIC or protocol != PROTOCOL:
        _unknown("begins with other numbers")
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        _unknown("was written by a machine of another byte order")
    match description:
        case ("storage", str() as dtype, str() as key, _, int() as count, None) if keys == [key]:
            pass
        case _:
            _unknown("does not describe one storage")
    start = file.tell() + 8
    if content[start - 8 : start] != struct.pack("<q", count):
        _unknown("gives two numbers of elements")
    if len(content) - start != count * np.dtype(dtype).itemsize:
        _unknown(f"has {len(content) - start} bytes for {count} numbers")
    return np.frombuffer(content, dtype, offset=start)


def _unknown(reason: str) -> NoReturn:
    raise Refused(f"has data in an unknown layout, which {reason}")
