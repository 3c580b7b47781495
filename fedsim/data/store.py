"""One decoded copy of a data set, shared by all processes of a machine.

A data set is decoded once into memory-mapped `.npy` files in a cache folder. The folder's name holds a hash
of what the copy was made from, so a changed source is decoded anew. It is filled under a temporary name and
then renamed: a folder with the final name is always complete, whatever happened to the process that wrote it.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsim.data import sources
from fedsim.data.cache import cache_folder, locked
from fedsim.data.dataset import Dataset
from fedsim.errors import UserError

FORMAT = 1
"""Raised whenever the same files would be decoded differently, so that older copies are not used."""


@dataclass(frozen=True)
class Stored:
    """A mapped data set and what the partition must know of its source."""

    dataset: Dataset
    train_only: bool
    client_sizes: np.ndarray | None
    """(M, 2) where the source brings its own partition, see `sources.Decoded`."""


def open_dataset(name: str, data_dir: str = "", image_size: int = 0) -> Stored:
    """Find the data set, decode it unless a current copy exists, and map that copy."""
    source = sources.locate(name, data_dir, image_size)
    folder = cache_folder() / "decoded" / f"{source.name}-{fingerprint(source)}"
    if not folder.is_dir():
        # Of processes that start together one decodes; the others wait for the lock and find its work.
        with locked(folder.with_suffix(".lock")):
            if not folder.is_dir():
                _decode(source, folder)
    return _map(source, folder)


def fingerprint(source: sources.Source) -> str:
    """A hash of what the decoded copy depends on: format, settings, and name, size and time of every file."""
    digest = hashlib.sha256(f"{FORMAT}/{source.name}/{source.settings}".encode())
    for path in source.files:
        with sources.reading(path):
            status = path.stat()
        digest.update(f"/{path.absolute()}/{status.st_size}/{status.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _decode(source: sources.Source, folder: Path) -> None:
    # Only the holder of the lock gets here, so what lies under this name was left by a process that died.
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        _fill(source, unfinished)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _fill(source: sources.Source, folder: Path) -> None:
    def allocate(shape: tuple[int, ...], dtype: type) -> np.ndarray:
        wanted = int(np.prod(shape)) * np.dtype(dtype).itemsize
        free = shutil.disk_usage(folder).free
        if wanted > free:  # a mapped file on a full disk would end the process without a word
            raise UserError(
                f"{source.name} needs {wanted >> 20} MiB in {folder.parent} but {free >> 20} MiB are free; "
                "make room or set FEDSIM_CACHE to another folder."
            )
        return np.lib.format.open_memmap(folder / "inputs.npy", "w+", np.dtype(dtype), shape)

    decoded = source.read(allocate)
    if isinstance(decoded.inputs, np.memmap):
        decoded.inputs.flush()
    np.save(folder / "labels.npy", decoded.labels, allow_pickle=False)
    if decoded.client_sizes is not None:
        np.save(folder / "client_sizes.npy", decoded.client_sizes, allow_pickle=False)
    sizes = {"num_classes": decoded.num_classes, "num_train": decoded.num_train}
    (folder / "sizes.json").write_text(json.dumps(sizes))


def _map(source: sources.Source, folder: Path) -> Stored:
    # Copy-on-write: pages are shared by all processes, yet torch may wrap the arrays without a warning.
    inputs = np.load(folder / "inputs.npy", mmap_mode="c", allow_pickle=False)
    labels = np.load(folder / "labels.npy", mmap_mode="c", allow_pickle=False)
    sizes = json.loads((folder / "sizes.json").read_text())
    clients = folder / "client_sizes.npy"
    client_sizes = np.load(clients, allow_pickle=False) if clients.is_file() else None
    return Stored(Dataset(source.name, inputs, labels, **sizes), source.train_only, client_sizes)
