"""Own arrays, in an .npz file or made by own code: any common name, layout and kind of label."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedsim.data import store
from fedsim.data.dataset import Dataset
from fedsim.errors import UserError

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 8, 6, 3), dtype=np.uint8)
VECTORS = np.random.default_rng(1).normal(size=(12, 5))
LABELS = np.arange(12) % 3


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def code(tmp_path: Path) -> Callable[[str], Dataset]:
    """`code("return x, y")` is the data set of a function with this body, which knows some arrays."""
    np.savez(tmp_path / "arrays.npz", images=IMAGES, vectors=VECTORS, labels=LABELS)

    def open_code(body: str, **options: int) -> Dataset:
        lines = "\n    ".join(body.splitlines())
        (tmp_path / "data.py").write_text(
            "import numpy as np\nimport torch\n"
            "from torch.utils.data import TensorDataset\n"
            f"arrays = np.load({str(tmp_path / 'arrays.npz')!r})\n"
            "images, vectors, y = arrays['images'], arrays['vectors'], arrays['labels']\n"
            f"def load():\n    {lines}\n"
        )
        return store.open_dataset("./data.py:load", **options).dataset

    return open_code


def open_npz(**arrays: np.ndarray) -> Dataset:
    np.savez("own.npz", **arrays)
    return store.open_dataset("own.npz").dataset


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".") and "remove" not in message and "delete" not in message
    return message


@pytest.mark.parametrize(
    ("inputs", "labels", "test_inputs", "test_labels"),
    [
        ("x_train", "y_train", "x_test", "y_test"),
        ("X_train", "Y_train", "X_test", "Y_test"),
        ("train_images", "train_labels", "test_images", "test_labels"),
        ("train_data", "train_targets", "val_data", "val_targets"),
        ("features_train", "target_train", "features_valid", "target_valid"),
    ],
)
def test_names_of_a_training_and_a_test_set(inputs, labels, test_inputs, test_labels):
    arrays = {inputs: IMAGES[:8], labels: LABELS[:8], test_inputs: IMAGES[8:], test_labels: LABELS[8:]}
    dataset = open_npz(**arrays)
    assert np.array_equal(dataset.inputs, IMAGES) and dataset.labels.tolist() == LABELS.tolist()
    assert (dataset.num_classes, dataset.num_train, dataset.class_names) == (3, 8, [])


@pytest.mark.parametrize(("inputs", "labels"), [("x", "y"), ("X", "targets"), ("images", "labels"), ("data", "y")])
def test_names_of_one_set(inputs, labels):
    dataset = open_npz(**{inputs: IMAGES, labels: LABELS})
    assert np.array_equal(dataset.inputs, IMAGES) and dataset.num_train == 12


@pytest.mark.parametrize(
    ("given", "stored", "input_shape"),
    [
        (IMAGES, IMAGES, (3, 8, 6)),
        (IMAGES.transpose(0, 3, 1, 2), IMAGES, (3, 8, 6)),
        (IMAGES[..., 0], IMAGES[..., :1], (1, 8, 6)),
        (IMAGES / 255, (IMAGES / 255).transpose(0, 3, 1, 2).astype(np.float32), (3, 8, 6)),
        (VECTORS, VECTORS.astype(np.float32), (5,)),
        (VECTORS.reshape(12, 1, 5), VECTORS.reshape(12, 1, 5).astype(np.float32), (1, 5)),
    ],
    ids=["images", "channels first", "grey", "floats with channels last", "vectors", "signals"],
)
def test_layouts(given, stored, input_shape):
    dataset = open_npz(x=given, y=LABELS)
    assert np.array_equal(dataset.inputs, stored) and dataset.inputs.dtype == stored.dtype
    assert dataset.input_shape == input_shape


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (np.array(["dog", "cat", "ant"] * 4), ["ant", "cat", "dog"]),
        (np.array([b"dog", b"cat", b"ant"] * 4), ["ant", "cat", "dog"]),
        (np.array([7, 5, -1] * 4), ["-1", "5", "7"]),
        (np.array([2.0, 1.0, 0.0] * 4), []),
        (np.array([2, 1, 0] * 4)[:, None], []),
    ],
    ids=["words", "bytes", "numbers with gaps", "whole floats", "a column"],
)
def test_labels_become_class_numbers_in_sorted_order(labels, names):
    dataset = open_npz(x=VECTORS, y=labels)
    assert dataset.labels.tolist() == [2, 1, 0] * 4
    assert (dataset.num_classes, dataset.class_names) == (3, names)


def test_names_of_classes_may_come_with_the_arrays():
    dataset = open_npz(x=VECTORS, y=LABELS, classes=np.array(["a", "b", "c", "never seen"]))
    assert dataset.num_classes == 4 and dataset.class_name(1) == "b"
    assert open_npz(x=VECTORS, y=LABELS).class_name(1) == "1"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"foo": VECTORS, "bar": LABELS},
            "holds foo, bar, none of which is called as inputs are; name them x_train",
        ),
        (
            {"x_train": VECTORS},
            "holds the inputs x_train but no labels for them; add one for each sample as y_train",
        ),
        (
            {"x": VECTORS, "z": LABELS},
            "holds the inputs x but no labels for them; add one for each sample as y (or",
        ),
        ({"x_train": VECTORS, "y_train": LABELS, "x_test": VECTORS}, "holds the inputs x_test but no labels"),
        ({"x": VECTORS, "y": LABELS * 0}, "own has nothing to tell apart: all 12 samples are of class 0; give"),
        ({"x": VECTORS[:0], "y": LABELS[:0]}, "own has nothing to tell apart: it is empty; give"),
        (
            {"x": VECTORS.astype(int), "y": LABELS},
            "has inputs of type int64 and shape (12, 5); images must be uint8",
        ),
        (
            {"x": VECTORS * [1, 1, np.nan, 1, 1], "y": LABELS},
            "has 12 values that are no finite numbers, the first",
        ),
        (
            {"x": VECTORS, "y": LABELS * 1j},
            "has labels of type complex128; a label must be a class number or a word",
        ),
        (
            {"x": VECTORS, "y": LABELS, "classes": np.array(["a", "b"])},
            "has 4 labels out of range, the first is 2;",
        ),
    ],
)
def test_an_npz_that_cannot_be_used(arrays, message):
    assert message in refusal(lambda: open_npz(**arrays))


@pytest.mark.parametrize(
    ("body", "num_train"),
    [
        ("return images, y", 12),
        ("return [images, y]", 12),
        ("return images[:8], y[:8], images[8:], y[8:]", 8),
        ("return (images[:8], y[:8]), (images[8:], y[8:])", 8),
        ("return {'images': images, 'labels': y}", 12),
        ("return torch.from_numpy(images), torch.from_numpy(y)", 12),
        ("return TensorDataset(torch.from_numpy(images), torch.from_numpy(y))", 12),
        ("whole = TensorDataset(torch.from_numpy(images), torch.from_numpy(y))\n"
         "return torch.utils.data.Subset(whole, range(8)), torch.utils.data.Subset(whole, range(8, 12))", 8),
    ],
)  # fmt: skip
def test_what_own_code_may_give(code, body, num_train):
    dataset = code(body)
    assert np.array_equal(dataset.inputs, IMAGES) and dataset.labels.tolist() == LABELS.tolist()
    assert (dataset.name, dataset.num_train, dataset.num_classes) == ("data-load", num_train, 3)


def test_something_made_already_and_a_class_of_data_sets(code):
    code("return images, y")
    with Path("data.py").open("a") as file:
        file.write(
            "both = (vectors[:8], y[:8]), (vectors[8:], y[8:])\n"
            "class Pets:\n"
            "    classes = ['ant', 'bat', 'cat']\n"
            "    def __len__(self): return 12\n"
            "    def __getitem__(self, row): return vectors[row], y[row]\n"
        )
    assert store.open_dataset("./data.py:both").dataset.num_train == 8
    dataset = store.open_dataset("data.py:Pets").dataset
    assert np.array_equal(dataset.inputs, VECTORS.astype(np.float32))
    assert dataset.class_names == ["ant", "bat", "cat"] and dataset.name == "data-Pets"


PILLOW = """
from PIL import Image
class Pictures:
    def __len__(self): return 12
    def __getitem__(self, row): return Image.fromarray(images[row][:, :{width}]).convert({mode!r}), 'ab'[row % 2]
return Pictures()
"""


def test_samples_may_be_images_of_pillow(code):
    dataset = code(PILLOW.format(width=6, mode="RGB"))
    assert np.array_equal(dataset.inputs, IMAGES) and dataset.class_names == ["a", "b"]
    assert code(PILLOW.format(width=6, mode="L")).input_shape == (1, 8, 6)
    mixed = PILLOW.format(width="3 + row % 4", mode="RGB")
    message = refusal(lambda: code(mixed))
    assert (
        "sample 1 of ./data.py:load has the shape (8, 4, 3), the first one (8, 3, 3); make them alike" in message
    )
    assert code(mixed, image_size=16).input_shape == (3, 16, 16)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return vectors", "./data.py:load gave something of type ndarray; it must give (x, y) or"),
        ("return vectors, y, vectors", "./data.py:load gave 3 things; it must give (x, y) or"),
        ("return None", "./data.py:load gave something of type NoneType"),
        ("return {'x': vectors}", "./data.py:load holds the inputs x but no labels for them"),
        (
            "return {'x': vectors, 'y': y}['z']",
            "./data.py:load failed (line 7, KeyError: 'z'); mend it and try again",
        ),
        ("return TensorDataset(torch.zeros(3, 2))", "sample 0 of ./data.py:load is tuple; it must be a pair"),
        ("return TensorDataset(torch.zeros(0, 2), torch.zeros(0))", "./data.py:load has no samples"),
        ("return vectors, y[:-1]", "./data.py:load holds 12 inputs but 11 labels"),
    ],
)
def test_own_code_that_cannot_be_used(code, cache, body, message):
    assert message in refusal(lambda: code(body))
    assert [path for path in (cache / "decoded").glob("*") if path.suffix != ".lock"] == []


def test_own_code_that_is_not_there(code):
    code("return images, y")
    assert "there is no file" in refusal(lambda: store.open_dataset("./other.py:load"))
    with pytest.raises(UserError, match=r"there is no object in \./data.py called 'laod'; did you mean load\?"):
        store.open_dataset("./data.py:laod")
    assert "say what to take from ./data.py, as in" in refusal(lambda: store.open_dataset("./data.py"))


CHANGING = """
from pathlib import Path
log = Path('log')
log.write_text(log.read_text() + 'called ' if log.exists() else 'called ')
return vectors + float(Path('offset').read_text()), y
"""


def test_code_is_run_once_in_a_process_and_a_copy_is_named_after_its_content(code, cache, monkeypatch):
    """The file may stay the same while what it reads changes; a new process must see that."""
    Path("offset").write_text("0")
    first, again = code(CHANGING), code(CHANGING)
    assert Path("log").read_text().split() == ["called"]
    assert np.array_equal(first.inputs, again.inputs)
    monkeypatch.setattr(store, "_COMPUTED", {})  # as in another process
    Path("offset").write_text("1")
    changed = code(CHANGING)
    assert Path("log").read_text().split() == ["called"] * 2
    assert np.array_equal(changed.inputs, (VECTORS + 1).astype(np.float32))
    monkeypatch.setattr(store, "_COMPUTED", {})
    assert np.array_equal(code(CHANGING).inputs, changed.inputs)
    copies = {path.name for path in (cache / "decoded").iterdir() if path.is_dir()}
    assert copies == {f"data-load-{dataset.fingerprint}" for dataset in (first, changed)}
