"""FedKTL's toys: a generator of patterns, images with a bright line for each class, models of one layer."""

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from toys import CPU, Toy, assemble

from fedsim import config
from fedsim.data import ClientData, Dataset, Subset
from fedsim.generators import Generator
from fedsim.method import Task
from fedsim.models import SplitModel
from fedsim.models.base import Backbone

NUM_CLASSES, FEATURE_DIM, LATENT_DIM, SIDE = 5, 7, 6, 6
CLASSES_HELD = [[0, 1, 2], [1, 3], [0, 3]]  # nobody holds class 4


class FakeGenerator(Generator):
    """Latents around one centre for each label, and images that are sums of fixed patterns."""

    name, latent_dim, device, batch_size = "fake", LATENT_DIM, CPU, 4

    def __init__(self, image_shape: tuple[int, int, int] = (3, 8, 8), num_labels: int = 9):
        self.image_shape, self.num_labels = image_shape, num_labels
        draw = torch.Generator().manual_seed(3)
        self.centres_LH = torch.randn(max(num_labels, 1), LATENT_DIM, generator=draw)
        self.patterns = torch.randn(LATENT_DIM, math.prod(image_shape), generator=draw)

    def _draw(self, n, labels_N, generator):
        centres_NH = self.centres_LH[labels_N] if self.num_labels else self.centres_LH[:1].expand(n, -1)
        return centres_NH + 0.3 * torch.randn(n, LATENT_DIM, generator=generator)

    def _images(self, latents_NH):
        return (latents_NH @ self.patterns).sigmoid().reshape(-1, *self.image_shape)


def toy_data(client: int, channels: int, num_train: int) -> ClientData:
    draw = np.random.default_rng(client)
    num = num_train + 8
    labels = np.array(CLASSES_HELD[client])[draw.integers(len(CLASSES_HELD[client]), size=num)]
    inputs = draw.integers(0, 80, (num, SIDE, SIDE, channels)).astype(np.uint8)
    inputs[np.arange(num), labels] += 150  # a bright line, one for each class
    dataset = Dataset("toy", inputs, labels.astype(np.int64), NUM_CLASSES, num_train)
    return ClientData(Subset(dataset, np.arange(num_train)), Subset(dataset, np.arange(num_train, num)))


def toy_model(client: int, channels: int) -> SplitModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(client)
        inside = nn.Linear(channels * SIDE * SIDE, FEATURE_DIM)
        body = nn.Sequential(nn.Flatten(), inside, nn.BatchNorm1d(FEATURE_DIM), nn.Tanh())
        head = nn.Linear(FEATURE_DIM, NUM_CLASSES)
        return SplitModel("toy", Backbone(body, FEATURE_DIM), nn.Identity(), head, FEATURE_DIM)


def make(
    *,
    channels: int = 1,
    num_train: int = 24,
    train: dict[str, Any] | None = None,
    input_shape: tuple[int, ...] | None = None,
    **options: Any,
) -> Toy:
    experiment = config.build(
        [
            {
                "run": {"clients": 3},
                "model": {"feature_dim": FEATURE_DIM},
                "train": {"batch_size": 6, **(train or {})},
                "method": {"name": "fedktl", "server_epochs": 5, **options},
            }
        ]
    )
    return assemble(
        experiment,
        Task(3, NUM_CLASSES, FEATURE_DIM, input_shape or (channels, SIDE, SIDE)),
        [toy_model(client, channels) for client in range(3)],
        [toy_data(client, channels, num_train) for client in range(3)],
    )


def inputs_of(data: Subset) -> tuple[torch.Tensor, torch.Tensor]:
    """All samples as a model reads them, by hand."""
    images = data.dataset.inputs[data.indices].astype(np.float64) / 255
    return torch.from_numpy((images - 0.5) / 0.5).float().permute(0, 3, 1, 2), torch.from_numpy(data.labels)


def some_pairs(channels: int = 1) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(9)
    images = draw.uniform(-1, 1, (NUM_CLASSES, channels, SIDE, SIDE)).astype(np.float32)
    return {"images": images, "latents": draw.normal(size=(NUM_CLASSES, LATENT_DIM)).astype(np.float32)}
