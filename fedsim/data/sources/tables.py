"""Tables with a column of classes: a .csv file, or a folder with train.csv and test.csv. The other columns are
numbers, or one of them holds texts."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsim.data.sources import texts
from fedsim.data.sources.arrays import Part, Told, assemble, number_classes, number_groups
from fedsim.data.sources.base import Allocate, Decoded, Source, Wish, reading
from fedsim.errors import UnknownName, UserError

if TYPE_CHECKING:
    from pandas import DataFrame

LABEL_COLUMNS = ("label", "target", "class", "y")
"""Where no column is named, the first of these is taken, in any case; without any of them, the last column."""
_PARTS = ("train.csv", "test.csv")


def find(path: Path, label: str = "", wish: Wish | None = None) -> Source | None:
    return _source((path,), label, wish or Wish()) if path.is_file() else None


def find_folder(folder: Path, label: str = "", wish: Wish | None = None) -> Source | None:
    files = tuple(path for name in _PARTS if (path := folder / name).is_file())
    return _source(files, label, wish or Wish()) if files and files[0].name == _PARTS[0] else None


def _source(files: tuple[Path, ...], label: str, wish: Wish) -> Source:
    if wish.text:
        settings = f"label {label} {texts.settings(wish)}"
        return Source(partial(read_texts, files, label, wish), files, settings, has_columns=True, is_text=True)
    settings = f"label {label}" + (f" group {wish.group}" if wish.group else "")
    return Source(partial(read, files, label, wish.group), files, settings, has_columns=True)


def read(files: Sequence[Path], label: str, group: str, allocate: Allocate) -> Decoded:
    frames = [_read_csv(path) for path in files]
    groups = _take_groups(frames, group, files)
    return assemble(parts_of(frames, label, files[0]), files[0], allocate, told=Told(groups=groups))


def _take_groups(frames: "list[DataFrame]", group: str, files: Sequence[Path]) -> np.ndarray | None:
    """Whose row each one is; its column is taken out of the tables."""
    if not group:
        return None
    found = []
    for number, (path, frame) in enumerate(zip(files, frames, strict=True)):
        if group not in frame.columns:
            raise UnknownName(f"column in {path} called", group, map(str, frame.columns))
        if frame[group].isna().any():
            row = int(frame[group].isna().to_numpy().argmax())
            raise UserError(f"{path} has no {group} in row {row + 1}; fill it in or leave the row out.")
        frames[number] = frame.drop(columns=group)
        found.append(frame[group].to_numpy())
    return np.concatenate(found)


def read_texts(files: Sequence[Path], label: str, wish: Wish, allocate: Allocate) -> Decoded:
    """One column of texts; all others but the classes are left alone."""
    frames = [_read_csv(path) for path in files]
    groups, group_names = number_groups(_take_groups(frames, wish.group, files), sum(map(len, frames)), files[0])
    label = label_column(list(frames[0].columns), label, files[0])
    for path, frame in zip(files, frames, strict=True):
        for column in (wish.text, label):
            if column not in frame.columns:
                raise UnknownName(f"column in {path} called", column, map(str, frame.columns))
    if wish.text == label:
        raise UserError(
            f"{label} of {files[0]} cannot be texts and classes; name the other one with --set data.label=NAME."
        )
    labels = np.concatenate([_classes(frame[label], label, files[0]) for frame in frames])
    numbers, names = number_classes(labels, files[0])
    names = names or tuple(map(str, range(int(numbers.max()) + 1)))
    parts = [frame[wish.text].fillna("").astype(str).tolist() for frame in frames]
    read_in = texts.decoded(parts, numbers, names, wish, allocate)
    return replace(read_in, groups=groups, group_names=group_names)


def parts_of(frames: "Sequence[DataFrame]", label: str, where: Path | str) -> list[Part]:
    """Vectors and labels of each table; columns have mean 0 and deviation 1 over the first, the training set."""
    label = label_column(list(frames[0].columns), label, where)
    features = [column for column in frames[0].columns if column != label]
    for frame in frames[1:]:
        if missing := [str(column) for column in (label, *features) if column not in frame.columns]:
            raise UserError(f"the test set beside {where} has no column {missing[0]}; give both the same columns.")
    if not features:
        raise UserError(f"{where} has the column {label} alone; add columns of numbers to learn from.")
    vectors = [_numbers(frame[features], label, where) for frame in frames]
    mean, deviation = vectors[0].mean(axis=0), vectors[0].std(axis=0)
    deviation[deviation == 0] = 1  # a column that is always the same
    return [
        (((own - mean) / deviation).astype(np.float32), _classes(frame[label], label, where))
        for own, frame in zip(vectors, frames, strict=True)
    ]


def label_column(columns: Sequence[str], label: str, where: Path | str) -> str:
    """The column that holds the classes."""
    if label:
        if label not in columns:
            raise UnknownName(f"column in {where} called", label, map(str, columns))
        return label
    lower = {str(column).lower(): column for column in reversed(columns)}
    return next((lower[name] for name in LABEL_COLUMNS if name in lower), columns[-1])


def _read_csv(path: Path) -> "DataFrame":
    import pandas as pd

    with reading(path):
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = next(csv.reader(file, skipinitialspace=True), [])
        _require_header(header, path)
        frame = pd.read_csv(path, skipinitialspace=True)
    if frame.empty:
        raise UserError(f"{path} has a header but no rows; add samples, one in each row.")
    return frame


def _numbers(frame: "DataFrame", label: str, where: Path | str) -> np.ndarray:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    text = [
        str(column) for column in frame if not is_numeric_dtype(frame[column]) and not is_bool_dtype(frame[column])
    ]
    if text:
        raise UserError(
            f"{where} has text in {_listed(text)}; features must be numbers, so leave these columns out or encode "
            f"them, and if {label} is not the label, name it with --set data.label=NAME; to learn from a text, "
            "name its column with --set data.text=NAME."
        )
    for column in frame:
        if frame[column].isna().any():
            row = int(frame[column].isna().to_numpy().argmax())
            raise UserError(
                f"{where} has no value for {column} in row {row + 1}; fill it in or leave the row out."
            )
    return frame.to_numpy(np.float64)


def _classes(column: Any, label: str, where: Path | str) -> np.ndarray:
    if column.isna().any():
        row = int(column.isna().to_numpy().argmax())
        raise UserError(f"{where} has no {label} in row {row + 1}; fill it in or leave the row out.")
    values: np.ndarray = column.to_numpy()
    if values.dtype.kind == "f" and not (values == np.rint(values)).all():
        raise UserError(
            f"the column {label} of {where} holds fractions, not classes; name the column with the classes with "
            "--set data.label=NAME."
        )
    return values


def _listed(columns: Sequence[str], most: int = 5) -> str:
    more = f" and {len(columns) - most} more" if len(columns) > most else ""
    return f"the column{'s' * (len(columns) > 1)} {', '.join(columns[:most])}{more}"


def _require_header(header: Sequence[str], path: Path) -> None:
    """Names that are numbers count the columns, as pandas does; any other number is a value."""
    numbers = [cell for cell in header if _is_number(cell)]
    if numbers and numbers != [str(int(float(numbers[0])) + i) for i in range(len(numbers))]:
        raise UserError(
            f"{path} begins with values such as {numbers[0]}, not with names; put a row with the names of the "
            "columns first."
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
