"""Backbones from torchvision: untrained, without their classifiers, else unchanged.

The published groups keep the stems made for ImageNet, which shrink a 32×32 image to 1×1 in the last stage;
`cifar_stem` avoids that at the price of more computation. The first convolution is also replaced where images
do not have three channels. torchvision is imported when one of its models is built, not before: it takes
seconds and tens of megabytes that processes with small CNNs need not spend.
"""

from typing import Any

from torch import nn

from fedsim.compat import import_torchvision
from fedsim.config import Model
from fedsim.errors import UserError
from fedsim.models.base import Architecture, Backbone, ChannelsLast, image_sides, stem_conv

STEM_CHANNELS = 3
GOOGLENET_MIN_SIDE = 15  # a smaller image has no pixel left at the fourth pooling
RESNET_DIMS = {"ResNet18": 512, "ResNet34": 512, "ResNet50": 2048, "ResNet101": 2048, "ResNet152": 2048}
VIT_PATCHES = {"ViT-B/16": 16, "ViT-B/32": 32}
VIT_DIM = 768


def resnet(name: str, input_shape: tuple[int, ...], config: Model) -> Backbone:
    channels, _, _ = image_sides(name, input_shape)
    network = _build(name.lower())
    network.fc = nn.Identity()
    if _other_stem(channels, config):
        network.conv1 = stem_conv(network.conv1, channels, small_images=config.cifar_stem)
    if config.cifar_stem:
        network.maxpool = nn.Identity()
    return Backbone(network, RESNET_DIMS[name])


def googlenet(name: str, input_shape: tuple[int, ...], config: Model) -> Backbone:
    """Without the auxiliary classifiers. Its dropout of .2 stands before the classifier and so stays."""
    channels, height, width = image_sides(name, input_shape)
    if min(height, width) < GOOGLENET_MIN_SIDE and not config.cifar_stem:
        raise UserError(
            f"model {name} takes images of at least {GOOGLENET_MIN_SIDE}x{GOOGLENET_MIN_SIDE} pixels, not "
            f"{height}x{width}; set model.cifar_stem = true, or data.image_size where the data are your own."
        )
    network = _build("googlenet", aux_logits=False, init_weights=True)
    network.fc = nn.Identity()
    if _other_stem(channels, config):
        network.conv1.conv = stem_conv(network.conv1.conv, channels, small_images=config.cifar_stem)
    if config.cifar_stem:
        network.maxpool1 = nn.Identity()
    return Backbone(nn.Sequential(ChannelsLast(), network), 1024)


def mobile(name: str, input_shape: tuple[int, ...], config: Model) -> Backbone:
    """As published, MobileNetV2 keeps the dropout of .2 before its classifier, EfficientNet loses it with it."""
    channels, _, _ = image_sides(name, input_shape)
    network = _build({"MobileNetV2": "mobilenet_v2", "EfficientNetB0": "efficientnet_b0"}[name])
    network.classifier = network.classifier[0] if name == "MobileNetV2" else nn.Identity()
    _replace_first_conv(network.features[0], channels, config)
    return Backbone(nn.Sequential(ChannelsLast(), network), 1280)


def shufflenet_v2(name: str, input_shape: tuple[int, ...], config: Model) -> Backbone:
    channels, _, _ = image_sides(name, input_shape)
    network = _build("shufflenet_v2_x1_0")
    network.fc = nn.Identity()
    _replace_first_conv(network.conv1, channels, config)
    if config.cifar_stem:
        network.maxpool = nn.Identity()
    return Backbone(network, 1024)


def vit(name: str, input_shape: tuple[int, ...], config: Model) -> Backbone:
    """Vision transformer for this image size: 4 and 1 patches of a 32×32 image. It has no stem to change."""
    channels, height, width = image_sides(name, input_shape)
    patch = VIT_PATCHES[name]
    if height != width or height % patch:
        raise UserError(
            f"model {name} takes square images with sides that are multiples of {patch} pixels, not "
            f"{height}x{width}; use a dataset of such images, or a model group without it."
        )
    network = _build(f"vit_b_{patch}", image_size=height)
    network.heads = nn.Identity()
    if channels != STEM_CHANNELS:
        # Nothing normalises the patches, so the scale matters here: 1/fan_in, as torchvision has it.
        network.conv_proj = nn.Conv2d(channels, VIT_DIM, patch, patch)
        nn.init.trunc_normal_(network.conv_proj.weight, std=(channels * patch * patch) ** -0.5)
        nn.init.zeros_(network.conv_proj.bias)
    return Backbone(network, VIT_DIM)


def _build(function: str, **options: Any) -> Any:
    return getattr(import_torchvision().models, function)(weights=None, **options)


def _other_stem(channels: int, config: Model) -> bool:
    return channels != STEM_CHANNELS or config.cifar_stem


def _replace_first_conv(block: Any, channels: int, config: Model) -> None:
    """`block` is convolution, normalisation, activation."""
    if _other_stem(channels, config):
        block[0] = stem_conv(block[0], channels, small_images=config.cifar_stem)


MODELS = {
    "ResNet18": Architecture(resnet, 2200),
    "ResNet34": Architecture(resnet, 3900),
    "ResNet50": Architecture(resnet, 12_000),
    "ResNet101": Architecture(resnet, 32_000),
    "ResNet152": Architecture(resnet, 39_000),
    "GoogLeNet": Architecture(googlenet, 2000),
    "MobileNetV2": Architecture(mobile, 1400),
    "ShuffleNetV2": Architecture(shufflenet_v2, 930),
    "EfficientNetB0": Architecture(mobile, 2100),
    "ViT-B/16": Architecture(vit, 18_000),
    "ViT-B/32": Architecture(vit, 11_000),
}
