"""Pairs of an image and a latent: on their way, under noise, and among a client's own samples."""

import numpy as np
import pytest
import torch
from toys import CPU

from fedsim import contract
from fedsim.data import Dataset, Subset
from fedsim.families.image_pairs import ImagePairs, pair_fields


def some_pairs(latent_dim: int = 6) -> ImagePairs:
    draw = torch.Generator().manual_seed(0)
    return ImagePairs(2 * torch.rand(5, 3, 4, 4, generator=draw) - 1, torch.randn(5, latent_dim, generator=draw))


@pytest.mark.parametrize("latent_dim", [0, 6])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_they_travel_as_their_contract_says(dtype, latent_dim):
    pairs = some_pairs(latent_dim)
    arrays = pairs.pack(dtype)
    fields = pair_fields(dtype, with_latents=latent_dim > 0)
    contract.check(arrays, fields, {"C": 5, "ch": 3, "h": 4, "w": 4}, "server")
    arrived = ImagePairs.unpack(arrays, CPU)
    half_a_level = 0 if dtype == "float32" else 1 / 255
    torch.testing.assert_close(arrived.images, pairs.images, rtol=0, atol=half_a_level + 1e-6)
    assert torch.equal(arrived.latents_CH, pairs.latents_CH)


def test_noise_fades_both_and_is_added_to_both():
    pairs = some_pairs(400)
    noisy = pairs.noisy(0.2, 0.05, 0.1, torch.Generator().manual_seed(1))
    for ours, theirs, scale in ((noisy.images, pairs.images, 0.2), (noisy.latents_CH, pairs.latents_CH, 0.05)):
        assert (ours - 0.9 * theirs).std().item() == pytest.approx(scale, rel=0.15)


@pytest.mark.parametrize("stored", [np.uint8, np.float32])
def test_images_among_own_samples_are_read_as_they_were_made(stored):
    pairs = some_pairs()
    shape = (7, 4, 4, 3) if stored is np.uint8 else (7, 3, 4, 4)
    own = Subset(Dataset("own", np.zeros(shape, stored), np.full(7, 9), 10, 7), np.array([2, 5]))
    mixed = pairs.among(own, np.random.default_rng(0))
    inputs, labels = next(mixed.batches(100))
    assert sorted(labels.tolist()) == [0, 1, 2, 3, 4, 9, 9] and labels.tolist() != sorted(labels.tolist())
    for image, label in zip(inputs, labels.tolist(), strict=True):
        if label < 5:
            torch.testing.assert_close(image, pairs.images[label], rtol=0, atol=1 / 255 + 1e-6)
