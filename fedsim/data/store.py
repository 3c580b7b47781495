"""One decoded copy of a data set, shared by all processes of a machine.

A data set is decoded once into memory-mapped `.npy` files in a cache folder. The folder's name holds a hash
of what the copy was made from, so a changed source is decoded anew. It is filled under a temporary name and
then renamed: a folder with the final name is always complete, whatever happened to the process that wrote it.

What own code computes may change without its file, so such a copy is named after its content: it is made anew by
every process that opens it first, while those forked from that process find it in `_COMPUTED`.
"""

import hashlib
import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedsim.data import sources
from fedsim.data.cache import cache_folder, locked
from fedsim.data.dataset import Dataset, fingerprint_of
from fedsim.data.sources.images import resize_all, shape_with_side
from fedsim.errors import UserError

FORMAT = 2
"""Raised whenever the same files would be decoded differently, so that older copies are not used."""

_COMPUTED: dict[str, Path] = {}
"""Key of a computed source -> its copy."""


@dataclass(frozen=True)
class Stored:
    """A mapped data set and what the partition must know of its source."""

    dataset: Dataset
    train_only: bool
    client_sizes: np.ndarray | None
    """(M, 2) where the source brings its own partition, see `sources.Decoded`."""
    groups: np.ndarray | None = None
    group_names: tuple[str, ...] = ()
    """Whose samples these are, where the source knows it."""


def open_dataset(
    name: str,
    data_dir: str = "",
    image_size: int = 0,
    label: str = "",
    wish: sources.Wish | None = None,
    shape: str = "",
) -> Stored:
    """Find the data set, decode it unless a current copy exists, and map that copy."""
    source = sources.locate(name, data_dir, image_size, label, wish)
    if shape:
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", shape):
            raise UserError(f"data.shape = {shape!r} is not valid; write 1x28x28 for images, 9x128 for signals.")
        sides = tuple(map(int, shape.split("x")))
        source = replace(source, shape=sides, settings=f"{source.settings}, shape {shape}")
    folder = cache_folder() / "decoded" / f"{source.name}-{key_of(source, image_size)}"
    if source.computed:
        if folder.name not in _COMPUTED or not _COMPUTED[folder.name].is_dir():
            with locked(folder.with_suffix(".lock")):
                _COMPUTED[folder.name] = _decode(source, image_size, folder)
        folder = _COMPUTED[folder.name]
    elif not folder.is_dir():
        # Of processes that start together one decodes; the others wait for the lock and find its work.
        with locked(folder.with_suffix(".lock")):
            if not folder.is_dir():
                _decode(source, image_size, folder)
    return _map(source, folder)


def key_of(source: sources.Source, image_size: int) -> str:
    """A hash of what the decoded copy depends on: format, settings, and name, size and time of every file."""
    digest = hashlib.sha256(f"{FORMAT}/{source.name}/{image_size}/{source.settings}".encode())
    for path in source.files:
        with sources.reading(path):
            status = path.stat()
        digest.update(f"/{path.absolute()}/{status.st_size}/{status.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _decode(source: sources.Source, image_size: int, folder: Path) -> Path:
    """Fill the folder; returns where the copy is, which for a computed one is a folder named after its content."""
    # Only the holder of the lock gets here, so what lies under this name was left by a process that died.
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        fingerprint = _fill(source, image_size, unfinished)
        if source.computed:
            folder = folder.with_name(f"{source.name}-{fingerprint}")
        if not folder.is_dir():
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _fill(source: sources.Source, image_size: int, folder: Path) -> str:
    def allocate(given: tuple[int, ...], dtype: type) -> np.ndarray:
        shape = _shaped(source, given)
        wanted = shape_with_side(shape, dtype, image_size) if image_size else shape
        if wanted is None:
            raise UserError(
                f"data.image_size = {image_size} resizes images, but a sample of {source.name} has the shape "
                f"{shape[1:]}; unset it."
            )
        # Images of another size are read into memory first, and resized into the file below.
        array = _new_file(source, folder, shape, dtype) if wanted == shape else np.empty(shape, dtype)
        return array.reshape(given)

    decoded = source.read(allocate)
    inputs = unsized = decoded.inputs.reshape(_shaped(source, decoded.inputs.shape))
    if not isinstance(inputs, np.memmap):
        shape = shape_with_side(inputs.shape, inputs.dtype.type, image_size)
        assert shape is not None  # or it would not have been allocated
        inputs = _new_file(source, folder, shape, inputs.dtype.type)
        resize_all(unsized, inputs)
    inputs.flush()
    _require_classes(decoded, source)
    np.save(folder / "labels.npy", decoded.labels, allow_pickle=False)
    for name in ("client_sizes", "groups"):
        if (array := getattr(decoded, name)) is not None:
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
    names = ("num_classes", "num_train", "class_names", "kind", "vocabulary")
    facts = {name: getattr(decoded, name) for name in names}
    fingerprint = fingerprint_of(Dataset(source.name, inputs, decoded.labels, **facts))
    facts |= {"known_fingerprint": fingerprint, "group_names": decoded.group_names}
    (folder / "facts.json").write_text(json.dumps(facts))
    return fingerprint


def _shaped(source: sources.Source, given: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the samples as the user wants it, who says what the numbers of a vector are."""
    if not source.shape:
        return given
    wanted, text = int(np.prod(source.shape)), "x".join(map(str, source.shape))
    if source.is_text or given[1:] != (wanted,):
        numbers = "words" if source.is_text else f"{given[1]} numbers"
        has = numbers if len(given) == 2 else f"the shape {given[1:]} already"
        raise UserError(
            f"data.shape = {text} is for samples of {wanted} numbers each, but a sample of {source.name} has "
            f"{has}; unset it or give another."
        )
    return given[0], *source.shape


def _new_file(source: sources.Source, folder: Path, shape: tuple[int, ...], dtype: type) -> np.memmap:
    wanted = int(np.prod(shape)) * np.dtype(dtype).itemsize
    free = shutil.disk_usage(folder).free
    if wanted > free:  # a mapped file on a full disk would end the process without a word
        raise UserError(
            f"{source.name} needs {wanted >> 20} MiB in {folder.parent} but {free >> 20} MiB are free; "
            "make room or set FEDSIM_CACHE to another folder."
        )
    return np.lib.format.open_memmap(folder / "inputs.npy", "w+", np.dtype(dtype), shape)


def _require_classes(decoded: sources.Decoded, source: sources.Source) -> None:
    if len(found := np.unique(decoded.labels)) < 2:
        names = decoded.class_names or list(map(str, range(decoded.num_classes)))
        only = f"all {len(decoded.labels)} samples are of class {names[found[0]]}" if len(found) else "it is empty"
        raise UserError(f"{source.name} has nothing to tell apart: {only}; give samples of two classes or more.")


def _map(source: sources.Source, folder: Path) -> Stored:
    # Copy-on-write: pages are shared by all processes, yet torch may wrap the arrays without a warning.
    inputs = np.load(folder / "inputs.npy", mmap_mode="c", allow_pickle=False)
    labels = np.load(folder / "labels.npy", mmap_mode="c", allow_pickle=False)
    facts = json.loads((folder / "facts.json").read_text())
    group_names = tuple(facts.pop("group_names", ()))  # copies of earlier versions have none

    def optional(name: str) -> np.ndarray | None:
        path = folder / f"{name}.npy"
        return np.load(path, allow_pickle=False) if path.is_file() else None

    dataset = Dataset(source.name, inputs, labels, **facts)
    return Stored(dataset, source.train_only, optional("client_sizes"), optional("groups"), group_names)
