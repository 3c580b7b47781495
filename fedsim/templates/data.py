"""Data to start from. The function goes by its name in this file:

fedsim check ./FILE:load
fedsim run --dataset ./FILE:load
"""

import numpy as np


def load() -> tuple[np.ndarray, np.ndarray]:
    """(x, y): samples of any shape, and a class for each. Give four arrays where there is an official test set.

    Made once and kept, so draw only from a generator with a seed, and read files by `Path(__file__).parent`.
    """
    draw = np.random.default_rng(0)
    labels = draw.integers(3, size=600)
    angles = 2 * np.pi * labels / 3
    centres = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return (2 * centres + draw.normal(size=(600, 2))).astype(np.float32), labels
