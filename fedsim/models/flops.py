"""What a model costs: parameters and floating-point operations, as FedTGP's appendix tabulates them.

Operations are counted by torch for the forward pass of one sample: two for each multiply-add of convolutions,
matrix products and attention, none for what is done element by element.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedsim.config import Model
from fedsim.data.inputs import example_batch
from fedsim.models import SplitModel, build, groups

PUBLISHED_SHAPE = (3, 32, 32)
PUBLISHED_FLOPS = {
    "CNN": 0.013e9,
    "GoogLeNet": 1.530e9,
    "MobileNetV2": 0.314e9,
    "ResNet18": 0.117e9,
    "ResNet34": 0.218e9,
    "ResNet50": 1.305e9,
    "ResNet101": 2.532e9,
    "ResNet152": 5.330e9,
}
"""FedTGP, Table 8, for CIFAR-100. The table cites other papers, which count for other image sizes, stems and
conventions, so no single way of counting gives these numbers. Table 12 was made from them."""

_CANNOT_COUNT = (RuntimeError, NotImplementedError, ValueError, TypeError)
"""What an own model may raise on the meta device, for example where it looks at numbers."""


@dataclass(frozen=True)
class Profile:
    """One entry of a group on one task."""

    name: str
    num_parameters: int
    forward_flops: int | None
    """None for an own model that cannot be computed without numbers."""
    backbone_dim: int
    feature_dim: int
    head: str


def profile_group(config: Model, input_shape: tuple[int, ...], num_classes: int) -> list[Profile]:
    """All entries of the group. Nothing is computed or allocated: the models live on torch's meta device."""
    num_entries = len(groups.entries(config.group))
    return [_profile(config, client, input_shape, num_classes) for client in range(num_entries)]


def forward_flops(model: SplitModel, input_shape: tuple[int, ...]) -> int:
    """Of one sample, in evaluation mode. Works on models on the meta device too."""
    device = next(model.parameters()).device
    model.eval()
    # Gradients stay on: without them attention takes a fused path that the counter does not know.
    with FlopCounterMode(display=False) as counter:
        model(example_batch(1, input_shape, device))
    return counter.get_total_flops()


def round_flops(forward: Sequence[float], num_clients: int, factor: float) -> float:
    """Table 12: factor × Σ over clients of one sample's forward pass, client i with entry i mod X.

    The paper's text says "tripled" (one forward pass, and twice that for the backward pass), but the numbers
    that it prints are 4 times the sum.
    """
    return factor * sum(forward[client % len(forward)] for client in range(num_clients))


def _profile(config: Model, client: int, input_shape: tuple[int, ...], num_classes: int) -> Profile:
    with torch.device("meta"):
        model = build(config, client, input_shape, num_classes)
    flops: int | None = None
    with contextlib.suppress(*_CANNOT_COUNT if groups.entry(config, client).is_elsewhere else ()):
        flops = forward_flops(model, input_shape)
    return Profile(
        name=model.name,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        forward_flops=flops,
        backbone_dim=model.backbone_dim,
        feature_dim=model.feature_dim,
        head=_describe(model.head),
    )


def _describe(head: nn.Module) -> str:
    """`512 → 256 ReLU → 100`."""
    text = ""
    for layer in head.modules():
        if isinstance(layer, nn.Linear):
            text = (text or str(layer.in_features)) + f" → {layer.out_features}"
        elif not isinstance(layer, nn.Sequential):
            text += f" {type(layer).__name__}"
    return text
