"""Models of signals: convolutions along time, the same for all sensors, then fully connected layers.

HARCNN has two convolutions of (1, 9), HARCNN1 the first only, HARCNN3 three of (1, 5), each with ReLU and pooling
of (1, 2) with stride 2; `-s2` and `-s3` have convolutions of that stride. Then fully connected layers, 1024 and
512, and the head. The published code cuts all three off together, so that features are what the convolutions give,
pooled to K: `model.feature_cut = published`. Strides are along both axes, as published, so that of several sensors
some are left out.
"""

import re
from dataclasses import dataclass

from torch import Tensor, nn

from fedsim.config import Model
from fedsim.errors import UserError
from fedsim.models.base import Architecture, Backbone, require_kind

HIDDEN, FEATURES = 1024, 512


@dataclass(frozen=True)
class Convolutions:
    channels: tuple[int, ...]
    width: int

    def sizes(self, size: tuple[int, int], stride: int) -> tuple[int, int]:
        """(sensors, steps) after all of them; 0 steps where a signal is too short."""
        sensors, steps = size
        for _ in self.channels:
            # A convolution, then pooling: the windows that fit, along both axes.
            sensors, steps = (sensors - 1) // stride + 1, (steps - self.width) // stride + 1
            sensors, steps = (sensors - 1) // 2 + 1, max(0, (steps - 2) // 2 + 1)
        return sensors, steps


KINDS = {
    "HARCNN": Convolutions((32, 64), 9),
    "HARCNN1": Convolutions((32,), 9),
    "HARCNN3": Convolutions((32, 64, 128), 5),
}


class AsPlane(nn.Module):
    """Signals of one sensor may come as (B, ch, steps)."""

    def forward(self, signals: Tensor) -> Tensor:
        return signals[:, :, None] if signals.ndim == 3 else signals


def har_cnn(name: str, input_shape: tuple[int, ...], config: Model) -> Backbone:
    match = re.fullmatch(r"(HARCNN\d?)(?:-s(\d))?", name)
    assert match, name
    kind, stride = KINDS[match[1]], int(match[2] or 1)
    sample = require_kind(name, input_shape, "signal")
    channels, size = sample[0], (sample[1] if len(sample) == 3 else 1, sample[-1])
    sensors, steps = kind.sizes(size, stride)
    if steps < 1:
        least = next(steps for steps in range(1, 10_000) if kind.sizes((1, steps), stride)[1] >= 1)
        raise UserError(
            f"model {name} takes signals of at least {least} steps, not {size[1]}; use a dataset of longer ones, "
            "or a model with fewer or denser convolutions such as HARCNN1."
        )
    layers: list[nn.Module] = [AsPlane()]
    for out_channels in kind.channels:
        layers += [
            nn.Conv2d(channels, out_channels, (1, kind.width), stride=stride),
            nn.ReLU(inplace=True),
            nn.MaxPool2d((1, 2), stride=2),
        ]
        channels = out_channels
    layers.append(nn.Flatten())
    dim = channels * sensors * steps
    if config.feature_cut == "published":
        return Backbone(nn.Sequential(*layers), dim)
    layers += [nn.Linear(dim, HIDDEN), nn.ReLU(inplace=True), nn.Linear(HIDDEN, FEATURES), nn.ReLU(inplace=True)]
    return Backbone(nn.Sequential(*layers), FEATURES)


_NAMES = [f"{kind}{suffix}" for kind in KINDS for suffix in ("", "-s2", "-s3")]
MODELS = {name: Architecture(har_cnn) for name in _NAMES if name != "HARCNN3-s3"}
"""Without the one that no group has, and that is too coarse for 128 steps."""
