"""Networks to start from. They go by their names in this file, beside all others:

fedsim check ./FILE:Small
fedsim run --model-group ./FILE:Small,./FILE:make_wide,CNN2
"""

import torch
from torch import nn


class Small(nn.Module):
    """Whatever ends in a linear layer will do: its input are the features, and the layer gives way to a head.

    A class or a function is given what it asks for by name: num_classes, in_channels, input_shape, feature_dim.
    """

    def __init__(self, num_classes: int, in_channels: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(in_channels, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(32 * 2 * 2, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.body(images))


def make_wide(num_classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """A function that makes a network; this one takes any samples."""
    size = int(torch.Size(input_shape).numel())
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 256), nn.ReLU(), nn.Linear(256, num_classes))
