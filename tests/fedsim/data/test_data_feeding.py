"""Samples that stay on a device are the samples that would have been copied."""

import numpy as np
import pytest
import torch

from fedsim.data import Dataset, Subset, feeding


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int32"])
def test_batches_of_kept_samples_have_the_same_bits(dtype: str) -> None:
    shape = (20, 4, 4, 1) if dtype == "uint8" else (20, 6)
    inputs = np.random.default_rng(1).integers(0, 200, shape).astype(dtype)
    dataset = Dataset("toy", inputs, np.arange(20) % 3, 3, 20)
    subset, device = Subset(dataset, np.array([3, 1, 19, 7, 7])), torch.device("cpu")
    copied = list(subset.batches(2, device=device))
    feeding.keep(inputs, device)
    inputs[:] = 0  # whoever reads this array now reads the wrong ones
    try:
        kept = list(subset.batches(2, device=device))
    finally:
        feeding.forget()
    for (x, y), (wanted_x, wanted_y) in zip(kept, copied, strict=True):
        assert torch.equal(x, wanted_x) and torch.equal(y, wanted_y) and x.dtype == wanted_x.dtype
    assert not next(iter(subset.batches(2, device=device)))[0].equal(copied[0][0])  # forgotten
