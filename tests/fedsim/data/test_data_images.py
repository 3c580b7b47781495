"""data.image_size: images are resized, files and arrays alike; it is refused for what is no image."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedsim.data import store
from fedsim.errors import UserError

PICTURES = np.random.default_rng(0).integers(0, 256, (6, 20, 24, 3), dtype=np.uint8)


def resized(dataset: Path | str, side: int) -> np.ndarray:
    return np.asarray(store.open_dataset(str(dataset), image_size=side).dataset.inputs)


def test_arrays_are_resized_as_files_of_the_same_pixels_are(tmp_path):
    for number, pixels in enumerate(PICTURES):
        path = tmp_path / "tree" / f"class {number}" / "image.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(pixels).save(path)
    np.savez(tmp_path / "own.npz", x=PICTURES, y=np.arange(6))
    for side in (8, 16, 32):
        arrays = resized(tmp_path / "own.npz", side)
        assert arrays.shape == (6, side, side, 3) and arrays.dtype == np.uint8
        assert np.array_equal(arrays, resized(tmp_path / "tree", side))


def test_images_of_floats_are_resized_by_the_same_filter(tmp_path):
    floats = PICTURES.transpose(0, 3, 1, 2).astype(np.float32)
    np.savez(tmp_path / "floats.npz", x=floats, y=np.arange(6))
    np.savez(tmp_path / "bytes.npz", x=PICTURES, y=np.arange(6))
    made, rounded = resized(tmp_path / "floats.npz", 10), resized(tmp_path / "bytes.npz", 10)
    assert made.shape == (6, 3, 10, 10) and made.dtype == np.float32
    assert np.abs(made - rounded.transpose(0, 3, 1, 2)).max() < 1.01  # bytes are rounded after each direction


def test_images_that_have_the_size_are_left_as_they_are(tmp_path):
    np.savez(tmp_path / "own.npz", x=PICTURES[:, :, :20], y=np.arange(6))
    assert np.array_equal(resized(tmp_path / "own.npz", 20), PICTURES[:, :, :20])


def test_known_images_are_resized_too():
    assert resized("digits", 16).shape == (1797, 16, 16, 1)
    assert resized("digits", 0).shape == (1797, 28, 28, 1)


def test_what_is_no_image_is_not_resized(tmp_path, cache):
    with pytest.raises(UserError) as caught:
        resized("spiral", 32)
    assert str(caught.value) == (
        "data.image_size = 32 resizes images, but a sample of spiral has the shape (2,); unset it."
    )
    (tmp_path / "table.csv").write_text("x,label\n1,a\n2,b\n")
    with pytest.raises(UserError, match=r"a sample of table has the shape \(1,\); unset it"):
        resized(tmp_path / "table.csv", 32)
    assert [path for path in (cache / "decoded").glob("*") if path.suffix != ".lock"] == []
