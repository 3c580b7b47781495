"""Data sets of Hugging Face (extra `hf`): `hf:NAME`, `hf:NAME:CONFIGURATION`, or `hf:PATH` for what is here.

A path is a folder written by `save_to_disk`, a folder of files that `datasets` understands, or one such file. What
is read is the column of images, the one column of arrays, or all columns of numbers as a table.
"""

import importlib
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.data.sources import tables
from fedsim.data.sources.arrays import Part, Told, assemble
from fedsim.data.sources.base import Allocate, Decoded, Source
from fedsim.data.sources.functions import read_samples
from fedsim.errors import UserError

PREFIX = "hf:"
_TEST = ("test", "validation", "valid", "val")
_SAVED = ("dataset_dict.json", "state.json")
_FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".arrow": "arrow"}
_NUMBERS = ("int", "uint", "float", "bool")


@lru_cache(maxsize=4)
def find(text: str, label: str = "", side: int = 0) -> Source:
    """Opened once in a process and those forked from it; what was decoded before is known by its fingerprint."""
    parts = _split(_load(text.removeprefix(PREFIX)), text)
    settings = f"label {label} {' '.join(str(part._fingerprint) for part in parts)}"
    name = Path(text.removeprefix(PREFIX)).name.replace(":", "-")
    return Source(partial(read, parts, text, label, side), (), settings, name=name, has_columns=True)


def read(parts: list[Any], where: str, label: str, side: int, allocate: Allocate) -> Decoded:
    features = parts[0].features
    label = _label_column(features, label, where)
    names = tuple(getattr(features[label], "names", None) or ())
    kinds = {column: _kind(feature) for column, feature in features.items() if column != label}
    for kind, read_part in (("images", _read_images), ("arrays", _read_arrays)):
        columns = [column for column, own in kinds.items() if own == kind]
        if len(columns) > 1:
            raise UserError(
                f"{where} has several columns of {kind}, {', '.join(columns)}; keep the one to learn from."
            )
        if columns:
            made = [read_part(part, columns[0], label, where, side) for part in parts]
            return assemble(made, where, allocate, told=Told(class_names=names))
    frames = [part.to_pandas() for part in parts]
    return assemble(tables.parts_of(frames, label, where), where, allocate, told=Told(class_names=names))


def _load(name: str) -> Any:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise UserError(
            f"{PREFIX}{name} needs Hugging Face's datasets; run: pip install 'fedsim-htfl[hf]'"
        ) from error
    path = Path(name).expanduser()
    if not path.exists() and name.startswith((".", "/", "~")):
        raise UserError(
            f"there is no file or folder {path.resolve()}; give one that exists, or a name as in hf:mnist."
        )
    try:
        if any((path / saved).is_file() for saved in _SAVED):
            return datasets.load_from_disk(str(path))
        if path.is_dir():
            return datasets.load_dataset(str(path))
        if path.is_file():
            return datasets.load_dataset(_FORMATS.get(path.suffix, path.suffix[1:]), data_files=str(path))
        return datasets.load_dataset(*name.split(":", 1))
    except Exception as error:  # pyarrow, the hub and the file formats have no common way to say it
        reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        raise UserError(
            f"{PREFIX}{name} cannot be loaded ({reason}); check the name, or give the path of a copy."
        ) from error


def _split(loaded: Any, where: str) -> list[Any]:
    """The training and the test set, or all there is."""
    if not isinstance(loaded, Mapping):
        return [loaded]
    if len(loaded) == 1:
        return list(loaded.values())
    test = next((loaded[name] for name in _TEST if name in loaded), None)
    if "train" not in loaded or test is None:
        raise UserError(
            f"{where} has the parts {', '.join(loaded)}; it needs one called train and one called test."
        )
    return [loaded["train"], test]


def _label_column(features: Mapping[str, Any], label: str, where: str) -> str:
    """The one asked for, the one declared as classes, or as in any other table."""
    declared = [column for column, feature in features.items() if hasattr(feature, "names")]
    if not label and len(declared) == 1:
        return declared[0]
    return tables.label_column(list(features), label, where)


def _kind(feature: Any) -> str:
    """What a column holds, by the name of its type: datasets need not be imported for it."""
    name = type(feature).__name__
    if name == "Image":
        return "images"
    if name in ("Sequence", "LargeList", "List") or name.startswith("Array"):
        return "arrays"
    return "numbers" if str(getattr(feature, "dtype", "")).startswith(_NUMBERS) else "text"


class _Rows:
    """Two columns as samples."""

    def __init__(self, part: Any, column: str, label: str):
        self._part, self._column, self._label = part.select_columns([column, label]), column, label

    def __len__(self) -> int:
        return len(self._part)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        sample = self._part[row]
        return sample[self._column], sample[self._label]


def _read_images(part: Any, column: str, label: str, where: str, side: int) -> Part:
    return read_samples(_Rows(part, column, label), where, side)


def _read_arrays(part: Any, column: str, label: str, where: str, side: int) -> Part:
    made = part.with_format("numpy", columns=[column])[:][column]
    if made.dtype == object:
        raise UserError(f"the arrays in {column} of {where} have different lengths; make them alike.")
    return np.asarray(made), np.asarray(part.with_format(None)[label])
