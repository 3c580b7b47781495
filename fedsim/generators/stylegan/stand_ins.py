"""What a snapshot is made of, as objects that only hold data.

The unpickler hands these out for the names in a file. A file can call them and can try to write to their
attributes; the first checks what it is given, the second does nothing.
"""

import math
from collections.abc import Callable
from reprlib import repr  # of a few levels and items: a file may hold objects whose full text never ends
from typing import Any

import numpy as np

PERSISTENCE_VERSION = 6
"""Of the official `torch_utils.persistence`; every published PyTorch snapshot has it."""
NUMBER_TYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


class Refused(Exception):
    """The reason, as the second half of a sentence about the file."""


class Unchangeable:
    """The BUILD opcode of a pickle writes to attributes, unless an object has its own way to take a state."""

    __slots__ = ()

    def __setstate__(self, state: object = None) -> None:
        pass


class Record(Unchangeable):
    """A network module: the name of its class and its attributes, exactly as in the file."""

    __slots__ = ("class_name", "state")

    def __init__(self, class_name: str, state: dict):
        self.class_name = class_name
        self.state = state


class Embedding(Record):
    """`torch.nn.Embedding`, which arrives empty (its `__init__` is not called) and gets its state afterwards."""

    __slots__ = ()

    def __new__(cls, *_: object) -> "Embedding":
        self = super().__new__(cls)
        self.class_name, self.state = "Embedding", {}
        return self

    def __init__(self, *_: object):
        pass

    def __setstate__(self, state: object = None) -> None:
        if not isinstance(state, dict):
            raise Refused("it holds an embedding without a state")
        self.state = state


class PlainDict(dict):
    """`OrderedDict` and `EasyDict`."""

    __slots__ = ()
    __setstate__ = Unchangeable.__setstate__


class LazyStorage(Unchangeable):
    """The bytes of a file that `torch.save` would write for one storage; not looked into here."""

    __slots__ = ("content",)

    def __init__(self, content: object):
        if not isinstance(content, bytes):
            raise Refused("it holds a tensor whose data are not bytes")
        self.content = content


class LazyTensor(Unchangeable):
    """A view of a storage."""

    __slots__ = ("offset", "size", "storage", "stride")

    def __init__(self, storage: object, offset: object, size: object, stride: object, *_: object):
        if not isinstance(storage, LazyStorage):
            raise Refused("it holds a tensor without data")
        for numbers in ((offset,), size, stride):
            _check_sizes(numbers)
        if len(size) != len(stride):
            raise Refused(f"it holds a tensor of size {repr(size)} with strides {repr(stride)}")
        self.storage, self.offset, self.size, self.stride = storage, offset, size, stride


class Dtype(Unchangeable):
    """A numpy number type: kind and size come first, the byte order by BUILD."""

    __slots__ = ("code", "order")

    def __init__(self, code: object, *_: object):
        if code not in NUMBER_TYPES:
            raise Refused(f"it holds numbers of the unknown type {repr(code)}")
        self.code, self.order = code, "<"

    def __setstate__(self, state: object = None) -> None:
        # (version, byte order, …)
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", "|", "=", ">"):
            raise Refused("it holds a number type without a byte order")
        self.order = state[1]

    def numbers(self, content: object, count: int) -> np.ndarray:
        dtype = np.dtype(self.order + self.code)
        if not isinstance(content, bytes) or len(content) != count * dtype.itemsize:
            raise Refused(f"it holds an array that is not {count} numbers of {dtype.itemsize} bytes")
        return np.frombuffer(content, dtype)


class Array(Unchangeable):
    """A numpy array; `values` is a nested list once the file has said what is in it."""

    __slots__ = ("values",)

    def __init__(self, *_: object):
        self.values: object = None

    def __setstate__(self, state: object = None) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise Refused("it holds an array of an unknown layout")
        _, shape, dtype, fortran_order, content = state
        self._fill(content, dtype, shape, "F" if fortran_order is True else "C")

    @classmethod
    def from_buffer(cls, content: object, dtype: object, shape: object, order: object) -> "Array":
        """As protocol 5 writes it: in one call."""
        self = cls()
        self._fill(content, dtype, shape, order)
        return self

    def _fill(self, content: object, dtype: object, shape: object, order: object) -> None:
        if not isinstance(dtype, Dtype) or order not in ("C", "F"):
            raise Refused("it holds an array of an unknown layout")
        _check_sizes(shape)
        self.values = dtype.numbers(content, math.prod(shape)).reshape(shape, order=order).tolist()


class ModuleName(Unchangeable):
    """A Python module that the file wants imported: only its name."""

    __slots__ = ("name",)

    def __init__(self, name: object):
        if not isinstance(name, str):
            raise Refused("it wants to import something without a name")
        self.name = name


class Inert(Unchangeable):
    """Stands for a thing that is not understood. Subclasses carry its name."""

    name = "?"

    def __new__(cls, *_: object, **__: object) -> "Inert":
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object):
        pass

    def __call__(self, *_: object, **__: object) -> "Inert":
        return self

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def append(self, item: object) -> None:
        pass

    extend = add = append


class Function(Unchangeable):
    """A function of ours, in a shell that a pickle can call but not write to."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]):
        self._call = call

    def __call__(self, *arguments: object) -> Any:
        return self._call(*arguments)


def _record(meta: object) -> Record:
    """One network module of the official programs; the source code beside the state is not looked at."""
    if not isinstance(meta, dict) or meta.get("type") != "class":
        raise Refused("it holds a network in an unknown layout")
    if meta.get("version") != PERSISTENCE_VERSION:
        version = repr(meta.get("version"))
        raise Refused(f"it has version {version} of the official format, only {PERSISTENCE_VERSION} is known")
    class_name, state = meta.get("class_name"), meta.get("state")
    if not isinstance(class_name, str) or not isinstance(state, dict):
        raise Refused("it holds a network without a class name or state")
    return Record(class_name, state)


def _scalar(dtype: object, content: object = None) -> float | int | bool:
    if not isinstance(dtype, Dtype):
        raise Refused("it holds a number without a type")
    return dtype.numbers(content, 1)[0].item()


def _encode(text: object, encoding: object = None) -> bytes:
    """Protocol 2 writes bytes as text."""
    if not isinstance(text, str) or encoding != "latin1":
        raise Refused("it holds bytes in an unknown encoding")
    return text.encode("latin1")


def _set(items: object = ()) -> set:
    if not isinstance(items, list | tuple):
        raise Refused("it holds a set of an unknown layout")
    return set(items)


def _check_sizes(numbers: object) -> None:
    if not isinstance(numbers, tuple) or not all(type(n) is int and 0 <= n < 2**48 for n in numbers):
        raise Refused(f"it holds an array with the sizes {repr(numbers)}")


KNOWN: dict[tuple[str, str], Any] = {
    ("torch_utils.persistence", "_reconstruct_persistent_obj"): Function(_record),
    ("torch._utils", "_rebuild_parameter"): Function(lambda tensor, *_: tensor),
    ("torch._utils", "_rebuild_tensor_v2"): Function(LazyTensor),
    ("torch.storage", "_load_from_bytes"): Function(LazyStorage),
    ("torch.nn.modules.sparse", "Embedding"): Embedding,
    ("collections", "OrderedDict"): PlainDict,
    ("dnnlib.util", "EasyDict"): PlainDict,
    ("dill._dill", "_import_module"): Function(ModuleName),
    ("numpy", "dtype"): Function(Dtype),
    ("numpy", "ndarray"): Array,
    ("builtins", "set"): Function(_set),
    ("__builtin__", "set"): Function(_set),
    ("_codecs", "encode"): Function(_encode),
}
"""(module, name) in a file -> what it gets."""
# numpy's constructors have lived in two packages, and dill names the compiled module inside each.
for _package in ("numpy.core", "numpy._core"):
    for _module in ("multiarray", "_multiarray_umath"):
        KNOWN[f"{_package}.{_module}", "scalar"] = Function(_scalar)
        KNOWN[f"{_package}.{_module}", "_reconstruct"] = Function(Array)
    KNOWN[f"{_package}.numeric", "_frombuffer"] = Function(Array.from_buffer)
