"""The one shape of every client model: an extractor that ends in K features, and a head on top of it.

Backbones of a group end in different sizes d. A mapping d → K makes their features, and so their
prototypes, comparable between clients.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedsim.config import Model
from fedsim.data.inputs import InputShape, Kind, described
from fedsim.errors import UserError


@dataclass(frozen=True)
class Backbone:
    """An extractor before its features are mapped to K. `module` turns a batch into (B, dim)."""

    module: nn.Module
    dim: int


@dataclass(frozen=True)
class Architecture:
    """A model that can be asked for by name."""

    make: Callable[[str, tuple[int, ...], Model], Backbone]
    """From the name, the shape of a sample and the settings."""
    training_mflops: float | None = None
    """Time of training on one 3×32×32 sample in a batch of 10, on one core, in millions of operations of a matrix
    product on that core: what estimates of a run's time are made of. Small batches do not reach the speed of a
    matrix product, and SGD moves all weights once a batch, so it is about 10 times (CNN) to 150 times
    (ShuffleNetV2) what the forward pass counts."""


class SplitModel(nn.Module):
    """Extractor and head. Methods train both, and share features, logits or the head alone."""

    def __init__(self, name: str, backbone: Backbone, mapping: nn.Module, head: nn.Module, feature_dim: int):
        super().__init__()
        self.name = name
        self.extractor = nn.Sequential(backbone.module, mapping)
        self.head = head
        self.backbone_dim = backbone.dim
        self.feature_dim = feature_dim

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        """(B, …) → (B, K)."""
        return self.extractor(inputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(B, …) → (B, C) logits."""
        return self.head(self.extractor(inputs))


class ChannelsLast(nn.Module):
    """Lays the pixels of a batch out channel by channel, so that on a CPU all layers behind it work in that
    layout. Training gets up to a half faster for the networks that begin with it; ResNets would get slower.

    Shapes stay (B, ch, h, w), weights stay as they are, results differ by rounding only.
    """

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.device.type != "cpu":
            return images
        batch, channels, height, width = images.shape
        # Not `contiguous(memory_format=…)`, which leaves the strides of one-channel images as they are, and
        # convolutions choose their layout by strides.
        pixels = images.permute(0, 2, 3, 1).flatten(1).reshape(batch, height, width, channels)
        return pixels.permute(0, 3, 1, 2)


def feature_mapping(kind: str, backbone_dim: int, feature_dim: int) -> nn.Module:
    """(B, d) → (B, K).

    pool: adaptive average pooling along the feature vector, as the published groups have it in the place of
    the classifier. It has no weights; bins overlap where d is not a multiple of K, values repeat where d < K.
    For d = K it would be the identity. project: a learnable linear layer, also for d = K.
    """
    if kind == "project":
        return nn.Linear(backbone_dim, feature_dim)
    if backbone_dim == feature_dim:
        return nn.Identity()
    return nn.AdaptiveAvgPool1d(feature_dim)  # takes (B, d) as B channels of one sample: the same numbers


FITTING_GROUPS = {"tokens": "HtFE-txt-4", "signal": "HtFE-sen-2", "image": "HtCNN8", "vector": "MLP"}
"""What to use for samples of a kind, of those that have groups of their own."""


SMALLEST = {"tokens": "fastText", "signal": "HARCNN-s2", "image": "CNN", "vector": "MLP"}
"""A model that is small for its kind, for what all clients or the server are to have beside the clients' own."""


SAY_WHAT_NUMBERS_ARE = ", or, if they are pixels, say so with data.shape, as in 1x28x28"


def require_kind(model: str, input_shape: tuple[int, ...], *kinds: Kind) -> InputShape:
    """The shape, or the reason why this model cannot take such data."""
    sample = described(input_shape)
    if sample.kind not in kinds:
        wanted = "numbers" if len(kinds) > 1 else {"tokens": "texts"}.get(kinds[0], f"{kinds[0]}s")
        unless = SAY_WHAT_NUMBERS_ARE if sample.kind == "vector" else ""
        raise UserError(
            f"model {model} takes {wanted}, but a sample of this dataset is {sample}; "
            f"use model.group = {FITTING_GROUPS[sample.kind]}{unless}."
        )
    return sample


def image_sides(model: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(channels, height, width), or the reason why this model cannot take such data."""
    channels, height, width = require_kind(model, input_shape, "image")
    return channels, height, width


def stem_conv(conv: nn.Conv2d, channels: int, *, small_images: bool) -> nn.Conv2d:
    """What stands in for a network's first convolution: other input channels, or 3×3 without stride.

    Initialised as ResNets are; all networks that use it normalise the result, so the scale is immaterial.
    """
    window: tuple[Any, Any, Any] = (3, 1, 1) if small_images else (conv.kernel_size, conv.stride, conv.padding)
    new = nn.Conv2d(channels, conv.out_channels, *window, bias=conv.bias is not None)
    nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    return new
