"""Reads a network snapshot of the official StyleGAN programs without running anything from it.

A snapshot is a pickle, and a pickle is a small program: it may name any function of any installed package and
call it. This reader never looks such a name up. Every name in the file becomes an object of this module: one
that understands the few things a generator is made of, an `Inert` that swallows whatever is done to it (a
discriminator brings many foreign classes, and it lies before the generator in the file), or a refusal. So
nothing but the code below can run, whatever the file says; that holds also for the Python source that each
network carries, which is dropped unread.

Weights stay the raw bytes that they are (`LazyTensor`) until `storage.py` decodes those of the generator.
"""

import math
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fedsim.errors import UserError

PERSISTENCE_VERSION = 6
"""Of the official `torch_utils.persistence`; every published PyTorch snapshot has it."""

# Packages whose classes a discriminator legitimately brings along; its parts become `Inert`.
FOREIGN_PACKAGES = frozenset(
    "clip collections dill dnnlib feature_networks functools numpy pg_modules timm torch torch_utils torchvision "
    "training types".split()
)
# What the unpickler raises for bytes that are no pickle, or not a whole one.
DAMAGE = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
    RecursionError,
)


class Refused(Exception):
    """The reason, as the second half of a sentence about the file."""


class Unchangeable:
    """Objects that a pickle gets hold of: its BUILD opcode must not write to their attributes."""

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


@dataclass(frozen=True, slots=True)
class LazyStorage(Unchangeable):
    """The bytes of a file that `torch.save` would write for one storage; not looked into here."""

    content: bytes


@dataclass(frozen=True, slots=True)
class LazyTensor(Unchangeable):
    """A view of a storage."""

    storage: LazyStorage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Dtype(Unchangeable):
    """A numpy number type: kind and size come first, the byte order by BUILD."""

    __slots__ = ("code", "order")

    def __init__(self, code: str, *_: object):
        if not isinstance(code, str) or code not in {"b1", *(f"{k}{n}" for k in "iu" for n in (1, 2, 4, 8))} | {
            "f2",
            "f4",
            "f8",
        }:
            raise Refused(f"it holds numbers of the unknown type {code!r:.40}")
        self.code, self.order = code, "<"

    def __setstate__(self, state: object = None) -> None:
        # (version, byte order, …)
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", "|", "=", ">"):
            raise Refused("it holds a number type without a byte order")
        self.order = state[1]

    def numbers(self, content: object, count: int) -> np.ndarray:
        dtype = np.dtype(self.order + self.code)
        if not isinstance(content, bytes | bytearray) or len(content) != count * dtype.itemsize:
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


@dataclass(frozen=True, slots=True)
class ModuleName(Unchangeable):
    """A Python module that the file wants imported: only its name."""

    name: str


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
    """One of the functions below, in a shell that a pickle can call but not write to."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]):
        self._call = call

    def __call__(self, *arguments: object) -> Any:
        return self._call(*arguments)


class _Unpickler(pickle.Unpickler):
    """Names are resolved here and nowhere else; `super().find_class` is never called."""

    def __init__(self, file: BinaryIO):
        super().__init__(file)
        self._inert: dict[str, type[Inert]] = {}
        self._known = _KNOWN | {
            ("dill._dill", "_import_module"): Function(_import_module),
            ("dill._dill", "_get_attr"): Function(self._get_attribute),
        }

    def find_class(self, module: str, name: str) -> Any:
        known = self._known.get((module, name))
        if known is not None:
            return known
        if module.startswith("dnnlib.tflib"):
            raise Refused(
                "it is a TensorFlow snapshot of an older StyleGAN program, convert it with legacy.py of "
                "NVlabs/stylegan3 in an environment that you trust"
            )
        package = module.partition(".")[0]
        builtin_names = package in ("builtins", "__builtin__") and name == "__dict__"
        if package not in FOREIGN_PACKAGES and not builtin_names:
            raise Refused(f"it wants to use {module}.{name}, which has no place in a network, and was not allowed to")
        return self._inert_class(f"{module}.{name}")

    def _get_attribute(self, holder: object, name: object) -> Any:
        """dill's way to write numpy's functions: `getattr(import_module(…), name)`."""
        if isinstance(holder, ModuleName) and isinstance(name, str):
            return self.find_class(holder.name, name)
        return self._inert_class(f"an attribute {name!r:.40}")

    def _inert_class(self, name: str) -> type[Inert]:
        # One class for each name and each file, so that nothing outlives the reading.
        return self._inert.setdefault(name, type("Inert", (Inert,), {"name": name}))


def read_generator(path: Path) -> Record:
    """The averaged generator, `G_ema`, of a snapshot file."""
    with path.open("rb") as file:
        try:
            _check_beginning(file)
            snapshot = _Unpickler(file).load()
            if not isinstance(snapshot, dict):
                raise Refused(f"it holds {_describe(snapshot)} where a dictionary of networks belongs")
            if "G_ema" not in snapshot:
                raise Refused(f"it has no G_ema, only {', '.join(map(repr, snapshot)):.100}")
            generator = snapshot["G_ema"]
            if not isinstance(generator, Record):
                raise Refused(f"its G_ema is {_describe(generator)} where a network belongs")
            for inert in _inert_below(generator):
                raise Refused(f"its generator refers to {inert}, which this reader does not know")
            return generator
        except Refused as reason:
            raise refusal(path, str(reason)) from None
        except DAMAGE as error:
            size_bytes = path.stat().st_size
            raise refusal(
                path, f"its {size_bytes} bytes are damaged or incomplete, probably an interrupted download ({error})"
            ) from None


def refusal(path: Path, reason: str) -> UserError:
    return UserError(f"{path} is not a StyleGAN snapshot that can be used: {reason}; nothing in it was run.")


def _check_beginning(file: BinaryIO) -> None:
    start = file.read(64)
    file.seek(0)
    if not start:
        raise Refused("it is empty")
    if start.lstrip()[:1] == b"<":
        raise Refused("it is a web page, the download went wrong")
    if start.startswith(b"version https://git-lfs"):
        raise Refused("it is a Git LFS pointer, fetch the file itself with git lfs pull")
    if start.startswith(b"PK"):
        raise Refused("it is a zip archive, perhaps of torch.save, where a plain pickle belongs")


def _reconstruct_persistent_obj(meta: object) -> Record:
    """One network module of the official programs; the source code beside the state is not looked at."""
    if not isinstance(meta, dict) or meta.get("type") != "class":
        raise Refused("it holds a network in an unknown layout")
    if meta.get("version") != PERSISTENCE_VERSION:
        raise Refused(
            f"it has version {meta.get('version')!r:.40} of the official format, only {PERSISTENCE_VERSION} is known"
        )
    class_name, state = meta.get("class_name"), meta.get("state")
    if not isinstance(class_name, str) or not isinstance(state, dict):
        raise Refused("it holds a network without a class name or state")
    return Record(class_name, state)


def _rebuild_tensor(storage: object, offset: object, size: object, stride: object, *_: object) -> LazyTensor:
    if not isinstance(storage, LazyStorage):
        raise Refused("it holds a tensor without data")
    for numbers in ((offset,), size, stride):
        _check_sizes(numbers)
    if len(size) != len(stride):
        raise Refused(f"it holds a tensor of size {size} with strides {stride}")
    return LazyTensor(storage, offset, size, stride)


def _load_from_bytes(content: object) -> LazyStorage:
    if not isinstance(content, bytes):
        raise Refused("it holds a tensor whose data are not bytes")
    return LazyStorage(content)


def _scalar(dtype: object, content: object = None) -> float | int | bool:
    if not isinstance(dtype, Dtype):
        raise Refused("it holds a number without a type")
    return dtype.numbers(content, 1)[0].item()


def _import_module(name: object) -> ModuleName:
    if not isinstance(name, str):
        raise Refused("it wants to import something without a name")
    return ModuleName(name)


def _encode(text: object, encoding: object = None) -> bytes:
    """Protocol 2 writes bytes as text."""
    if not isinstance(text, str) or encoding != "latin1":
        raise Refused("it holds bytes in an unknown encoding")
    return text.encode("latin1")


def _set(items: object = ()) -> set:
    if not isinstance(items, list | tuple):
        raise Refused("it holds a set of an unknown layout")
    return set(items)


_KNOWN: dict[tuple[str, str], Any] = {
    ("torch_utils.persistence", "_reconstruct_persistent_obj"): Function(_reconstruct_persistent_obj),
    ("torch._utils", "_rebuild_parameter"): Function(lambda tensor, *_: tensor),
    ("torch._utils", "_rebuild_tensor_v2"): Function(_rebuild_tensor),
    ("torch.storage", "_load_from_bytes"): Function(_load_from_bytes),
    ("torch.nn.modules.sparse", "Embedding"): Embedding,
    ("collections", "OrderedDict"): PlainDict,
    ("dnnlib.util", "EasyDict"): PlainDict,
    ("numpy", "dtype"): Dtype,
    ("numpy", "ndarray"): Array,
    ("builtins", "set"): Function(_set),
    ("__builtin__", "set"): Function(_set),
    ("_codecs", "encode"): Function(_encode),
}
# numpy's constructors have lived in two packages, and dill names the compiled module inside each.
for _package in ("numpy.core", "numpy._core"):
    for _module in ("multiarray", "_multiarray_umath"):
        _KNOWN[f"{_package}.{_module}", "scalar"] = Function(_scalar)
        _KNOWN[f"{_package}.{_module}", "_reconstruct"] = Function(Array)
    _KNOWN[f"{_package}.numeric", "_frombuffer"] = Function(Array.from_buffer)


def _check_sizes(numbers: object) -> None:
    if not isinstance(numbers, tuple) or not all(type(n) is int and 0 <= n < 2**48 for n in numbers):
        raise Refused(f"it holds an array with the sizes {numbers!r:.80}")


def _describe(thing: object) -> str:
    if isinstance(thing, Inert) or (isinstance(thing, type) and issubclass(thing, Inert)):
        return thing.name
    return f"a {type(thing).__name__}"


def _inert_below(generator: Record) -> Iterator[str]:
    """Names of the foreign things inside; constructor arguments are left out, since nothing reads them."""
    seen: set[int] = set()
    waiting: list[object] = [generator]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        match thing:
            case Inert():
                yield thing.name
            case type():
                yield getattr(thing, "name", thing.__name__)
            case Record():
                waiting += (value for key, value in thing.state.items() if key not in ("_init_args", "_init_kwargs"))
            case dict():
                waiting += thing.keys()
                waiting += thing.values()
            case list() | tuple() | set() | frozenset():
                waiting += thing
