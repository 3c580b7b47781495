"""The script that made the embedded generator, for two steps of each stage."""

import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from benchmarks import train_tiny
from fedsim.generators.tiny import TinyGenerator, TinyNetwork

NUM_LABELS = 3
"""In place of 102."""


@pytest.fixture
def images(tmp_path):
    """Ten plain images of every label, of 64 pixels, each a little different."""
    random = np.random.default_rng(0)
    shape = (NUM_LABELS, 10, 64, 64, 3)
    colours = random.integers(0, 200, (NUM_LABELS, 1, 1, 1, 3)) + random.integers(0, 50, shape)
    path = tmp_path / "images.npz"
    labels = np.arange(NUM_LABELS).repeat(10)
    np.savez(path, x_train=colours.reshape(-1, 64, 64, 3).astype(np.uint8), y_train=labels)
    return path


def test_images_are_averaged_down(images):
    read, labels = train_tiny.read_images(images)
    original = np.load(images)["x_train"][3].astype(float)
    assert read.shape == (NUM_LABELS * 10, 3, 32, 32)
    assert read[3, 1, 4, 5].item() == pytest.approx(original[8:10, 10:12, 1].mean() / 127.5 - 1, abs=1e-6)
    assert labels[10] == 1


def test_distance_counts_pixels_and_edges():
    fake, real = torch.zeros(1, 1, 2, 2), torch.tensor([[[[0.0, 0.0], [0.0, 1.0]]]])
    # Pixels: 1 of 4 is off by 1. Down: 1 of 2 differences. Across: 1 of 2.
    assert train_tiny.image_distance(fake, real).item() == pytest.approx(0.25 + 0.5 + 0.5)


def test_two_steps_give_a_file_that_the_generator_takes(images, tmp_path, monkeypatch):
    monkeypatch.setattr(train_tiny, "CRITIC_LEAD", 1)
    monkeypatch.setattr(train_tiny, "BATCH", 8)
    monkeypatch.setattr(train_tiny, "NUM_LABELS", NUM_LABELS)
    out = tmp_path / "out.safetensors"
    steps = ["--decoding-steps", "2", "--sharpening-steps", "2"]
    monkeypatch.setattr(sys, "argv", ["train_tiny", str(images), str(out), *steps])
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        train_tiny.main()
    torch.set_num_threads(threads)
    weights = load_file(out)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float16}
    network = TinyNetwork()
    network.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    anchors = network.mapping.anchors_LAH[:NUM_LABELS]
    assert torch.allclose(anchors.square().mean(2), torch.ones(NUM_LABELS, 10), atol=1e-2)
    generator = TinyGenerator(network, torch.device("cpu"))
    latents = generator.draw_labelled(torch.arange(NUM_LABELS), torch.Generator().manual_seed(0))
    assert generator.images(latents).isfinite().all()
