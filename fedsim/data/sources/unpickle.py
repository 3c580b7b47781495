"""Reading arrays out of pickle files without running anything that the file says.

CIFAR's batches and PFLlib's client files are pickles. A pickle is a program, and the usual reader runs it.
This one knows three names, those by which numpy arrays are pickled, and answers them with stand-ins that only
keep what they are given; a file that names anything else is refused. Not even numpy's own reconstruction sees
the file: arrays are built here from type, shape and bytes, which numpy checks against each other.
"""

import pickle
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np


def read_pickle(file: IO[bytes]) -> Any:
    """Containers, numbers, strings and numpy arrays; anything else raises UnpicklingError."""
    # Python 2 wrote CIFAR: its strings may be pixels, so they are kept as bytes.
    return _resolve(_Unpickler(file, encoding="bytes").load())


def read_object_npz(path: Path, name: str) -> Any:
    """The single object of a 0-d object array in an .npz file, as `np.savez(path, name={...})` writes it."""
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, _, dtype = header[version](file)
        if shape != () or dtype != np.dtype(object):
            raise ValueError(f"{name} is an array of {dtype} and shape {shape}, not a single object")
        return read_pickle(file)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no array needs") from None


class _Dtype:
    """Stands in for numpy.dtype: a code such as "u1", and a byte order that comes later as state."""

    def __init__(self, code: str | bytes, align: bool, copy: bool):
        self.code = _text(code)
        self.order = "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = _text(state[1])
        if any(part is not None for part in state[2:5]):
            raise pickle.UnpicklingError("it holds an array of records")

    def real(self) -> np.dtype:
        dtype = np.dtype(self.order.replace("|", "=") + self.code)
        if dtype.kind not in "biufO":
            raise pickle.UnpicklingError(f"it holds an array of {dtype}")
        return dtype


class _Array:
    """Stands in for numpy.ndarray: made empty, filled by its state."""

    shape: tuple[int, ...]
    dtype: _Dtype
    fortran_order: bool
    content: Any

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.dtype, self.fortran_order, self.content = state

    def real(self) -> Any:
        dtype = self.dtype.real()
        if dtype.kind != "O":
            flat = np.frombuffer(self.content, dtype)
            return flat.reshape(self.shape, order="F" if self.fortran_order else "C")
        if self.shape != () or len(self.content) != 1:
            raise pickle.UnpicklingError(f"it holds an array of objects of shape {self.shape}")
        return _resolve(self.content[0])


def _reconstruct(kind: type, shape: tuple[int, ...], code: bytes) -> _Array:
    return _Array()


_ADMITTED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,  # numpy 1
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,  # numpy 2
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


def _text(value: str | bytes) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else value


def _resolve(value: Any) -> Any:
    """The same tree with real arrays. Python 2's keys become text."""
    match value:
        case _Array():
            return value.real()
        case dict():
            return {_text(key): _resolve(item) for key, item in value.items()}
        case list():
            # Lists of numbers are labels, tens of thousands of them; they hold no arrays.
            return value if value and isinstance(value[0], int) else [_resolve(item) for item in value]
        case tuple():
            return tuple(_resolve(item) for item in value)
    return value
