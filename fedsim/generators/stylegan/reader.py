"""Reads a network snapshot of the official StyleGAN programs without running anything from it.

A snapshot is a pickle, and a pickle is a small program: it may name any function of any installed package and
call it. This reader never looks such a name up. Every name becomes an object of `stand_ins.py`: one that
understands the few things a generator is made of, or an `Inert` that swallows whatever is done to it (a
discriminator brings many foreign classes, and it lies before the generator in the file); any other name is
refused. So nothing but code of this package can run, whatever the file says. That holds also for the Python
source that each network carries, which is dropped unread.

Weights stay the raw bytes that they are until `storage.py` decodes those of the generator.
"""

import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from reprlib import repr
from typing import Any, BinaryIO

from fedsim.errors import UserError
from fedsim.generators.stylegan.stand_ins import KNOWN, Function, Inert, ModuleName, Record, Refused

# Packages whose classes a discriminator legitimately brings along; its parts become `Inert`.
FOREIGN_PACKAGES = (
    *("clip", "dnnlib", "feature_networks", "pg_modules", "timm", "torch", "torch_utils", "torchvision"),
    *("collections", "dill", "functools", "numpy", "training", "types"),
)
# What the unpickler raises for bytes that are no pickle, or not a whole one.
DAMAGE = (
    *(pickle.UnpicklingError, struct.error, EOFError, ValueError, LookupError, TypeError, AttributeError),
    *(OverflowError, MemoryError, RecursionError, AssertionError),
)


class _Unpickler(pickle._Unpickler):
    """Names are resolved here and nowhere else; `super().find_class` is never called.

    This is the unpickler written in Python: the one in C allocates as much memory as a damaged index says.
    Almost all of a snapshot is a few hundred long byte strings, so it is no slower.
    """

    def __init__(self, file: BinaryIO):
        super().__init__(file)
        self._inert: dict[str, type[Inert]] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("dill._dill", "_get_attr"):
            return Function(self._get_attribute)
        if (module, name) in KNOWN:
            return KNOWN[module, name]
        if module.startswith("dnnlib.tflib"):
            raise Refused(
                "it is a TensorFlow snapshot of an older StyleGAN program, convert it with legacy.py of "
                "NVlabs/stylegan3 in an environment that you trust"
            )
        package = module.partition(".")[0]
        builtin_names = package in ("builtins", "__builtin__") and name == "__dict__"
        if package not in FOREIGN_PACKAGES and not builtin_names:
            raise Refused(f"it wants to use {module}.{name}, which has no place in a network")
        return self._inert_class(f"{module}.{name}")

    def get_extension(self, code: int) -> None:
        """Numbers for names that other code of this process may have registered."""
        raise Refused(f"it uses the name registered under {code}, which has no place in a network")

    def _load_byte_array(self) -> None:
        """The original makes an array of the length that the file claims before it reads."""
        (length,) = struct.unpack("<Q", self.read(8))
        self.append(self.read(length))

    dispatch = pickle._Unpickler.dispatch | {pickle.BYTEARRAY8[0]: _load_byte_array}

    def _get_attribute(self, holder: object, name: object) -> Any:
        """dill's way to write numpy's functions: `getattr(import_module(…), name)`."""
        if isinstance(holder, ModuleName) and isinstance(name, str):
            return self.find_class(holder.name, name)
        return self._inert_class(f"an attribute {repr(name)}")

    def _inert_class(self, name: str) -> type[Inert]:
        # One class for each name and each file, so that nothing outlives the reading.
        return self._inert.setdefault(name, type("Inert", (Inert,), {"name": name}))


def read_generator(path: Path) -> Record:
    """The averaged generator, `G_ema`, of a snapshot file."""
    with path.open("rb") as file:
        try:
            _check_beginning(file)
            return _generator_of(_Unpickler(file).load())
        except Refused as reason:
            raise refusal(path, str(reason)) from None
        except DAMAGE as error:
            damage = f"its {path.stat().st_size} bytes are damaged or incomplete ({error})"
            raise refusal(path, f"{damage}, probably an interrupted download") from None


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


def _generator_of(snapshot: object) -> Record:
    if not isinstance(snapshot, dict):
        raise Refused(f"it holds {_describe(snapshot)} where a dictionary of networks belongs")
    if "G_ema" not in snapshot:
        raise Refused(f"it has no G_ema, only {repr(list(snapshot))}")
    generator = snapshot["G_ema"]
    if not isinstance(generator, Record):
        raise Refused(f"its G_ema is {_describe(generator)} where a network belongs")
    for name in _inert_below(generator):
        raise Refused(f"its generator refers to {name}, which this reader does not know")
    return generator


def _describe(thing: object) -> str:
    return thing.name if isinstance(thing, Inert) else f"a {type(thing).__name__}"


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
                waiting += (thing.state[key] for key in thing.state if key not in ("_init_args", "_init_kwargs"))
            case dict():
                waiting += thing.keys()
                waiting += thing.values()
            case list() | tuple() | set() | frozenset():
                waiting += thing
