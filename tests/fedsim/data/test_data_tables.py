"""Tables in .csv files: which column is the label, what the others become, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from fedsim.data import store
from fedsim.data.dataset import Dataset
from fedsim.errors import UserError

FLOWERS = """\
length, width, kind
1.0, 10, rose
2.0, 10, lily
3.0, 10, rose
4.0, 10, aster
"""


def open_csv(path: Path, content: str, label: str = "") -> Dataset:
    path.write_text(content)
    return store.open_dataset(str(path), label=label).dataset


def refusal(path: Path, content: str, label: str = "") -> str:
    with pytest.raises(UserError) as caught:
        open_csv(path, content, label)
    message = str(caught.value)
    assert "\n" not in message and message.endswith((".", "?"))
    return message


def test_columns_of_numbers_become_vectors_of_mean_0_and_deviation_1(tmp_path):
    dataset = open_csv(tmp_path / "flowers.csv", FLOWERS)
    column = (np.arange(1, 5) - 2.5) / np.sqrt(1.25)
    assert dataset.inputs == pytest.approx(np.stack([column, np.zeros(4)], axis=1), abs=1e-6)
    assert dataset.labels.tolist() == [2, 1, 2, 0]
    assert (dataset.class_names, dataset.num_train, dataset.input_shape) == (["aster", "lily", "rose"], 4, (2,))
    assert dataset.name == "flowers" and dataset.inputs.dtype == np.float32


@pytest.mark.parametrize(
    ("header", "label", "expected"),
    [
        ("a,b,c", "", [0, 1]),
        ("a,Label,c", "", [1, 0]),
        ("target,y,c", "", [1, 0]),
        ("a,b,c", "a", [1, 0]),
        ("0,1,2", "", [0, 1]),
    ],
    ids=["the last", "by name", "by the first name", "as told", "counted columns"],
)
def test_which_column_is_the_label(tmp_path, header, label, expected):
    dataset = open_csv(tmp_path / "table.csv", f"{header}\n8,8,3\n6,6,4\n", label)
    assert dataset.labels.tolist() == expected


def test_truth_values_are_numbers(tmp_path):
    dataset = open_csv(tmp_path / "table.csv", "wet,label\nTrue,a\nFalse,b\n")
    assert dataset.inputs.tolist() == [[1.0], [-1.0]]


def test_a_folder_of_two_tables(tmp_path):
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "train.csv").write_text("x,label\n1,a\n3,b\n")
    (tmp_path / "both" / "test.csv").write_text("label,x\nb,5\n")
    dataset = store.open_dataset(str(tmp_path / "both")).dataset
    assert dataset.inputs.tolist() == [[-1.0], [1.0], [3.0]]  # by the mean and deviation of the training set
    assert dataset.labels.tolist() == [0, 1, 1] and dataset.num_train == 2
    (tmp_path / "both" / "test.csv").write_text("label,z\nb,5\n")
    with pytest.raises(UserError, match=r"the test set beside .*train\.csv has no column x; give both the same"):
        store.open_dataset(str(tmp_path / "both"))


@pytest.mark.parametrize(
    ("content", "label", "message"),
    [
        (
            "name,city,age,label\nAnn,Rome,3,0\nBob,Oslo,4,1\n", "",
            "has text in the columns name, city; features must be numbers, so leave these columns out or encode "
            "them, and if label is not the label, name it with --set data.label=NAME; to learn from a text,",
        ),
        ("x,label\n1,a\n2,b\n", "lable", "called 'lable'; did you mean label?"),
        ("x,label\n1,a\n,b\n", "", "has no value for x in row 2; fill it in or leave the row out."),
        ("x,label\n1,a\n2,\n", "", "has no label in row 2; fill it in or leave the row out."),
        ("x,price\n1,2.5\n2,3.5\n", "", "the column price of "),
        ("x,price\n1,2.5\n2,3.5\n", "", "holds fractions, not classes; name the column with the classes"),
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n", "", "begins with values such as 5.1, not with names; put a row with"),
        ("5,0,0\n4,0,1\n", "", "begins with values such as 5, not with names"),
        ("x,label\n", "", "has a header but no rows"),
        ("", "", "is corrupt, truncated or of another format (No columns to parse from file)"),
        ("label\na\nb\n", "", "has the column label alone; add columns of numbers to learn from."),
        ("x,label\n1,a\n2,a\n", "", "table has nothing to tell apart: all 2 samples are of class a; give"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_used(tmp_path, cache, content, label, message):
    assert message in refusal(tmp_path / "table.csv", content, label)
    assert [path for path in (cache / "decoded").glob("*") if path.suffix != ".lock"] == []


def test_a_label_column_is_refused_for_what_has_no_columns(tmp_path, write_npz):
    for dataset, name in (("digits", "digits"), (str(write_npz()), "own")):
        with pytest.raises(
            UserError, match=rf"data\.label = 'kind' names a column .*, and {name} is none; unset it"
        ):
            store.open_dataset(dataset, label="kind")
