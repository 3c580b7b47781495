"""Making images of one size, with one algorithm for files and for arrays: Pillow's bilinear filter.

Images are uint8 (N, H, W, ch) or float32 (N, ch, H, W), as they are stored.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Pillow releases the interpreter's lock while it decodes and resizes, so threads use every core."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, items))


def to_array(image: "Image", size: tuple[int, int] | None = None, *, keep_grey: bool = False) -> np.ndarray:
    """An image file as (H, W, 3), or (H, W, 1) where grey ones stay grey; resized to (height, width)."""
    from PIL.Image import Resampling

    made = image.convert("L" if keep_grey and image.mode in ("1", "L") else "RGB")
    if size and made.size != (size[1], size[0]):
        made = made.resize((size[1], size[0]), Resampling.BILINEAR)
    return np.asarray(made).reshape(made.height, made.width, -1)


def shape_with_side(shape: tuple[int, ...], dtype: type, side: int) -> tuple[int, ...] | None:
    """The shape of these samples with images of side × side; None where they are no images."""
    if len(shape) != 4:
        return None
    if dtype is np.uint8:
        return shape[0], side, side, shape[3]
    return shape[0], shape[1], side, side


def resize_all(inputs: np.ndarray, resized: np.ndarray) -> None:
    """Fill `resized` with the images of `inputs`, channel by channel, as files of the same pixels would be."""
    from PIL import Image

    # As (N, ch, H, W) in both layouts.
    source, target = (x.transpose(0, 3, 1, 2) if x.dtype == np.uint8 else x for x in (inputs, resized))
    size = target.shape[3], target.shape[2]

    def resize(row: int) -> None:
        for channel, plane in zip(target[row], source[row], strict=True):
            image = Image.fromarray(np.ascontiguousarray(plane))
            channel[:] = np.asarray(image.resize(size, Image.Resampling.BILINEAR))

    in_parallel(resize, range(len(source)))
