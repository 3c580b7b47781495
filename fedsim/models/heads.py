"""Heads: (B, K) features → (B, C) logits."""

from itertools import pairwise
from typing import cast

from torch import nn

from fedsim.config import Model
from fedsim.models.groups import Entry
from fedsim.models.torchvision_zoo import VIT_DIM, VIT_PATCHES


def make_head(entry: Entry, config: Model, num_classes: int) -> nn.Module:
    """One linear layer, unless the entry asks for hidden ones (HtC4) or is a vision transformer (HtM10).

    The code published with HtC4 has a ReLU after the logits too. It kills every negative logit together with
    its gradient, so it is here only on request.
    """
    hidden, activation = entry.head_hidden, cast(type[nn.Module], nn.ReLU)
    if entry.model in VIT_PATCHES and not hidden:
        hidden, activation = (VIT_DIM,), nn.Tanh
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((config.feature_dim, *hidden, num_classes)):
        layers += [nn.Linear(inputs, outputs), activation()]
    layers[-1:] = [nn.ReLU()] if config.relu_logits else []
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)
