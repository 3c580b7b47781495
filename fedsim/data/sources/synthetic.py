"""Data sets that need no file: scikit-learn's digits, and the spiral of ProtoNorm's appendix A."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from fedsim.data.sources.base import Allocate, Decoded, Source
from fedsim.seeds import Streams

NUM_ARMS = 6
NUM_POINTS = 5000


def digits() -> Source:
    """1797 hand-written digits, 8×8, enlarged to 28×28 for MNIST's models. There is no official split."""
    return Source(_read_digits, name="digits")


def spiral() -> Source:
    """As printed in ProtoNorm: r_i = 1 + 9s, ω_ki = kπ/3 + s·kπ/3 + b_i with s = (i-1)/4999, b_i ~ N(0, 1).

    A noise of 1 rad is as wide as the arms are apart, so no classifier can tell them well.
    """
    return Source(partial(_read_spiral, _printed_angles), name="spiral")


def spiral_clean() -> Source:
    """As drawn in FedNH, where it comes from: every arm turns by π/3, the noise is uniform in [0, ½)."""
    return Source(partial(_read_spiral, _clean_angles), name="spiral_clean")


def _read_digits(allocate: Allocate) -> Decoded:
    import torch
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    small = torch.from_numpy(images).reshape(-1, 1, 8, 8) * (255 / 16)
    large = torch.nn.functional.interpolate(small, size=(28, 28), mode="bilinear", align_corners=False)
    inputs = allocate((len(labels), 28, 28, 1), np.uint8)
    inputs[:] = large.round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return Decoded(inputs, labels.astype(np.int64), 10, len(labels))


def _printed_angles(arm: np.ndarray, step: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return arm * math.pi / 3 * (1 + step) + random.standard_normal((NUM_ARMS, NUM_POINTS))


def _clean_angles(arm: np.ndarray, step: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return (arm + step) * math.pi / 3 + random.uniform(0, 0.5, (NUM_ARMS, NUM_POINTS))


def _read_spiral(angles: Callable[..., np.ndarray], allocate: Allocate) -> Decoded:
    # The points are the same in every experiment, hence a root seed of their own.
    random = Streams(0).numpy("data/spiral")
    step = np.linspace(0, 1, NUM_POINTS)
    angle = angles(np.arange(NUM_ARMS)[:, None], step, random)  # (arms, points)
    points = np.stack([np.sin(angle), np.cos(angle)], axis=-1) * (1 + 9 * step)[:, None]
    inputs = allocate((NUM_ARMS * NUM_POINTS, 2), np.float32)
    inputs[:] = points.reshape(-1, 2)
    labels = np.repeat(np.arange(NUM_ARMS, dtype=np.int64), NUM_POINTS)
    return Decoded(inputs, labels, NUM_ARMS, len(labels))
