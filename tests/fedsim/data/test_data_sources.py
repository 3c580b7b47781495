import gzip
import pickle
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from fedsim.data import sources, store
from fedsim.data.sources.download import download
from fedsim.errors import UserError


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """What is not found must not be fetched."""
    monkeypatch.setattr(sources, "download", lambda wanted, folder: "no network in tests")


def some_images(number: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (number, *shape), dtype=np.uint8)


def write_idx(path: Path, array: np.ndarray) -> None:
    content = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_mnist(folder: Path, suffix: str = "", num_train: int = 12, num_test: int = 6) -> np.ndarray:
    images = some_images(num_train + num_test, 28, 28)
    labels = np.arange(num_train + num_test) % 10
    for part, rows in (("train", slice(num_train)), ("t10k", slice(num_train, None))):
        write_idx(folder / f"{part}-images-idx3-ubyte{suffix}", images[rows])
        write_idx(folder / f"{part}-labels-idx1-ubyte{suffix}", labels[rows])
    return images


@pytest.mark.parametrize(
    ("name", "folder", "suffix"),
    [
        ("fmnist", "FashionMNIST/raw", ""),
        ("fmnist", "fashion-mnist", ".gz"),
        ("mnist", "MNIST/raw", ".gz"),
        ("mnist", ".", ""),
    ],
)
def test_idx_files(tmp_path, name, folder, suffix):
    images = write_mnist(tmp_path / "data" / folder, suffix)
    dataset = store.open_dataset(name, str(tmp_path / "data")).dataset
    assert np.array_equal(dataset.inputs[..., 0], images)
    assert dataset.labels.tolist() == [row % 10 for row in range(18)]
    assert (dataset.name, dataset.num_classes, dataset.num_train) == (name, 10, 12)
    assert dataset.input_shape == (1, 28, 28)


def test_the_first_place_that_has_it_wins(tmp_path, monkeypatch, cache):
    places = {
        "given": tmp_path / "given",
        "environment": tmp_path / "environment",
        "cache": cache / "datasets",
    }
    for number, place in enumerate(places.values()):
        write_mnist(place / "mnist", num_train=20 + number)
    monkeypatch.setenv("FEDSIM_DATA", str(places["environment"]))

    def num_train(data_dir: str) -> int:
        return store.open_dataset("mnist", data_dir).dataset.num_train

    assert num_train(str(places["given"])) == 20
    assert num_train("") == 21
    monkeypatch.delenv("FEDSIM_DATA")
    assert num_train("") == 22
    (tmp_path / "empty").mkdir()
    assert num_train(str(tmp_path / "empty")) == 22


def write_cifar(folder: Path, names: list[str], key: str, num_classes: int) -> np.ndarray:
    folder.mkdir(parents=True)
    images = some_images(4 * len(names), 3, 32, 32)
    for number, name in enumerate(names):
        rows = slice(4 * number, 4 * number + 4)
        batch = {"data": images[rows].reshape(4, -1), key: [number, 1, 2, num_classes - 1]}
        (folder / name).write_bytes(pickle.dumps(batch, 4))
    return images


@pytest.mark.parametrize(
    ("name", "folder", "names", "key", "num_classes"),
    [
        (
            "cifar10",
            "cifar-10-batches-py",
            [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"],
            "labels",
            10,
        ),
        ("cifar100", "cifar-100-python", ["train", "test"], "fine_labels", 100),
    ],
)
def test_cifar_batches(tmp_path, name, folder, names, key, num_classes):
    images = write_cifar(tmp_path / folder, names, key, num_classes)
    dataset = store.open_dataset(name, str(tmp_path)).dataset
    assert np.array_equal(dataset.inputs, images.transpose(0, 2, 3, 1))
    expected = [label for number in range(len(names)) for label in (number, 1, 2, num_classes - 1)]
    assert dataset.labels.tolist() == expected
    assert (dataset.num_classes, dataset.num_train) == (num_classes, 4 * len(names) - 4)


def test_svhn(tmp_path):
    images = some_images(7, 32, 32, 3)
    for name, rows in (("train", slice(5)), ("test", slice(5, None))):
        labels = np.array([10, 1, 2, 9, 10, 3, 4])[rows, None]  # SVHN calls the digit 0 ten
        savemat(tmp_path / f"{name}_32x32.mat", {"X": images[rows].transpose(1, 2, 3, 0), "y": labels})
    dataset = store.open_dataset("svhn", str(tmp_path)).dataset
    assert np.array_equal(dataset.inputs, images)
    assert dataset.labels.tolist() == [0, 1, 2, 9, 0, 3, 4]
    assert dataset.num_train == 5


def test_npz_in_the_layout_of_keras(tmp_path):
    images = some_images(9, 28, 28)
    labels = np.arange(9)
    arrays = {
        "x_train": images[:6],
        "y_train": labels[:6, None],
        "x_test": images[6:],
        "y_test": labels[6:, None],
    }
    np.savez_compressed(tmp_path / "mnist.npz", **arrays)
    dataset = store.open_dataset("mnist", str(tmp_path)).dataset
    assert np.array_equal(dataset.inputs[..., 0], images)
    assert dataset.labels.tolist() == list(range(9))
    assert (dataset.num_classes, dataset.num_train) == (10, 6)


def test_own_npz_of_numbers(tmp_path):
    table = np.random.default_rng(0).normal(size=(8, 5))
    np.savez(tmp_path / "table.npz", x_train=table, y_train=np.arange(8) % 2)
    dataset = store.open_dataset(str(tmp_path / "table.npz")).dataset
    assert np.array_equal(dataset.inputs, table.astype(np.float32))
    assert (dataset.name, dataset.num_classes, dataset.num_train) == ("table", 2, 8)
    assert dataset.input_shape == (5,)


@pytest.mark.parametrize(
    ("shape", "size", "found"), [("1x2x3", 0, (1, 2, 3)), ("3x2", 0, (3, 2)), ("1x2x3", 4, (1, 4, 4))]
)
def test_vectors_become_what_the_user_says_they_are(tmp_path, shape, size, found):
    table = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    np.savez(tmp_path / "table.npz", x_train=table, y_train=np.arange(8) % 2)
    dataset = store.open_dataset(str(tmp_path / "table.npz"), image_size=size, shape=shape).dataset
    assert dataset.input_shape == found
    if not size:
        assert np.array_equal(dataset.inputs, table.reshape(8, *found))
    plain = store.open_dataset(str(tmp_path / "table.npz")).dataset
    assert plain.input_shape == (6,) and plain.fingerprint != dataset.fingerprint


@pytest.mark.parametrize(
    ("shape", "complaint"),
    [
        (
            "2x2",
            "data.shape = 2x2 is for samples of 4 numbers each, but a sample of table has 6 numbers; unset it",
        ),
        ("wide", "data.shape = 'wide' is not valid; write 1x28x28 for images"),
        ("0x6", "data.shape = '0x6' is not valid"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(tmp_path, shape, complaint):
    np.savez(tmp_path / "table.npz", x_train=np.zeros((8, 6)), y_train=np.arange(8) % 2)
    with pytest.raises(UserError, match=complaint):
        store.open_dataset(str(tmp_path / "table.npz"), shape=shape)


def test_the_small_tiny_imagenet_counts_as_tiny_imagenet(tmp_path, write_npz):
    write_npz("tiny_imagenet_small")
    stored = store.open_dataset("tiny_imagenet", str(tmp_path))
    assert stored.dataset.num_classes == 200 and stored.dataset.num_train == 15
    assert stored.train_only


def save_image(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def test_tiny_imagenet_as_unpacked(tmp_path, monkeypatch):
    known = sources.KNOWN["tiny_imagenet"]
    two_classes = replace(known, sizes=replace(known.sizes, num_classes=2))
    monkeypatch.setitem(sources.KNOWN, "tiny_imagenet", two_classes)
    root = tmp_path / "tiny-imagenet-200"
    images = some_images(5, 64, 64, 3)
    for number, wnid in enumerate(["n02", "n01", "n02"]):
        save_image(root / "train" / wnid / "images" / f"{wnid}_{number}.png", images[number])
    for number, wnid in ((3, "n02"), (4, "n01")):
        save_image(root / "val" / "images" / f"val_{number}.png", images[number])
        with (root / "val" / "val_annotations.txt").open("a") as table:
            table.write(f"val_{number}.png\t{wnid}\t0\t0\t62\t62\n")
    stored = store.open_dataset("tiny_imagenet", str(tmp_path))
    assert stored.dataset.labels.tolist() == [0, 1, 1, 1, 0]
    assert np.array_equal(stored.dataset.inputs, images[[1, 0, 2, 3, 4]])
    assert stored.dataset.num_train == 3 and stored.train_only


def test_flowers102_as_torchvision_downloads_it(tmp_path):
    root = tmp_path / "flowers-102"
    for number in range(1, 7):
        save_image(root / "jpg" / f"image_{number:05d}.jpg", np.full((80, 100, 3), 40 * number, np.uint8))
    savemat(root / "imagelabels.mat", {"labels": np.array([[1, 102, 3, 4, 5, 6]])})
    savemat(root / "setid.mat", {"trnid": [[1, 4]], "valid": [[6]], "tstid": [[2, 3, 5]]})
    dataset = store.open_dataset("flowers102", str(tmp_path)).dataset
    assert dataset.inputs.shape == (6, 64, 64, 3)
    assert dataset.labels.tolist() == [0, 3, 5, 101, 2, 4]
    assert (dataset.num_classes, dataset.num_train) == (102, 3)
    brightness = [round(float(image.mean())) for image in dataset.inputs]
    assert brightness == pytest.approx([40, 160, 240, 80, 120, 200], abs=2)


def test_own_tree_of_class_folders(tmp_path):
    tree = tmp_path / "birds"
    images = some_images(3, 20, 30, 3)
    save_image(tree / "b owl" / "1.png", images[0])
    save_image(tree / "a jay" / "2.png", images[1])
    save_image(tree / "a jay" / "1.PNG", images[2])
    (tree / "a jay" / "notes.txt").write_text("not an image")
    dataset = store.open_dataset(str(tree)).dataset
    assert np.array_equal(dataset.inputs, images[[2, 1, 0]])
    assert dataset.labels.tolist() == [0, 0, 1]
    assert (dataset.name, dataset.num_train, dataset.input_shape) == ("birds", 3, (3, 20, 30))
    assert store.open_dataset(str(tree), image_size=16).dataset.input_shape == (3, 16, 16)
    save_image(tree / "b owl" / "2.png", np.zeros((9, 9), np.uint8))  # grey, and of another size
    assert store.open_dataset(str(tree)).dataset.input_shape == (3, 64, 64)


def test_own_tree_with_a_test_part(tmp_path):
    for part, number in (("train", 2), ("test", 1)):
        for label in ("cat", "dog"):
            for image in range(number):
                save_image(tmp_path / "pets" / part / label / f"{image}.png", some_images(1, 8, 8, 3)[0])
    dataset = store.open_dataset(str(tmp_path / "pets")).dataset
    assert dataset.labels.tolist() == [0, 0, 1, 1, 0, 1] and dataset.num_train == 4


def test_spiral_lies_on_its_radii():
    dataset = store.open_dataset("spiral").dataset
    assert dataset.inputs.shape == (30_000, 2) and dataset.inputs.dtype == np.float32
    assert np.bincount(dataset.labels).tolist() == [5000] * 6
    radius = np.hypot(*dataset.inputs.T).reshape(6, 5000)
    assert radius == pytest.approx(np.tile(np.linspace(1, 10, 5000), (6, 1)), rel=1e-5)
    # x = r sin ω, y = r cos ω: class 0 has no turn, so its angle is the noise alone, N(0, 1).
    angle = np.arctan2(*dataset.inputs[:5000].T)
    assert abs(float(angle.mean())) < 0.05 and abs(float(np.median(np.abs(angle))) - 0.6745) < 0.05


def test_arms_of_the_clean_spiral_are_apart():
    dataset = store.open_dataset("spiral_clean").dataset
    step = np.linspace(0, 1, 5000)
    for arm in range(6):
        x, y = dataset.inputs[dataset.labels == arm].T
        noise = (np.arctan2(x, y) - (arm + step) * np.pi / 3) % (2 * np.pi)
        assert noise.min() >= 0 - 1e-4 and noise.max() < 0.5 + 1e-4


def test_digits_are_enlarged_and_keep_their_corners():
    from sklearn.datasets import load_digits

    small = load_digits().images
    dataset = store.open_dataset("digits").dataset
    assert dataset.inputs.shape == (1797, 28, 28, 1) and dataset.num_train == 1797
    # Bilinear without aligned corners: the outermost output pixel is the outermost input pixel.
    assert np.array_equal(dataset.inputs[:, 0, 0, 0], np.rint(small[:, 0, 0] * 255 / 16))
    assert np.array_equal(dataset.inputs[:, 27, 27, 0], np.rint(small[:, 7, 7] * 255 / 16))
    assert float(dataset.inputs.mean()) == pytest.approx(small.mean() * 255 / 16, rel=0.02)


def test_what_is_nowhere_is_reported_with_places_and_remedy(tmp_path, monkeypatch, cache):
    nowhere = replace(sources.KNOWN["fmnist"], system_folder=str(tmp_path / "system"))
    monkeypatch.setitem(sources.KNOWN, "fmnist", nowhere)
    (tmp_path / "given").mkdir()
    with pytest.raises(UserError) as caught:
        sources.locate("fmnist", str(tmp_path / "given"))
    places = f"{tmp_path}/given, {cache}/datasets, {tmp_path}/system"
    assert str(caught.value) == (
        f"data set fmnist is in none of {places} and was not downloaded (no network in tests); "
        "install Debian's package dataset-fashion-mnist, or put the four idx files into a folder and name it "
        "with --data-dir."
    )
    with pytest.raises(UserError, match=r"torchvision does not offer it.*tiny-imagenet-200\.zip"):
        sources.locate("tiny_imagenet")


class FakeTorchvision:
    """torchvision and its `datasets` in one; its MNIST fails after `num_files` files, unless that is all four."""

    def __init__(self, num_files: int):
        self.datasets = self
        self.num_files = num_files

    def MNIST(self, root: str, download: bool) -> None:
        raw = Path(root) / "MNIST" / "raw"
        write_mnist(raw)
        for path in sorted(raw.iterdir())[self.num_files :]:
            path.unlink()
        if self.num_files < 4:
            raise OSError("the line went dead.")


def test_a_download_is_put_into_the_cache_when_complete(monkeypatch, cache):
    monkeypatch.setattr(sources, "download", download)
    monkeypatch.setattr("fedsim.compat.import_torchvision", lambda: FakeTorchvision(3))
    with pytest.raises(UserError, match=r"was not downloaded \(the line went dead\); put torchvision's"):
        store.open_dataset("mnist")
    assert [path.name for path in (cache / "datasets").iterdir()] == ["mnist.lock"]
    monkeypatch.setattr("fedsim.compat.import_torchvision", lambda: FakeTorchvision(4))
    assert store.open_dataset("mnist").dataset.num_train == 12
    monkeypatch.setattr("fedsim.compat.import_torchvision", None)
    assert store.open_dataset("mnist").dataset.num_train == 12


@pytest.mark.parametrize(
    ("name", "data_dir", "message"),
    [
        ("cifar", "", "there is no data set 'cifar'; did you mean cifar10 or cifar100"),
        ("mnist", "nowhere", r"data\.data_dir = 'nowhere' is not a folder"),
        (
            "./nowhere",
            "",
            "there is no data set at .*nowhere; give an existing folder, .npz or .csv file, ./FILE.py",
        ),
        ("nowhere.csv", "", r"there is no data set at .*nowhere\.csv; give an existing folder"),
    ],
)
def test_names_and_paths_that_do_not_exist(name, data_dir, message):
    with pytest.raises(UserError, match=message):
        sources.locate(name, data_dir)


def test_a_folder_without_data_is_refused(tmp_path):
    (tmp_path / "some" / "sub").mkdir(parents=True)
    with pytest.raises(UserError, match="holds neither class folders with images, nor idx files"):
        sources.locate(str(tmp_path / "some"))


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "table.xlsx").write_text("")
    with pytest.raises(UserError, match=r"table\.xlsx is no \.npz and no \.csv file; convert it, or load it in a"):
        sources.locate(str(tmp_path / "table.xlsx"))


def test_a_folder_needs_no_slash_unless_it_has_the_name_of_a_known_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("pets", "digits"):
        for label in ("cat", "dog"):
            save_image(tmp_path / name / label / "1.png", some_images(1, 8, 8, 3)[0])
    assert sources.locate("pets").name == "pets"
    with pytest.raises(UserError) as caught:
        sources.locate("digits")
    assert str(caught.value) == (
        f"digits is a data set known by name and also your folder {tmp_path}/digits; write ./digits for the "
        "folder, or work from another folder for the data set."
    )
    assert len(sources.locate("./digits").files) == 2
    (tmp_path / "spiral").mkdir()  # without data in it
    assert sources.locate("spiral").name == "spiral"


def test_names_of_class_folders_are_kept(tmp_path):
    for label in ("owl", "jay"):
        save_image(tmp_path / "birds" / label / "1.png", some_images(1, 8, 8, 3)[0])
    dataset = store.open_dataset(str(tmp_path / "birds")).dataset
    assert dataset.class_names == ["jay", "owl"] and dataset.class_name(1) == "owl"
