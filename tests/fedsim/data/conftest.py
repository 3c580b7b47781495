from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedsim.config import Data, Experiment, Run
from fedsim.data import Federation


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache of its own and sees none of the user's data."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDSIM_CACHE", str(folder))
    monkeypatch.delenv("FEDSIM_DATA", raising=False)
    return folder


@pytest.fixture
def federation() -> Callable[..., Federation]:
    def make(*, clients: int = 4, seed: int = 1, data_seed: int = 0, **data: object) -> Federation:
        return Federation(Experiment(run=Run(clients=clients, seed=seed), data=Data(seed=data_seed, **data)))

    return make


@pytest.fixture
def write_npz(tmp_path: Path) -> Callable[..., Path]:
    """An .npz of random images, 3 classes with 5 training and 2 test images each unless told otherwise."""

    def write(name: str = "own", num_train: int = 5, num_test: int = 2, **changes: np.ndarray) -> Path:
        random = np.random.default_rng(0)
        arrays = {}
        for part, number in (("train", num_train), ("test", num_test)):
            arrays[f"x_{part}"] = random.integers(0, 256, (3 * number, 4, 6, 3), dtype=np.uint8)
            arrays[f"y_{part}"] = np.arange(3 * number) % 3
        path = tmp_path / f"{name}.npz"
        np.savez(path, **(arrays | changes))
        return path

    return write
