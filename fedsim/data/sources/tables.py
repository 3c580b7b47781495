"""Tables of numbers with a column of classes: a .csv file, or a folder with train.csv and test.csv."""

import csv
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsim.data.sources.arrays import Part, assemble
from fedsim.data.sources.base import Allocate, Decoded, Source, reading
from fedsim.errors import UnknownName, UserError

if TYPE_CHECKING:
    from pandas import DataFrame

LABEL_COLUMNS = ("label", "target", "class", "y")
"""Where no column is named, the first of these is taken, in any case; without any of them, the last column."""
_PARTS = ("train.csv", "test.csv")


def find(path: Path, label: str = "") -> Source | None:
    return _source((path,), label) if path.is_file() else None


def find_folder(folder: Path, label: str = "") -> Source | None:
    files = tuple(path for name in _PARTS if (path := folder / name).is_file())
    return _source(files, label) if files and files[0].name == _PARTS[0] else None


def _source(files: tuple[Path, ...], label: str) -> Source:
    return Source(partial(read, files, label), files, settings=f"label {label}", has_columns=True)


def read(files: Sequence[Path], label: str, allocate: Allocate) -> Decoded:
    return assemble(parts_of([_read_csv(path) for path in files], label, files[0]), files[0], allocate)


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
            f"them, and if {label} is not the label, name it with --set data.label=NAME."
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
