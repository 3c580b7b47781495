"""hf:NAME and hf:PATH, with a stand-in for Hugging Face's `datasets` that has no more of it than is used."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image as Pillow

from fedsim.data import store
from fedsim.data.sources import huggingface
from fedsim.errors import UserError

PICTURES = np.random.default_rng(0).integers(0, 256, (9, 8, 6, 3), dtype=np.uint8)


class Image:
    """A column of images."""


class List:
    """A column of arrays."""


class ClassLabel:
    """A column of numbered classes with names."""

    dtype = "int64"

    def __init__(self, *names: str):
        self.names = list(names)


class Value:
    """A column of numbers or of text."""

    def __init__(self, dtype: str):
        self.dtype = dtype


class Split:
    """One part of a data set: columns by name."""

    def __init__(self, features: dict[str, Any], _format: str | None = None, **columns: Any):
        self.features, self._columns, self._format = features, columns, _format
        self._fingerprint = f"{sorted(columns)}{len(self)}"

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._columns[key]
        if isinstance(key, int):
            return {name: column[key] for name, column in self._columns.items()}
        lengths = {len(row) for column in self._columns.values() for row in column}
        as_array = even_array if len(lengths) == 1 else ragged_array
        return {name: as_array(column) for name, column in self._columns.items()}

    def select_columns(self, names: list[str]) -> "Split":
        return Split(self.features, **{name: self._columns[name] for name in names})

    def with_format(self, kind: str | None, columns: list[str] | None = None) -> "Split":
        return Split(self.features, kind, **{name: self._columns[name] for name in columns or self._columns})

    def to_pandas(self) -> pd.DataFrame:
        return pd.DataFrame(self._columns)


def even_array(column: Any) -> np.ndarray:
    return np.array(column, np.float32)


def ragged_array(column: Any) -> np.ndarray:
    made = np.empty(len(column), object)
    made[:] = column
    return made


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[tuple[str, ...], Any]]:
    """What the stand-in loads for which arguments; anything else cannot be reached."""
    loads: dict[tuple[str, ...], Any] = {}

    def load(*arguments: str, data_files: str = "") -> Any:
        key = tuple(filter(None, (*arguments, data_files)))
        if key not in loads:
            raise ConnectionError("the hub\ncannot be reached.")
        return loads[key]

    module = ModuleType("datasets")
    module.load_dataset = load
    module.load_from_disk = lambda path: load("from disk", path)
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.chdir(tmp_path)
    huggingface.find.cache_clear()
    yield loads
    huggingface.find.cache_clear()


def images(rows: slice) -> Split:
    features = {"image": Image(), "kind": ClassLabel("cat", "dog", "owl"), "note": Value("string")}
    pictures = [Pillow.fromarray(pixels) for pixels in PICTURES[rows]]
    labels = [row % 3 for row in range(9)][rows]
    return Split(features, image=pictures, kind=labels, note=["-"] * len(labels))


def test_a_column_of_images_and_one_of_classes(hub):
    hub["user/pets",] = {"train": images(slice(6)), "validation": images(slice(6, 9)), "extra": images(slice(2))}
    dataset = store.open_dataset("hf:user/pets").dataset
    assert np.array_equal(dataset.inputs, PICTURES)
    assert dataset.labels.tolist() == [0, 1, 2] * 3 and dataset.class_names == ["cat", "dog", "owl"]
    assert (dataset.name, dataset.num_train) == ("pets", 6)
    assert store.open_dataset("hf:user/pets", image_size=16).dataset.input_shape == (3, 16, 16)


def test_a_configuration_of_a_data_set(hub):
    hub["glue", "mini"] = images(slice(9))
    assert store.open_dataset("hf:glue:mini").dataset.name == "glue-mini"


@pytest.mark.parametrize("saved", ["state.json", "dataset_dict.json"])
def test_a_folder_that_was_saved_is_read_from_disk(hub, tmp_path, saved):
    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / saved).write_text("{}")
    hub["from disk", "pets"] = {"train": images(slice(9))}
    assert store.open_dataset("hf:./pets").dataset.num_train == 9


def test_a_folder_of_files_and_a_single_file(hub, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "one.parquet").write_text("")
    hub["files",] = hub["parquet", "one.parquet"] = images(slice(9))
    assert store.open_dataset("hf:./files").dataset.num_train == 9
    assert store.open_dataset("hf:./one.parquet").dataset.name == "one.parquet"


def test_a_column_of_arrays(hub):
    vectors = np.arange(12, dtype=np.float32).reshape(4, 3)
    features = {"vector": List(), "label": Value("int64")}
    hub["vectors",] = Split(features, vector=vectors.tolist(), label=[0, 1, 1, 0])
    dataset = store.open_dataset("hf:vectors").dataset
    assert np.array_equal(dataset.inputs, vectors) and dataset.labels.tolist() == [0, 1, 1, 0]
    hub["ragged",] = Split(features, vector=[[1.0], [2.0, 3.0]], label=[0, 1])
    with pytest.raises(
        UserError, match="the arrays in vector of hf:ragged have different lengths; make them alike"
    ):
        store.open_dataset("hf:ragged")
    features["other"] = List()
    hub["two",] = Split(features, vector=[[1.0]], other=[[1.0]], label=[0])
    with pytest.raises(
        UserError, match="hf:two has several columns of arrays, vector, other; keep the one to learn"
    ):
        store.open_dataset("hf:two")


def test_columns_of_numbers_are_a_table(hub):
    features = {"a": Value("float64"), "b": Value("int64"), "kind": Value("string")}
    hub["table",] = Split(features, a=[1.0, 3.0], b=[5, 5], kind=["x", "y"])
    dataset = store.open_dataset("hf:table").dataset
    assert dataset.inputs.tolist() == [[-1.0, 0.0], [1.0, 0.0]] and dataset.class_names == ["x", "y"]
    assert store.open_dataset("hf:table", label="kind").dataset.fingerprint == dataset.fingerprint
    with pytest.raises(UserError, match="hf:table has text in the column kind; features must be numbers"):
        store.open_dataset("hf:table", label="b")


def test_what_was_decoded_before_is_found_by_its_fingerprint(hub, monkeypatch):
    hub["pets",] = images(slice(9))
    store.open_dataset("hf:pets")
    huggingface.find.cache_clear()  # as in another process
    monkeypatch.setattr(store, "_fill", None)
    assert store.open_dataset("hf:pets").dataset.num_train == 9


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "hf:./nowhere",
            r"there is no file or folder .*nowhere; give one that exists, or a name as in hf:mnist\.",
        ),
        ("hf:far/away", r"hf:far/away cannot be loaded \(the hub cannot be reached\); check the name, or give"),
        ("hf:parts", r"hf:parts has the parts train, more; it needs one called train and one called test\."),
    ],
)
def test_what_cannot_be_loaded(hub, name, message):
    hub["parts",] = {"train": images(slice(9)), "more": images(slice(9))}
    with pytest.raises(UserError, match=message):
        store.open_dataset(name)


def test_without_datasets_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        UserError, match=r"hf:mnist needs Hugging Face's datasets; run: pip install 'fedsim-htfl\[hf\]'"
    ):
        store.open_dataset("hf:mnist")
