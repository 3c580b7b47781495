"""Broken files: one sentence that names the file, and nothing left in the cache."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsim.data import store
from fedsim.errors import UserError


@pytest.fixture(autouse=True)
def nothing_is_left(cache):
    yield
    left = [path for path in (cache / "decoded").glob("*") if path.suffix != ".lock"]
    assert left == []


def refused(dataset: Path | str, data_dir: Path | str = "") -> str:
    with pytest.raises(UserError) as caught:
        store.open_dataset(str(dataset), str(data_dir))
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".")
    return message


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.99])
def test_truncated_npz(write_npz, keep):
    path = write_npz()
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    assert refused(path).startswith(f"{path} is corrupt, truncated or of another format (")


def test_npz_with_a_damaged_image(write_npz):
    path = write_npz()
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)
    assert "Bad CRC-32" in refused(path)


def test_npz_of_pickled_objects(tmp_path):
    path = tmp_path / "objects.npz"
    np.savez(path, x_train=np.array([{}, {}], dtype=object), y_train=np.arange(2))
    assert "allow_pickle=False" in refused(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"y_test": np.array([0, 1, 2, 0, 1, 10])},
            "has 1 labels out of range, the first is 10; with 10 classes",
        ),
        ({"y_train": np.arange(15) - 1}, "has 5 labels out of range, the first is -1"),
        ({"y_train": np.arange(14) % 3}, "holds 15 inputs but 14 labels"),
        ({"y_train": np.linspace(0, 1, 15)}, "has labels such as 0.0714286; a label must be a class"),
        (
            {"y_train": np.eye(15)},
            "has labels of shape (15, 15); give one class for each sample, such as y.argmax(1)",
        ),
        (
            {"x_train": np.zeros((15, 4, 6, 3), np.int32)},
            "inputs of type int32 and shape (15, 4, 6, 3); images",
        ),
        (
            {"x_test": np.zeros((6, 5, 5, 3), np.uint8)},
            "are uint8 (4, 6, 3) and uint8 (5, 5, 3); make them alike",
        ),
        ({"x_test": np.zeros((6, 4, 6, 3))}, "are uint8 (4, 6, 3) and float32 (4, 6, 3); make them alike"),
    ],
)
def test_npz_that_contradicts_itself(tmp_path, write_npz, changes, message):
    write_npz("cifar10", **changes)
    assert message in refused("cifar10", tmp_path)


IDX_NAMES = [f"{part}-{kind}" for part in ("train", "t10k") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train-images-idx3-ubyte", b""),
        ("train-images-idx3-ubyte", b"\0\0\x08\x03\0\0\0\x02\0\0\0\x1c\0\0\0\x1c" + bytes(1567)),
        ("t10k-images-idx3-ubyte", b"not an idx file"),
        ("train-labels-idx1-ubyte.gz", b"\x1f\x8b\x08\0 truncated"),
    ],
)
def test_broken_idx_files(tmp_path, name, content):
    for other in IDX_NAMES:
        rank = 3 if "images" in other else 1
        sizes = (2).to_bytes(4, "big") + (28).to_bytes(4, "big") * (rank - 1)
        (tmp_path / other).write_bytes(bytes([0, 0, 8, rank]) + sizes + bytes(2 * 28 ** (rank - 1)))
    (tmp_path / name.removesuffix(".gz")).unlink()
    (tmp_path / name).write_bytes(content)
    assert refused("mnist", tmp_path).startswith(f"{tmp_path / name} is corrupt, truncated or of another format (")


class Harmful:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_a_cifar_batch_that_is_a_program(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test"):
        (folder / name).write_bytes(pickle.dumps({"data": Harmful(tmp_path / "harm")}))
    message = refused("cifar100", tmp_path)
    assert f"{folder}/train is corrupt" in message and "it names posix.mkdir, which no array needs" in message
    assert not (tmp_path / "harm").exists()


def test_an_image_cut_short(tmp_path):
    for number in range(3):
        path = tmp_path / "tree" / "class" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (32, 32, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:1500])
    assert refused(tmp_path / "tree").startswith(f"{path} is corrupt, truncated")


def test_a_file_that_a_table_names_but_is_missing(tmp_path):
    tree = tmp_path / "tree"
    for part in ("train/bird", "val/images"):
        (tree / part).mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tree / "train" / "bird" / "1.png")
    (tree / "val" / "val_annotations.txt").write_text("gone.png\tbird\n")
    gone = tree / "val" / "images" / "gone.png"
    assert refused(tree) == f"{gone} cannot be read (No such file or directory); put it back or make it readable."
