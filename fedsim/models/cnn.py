"""The plain networks: the 4-layer CNN, the eight CNNs of HtCNN8, and MLPs for all that is numbers.

All CNNs are 5×5 convolutions without padding (32, then 64 channels), each with ReLU and 2×2 max pooling,
followed by fully connected layers with ReLU, the last of which has 512 features.
"""

from itertools import pairwise
from math import prod

from torch import nn

from fedsim.config import Model
from fedsim.errors import UserError
from fedsim.models.base import Architecture, Backbone, ChannelsLast, image_sides, require_kind

CONV_CHANNELS = (32, 64)
FEATURES = 512

# HtCNN8 in its published order: (convolutions, fully connected layers before the one with 512 features).
HTCNN8 = {
    "CNN1": (1, ()),
    "CNN2": (2, ()),
    "CNN3": (1, (512,)),
    "CNN4": (2, (512,)),
    "CNN5": (1, (1024,)),
    "CNN6": (2, (1024,)),
    "CNN7": (1, (1024, 512)),
    "CNN8": (2, (1024, 512)),
}

MLP_WIDTH = 64

# Of the groups MLPs, MLP_1layer and MLP_layers: hidden layers before the one with 100 features.
MLP_HIDDEN: dict[str, tuple[int, ...]] = {
    "MLP-100": (),
    "MLP-200-100": (200,),
    "MLP-500-100": (500,),
    "MLP-1000-500-100": (1000, 500),
    "MLP-1000-500-200-100": (1000, 500, 200),
}
MLP_FEATURES = 100


def cnn(name: str, input_shape: tuple[int, ...], config: Model) -> Backbone:
    """`CNN1` to `CNN8`; `CNN`, the 4-layer CNN of the other groups, is `CNN2`: two convolutions, 512, C."""
    num_convs, hidden = HTCNN8["CNN2" if name == "CNN" else name]
    channels, height, width = image_sides(name, input_shape)
    layers: list[nn.Module] = [ChannelsLast()]
    for out_channels in CONV_CHANNELS[:num_convs]:
        # ReLU and the maximum commute, bit for bit and in the gradient; after pooling there is less to do.
        layers += [nn.Conv2d(channels, out_channels, 5), nn.MaxPool2d(2), nn.ReLU(inplace=True)]
        channels, height, width = out_channels, (height - 4) // 2, (width - 4) // 2
    if min(height, width) < 1:
        side = {1: 6, 2: 16}[num_convs]
        raise UserError(
            f"model {name} takes images of at least {side}x{side} pixels, not "
            f"{input_shape[1]}x{input_shape[2]}; set data.image_size = {side} where the data are your own, or use "
            "model.group = MLP."
        )
    layers.append(nn.Flatten())
    for inputs, outputs in pairwise((channels * height * width, *hidden, FEATURES)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
    return Backbone(nn.Sequential(*layers), FEATURES)


def mlp(name: str, input_shape: tuple[int, ...], config: Model) -> Backbone:
    """Five fully connected layers with ReLU between them; the fifth, the decision layer, has K outputs.

    It is the classifier of ProtoNorm's spiral experiment, where K = 2. Nothing follows the decision layer: a
    ReLU would confine the features to one quadrant, and the paper's prototypes lie all around the origin. The
    paper does not give the hidden width; with 64 units and K = 2 the six arms are learnt within a few epochs
    as far as they can be told apart, and more units do not help. Images are flattened.
    """
    require_kind(name, input_shape, "vector", "signal", "image")
    sizes = (prod(input_shape), *(MLP_WIDTH,) * 4, config.feature_dim)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
    return Backbone(nn.Sequential(*layers[:-1]), config.feature_dim)


def deep_mlp(name: str, input_shape: tuple[int, ...], config: Model) -> Backbone:
    """Fully connected layers with ReLU, the last with 100 features; published for bags of 5,000 words."""
    require_kind(name, input_shape, "vector", "signal", "image")
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise((prod(input_shape), *MLP_HIDDEN[name], MLP_FEATURES)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True)]
    return Backbone(nn.Sequential(*layers), MLP_FEATURES)


MODELS = {
    **{name: Architecture(deep_mlp) for name in MLP_HIDDEN},
    "MLP": Architecture(mlp, 1),
    "CNN": Architecture(cnn, 140),
    "CNN1": Architecture(cnn, 210),
    "CNN2": Architecture(cnn, 140),
    "CNN3": Architecture(cnn, 270),
    "CNN4": Architecture(cnn, 150),
    "CNN5": Architecture(cnn, 460),
    "CNN6": Architecture(cnn, 260),
    "CNN7": Architecture(cnn, 530),
    "CNN8": Architecture(cnn, 290),
}
