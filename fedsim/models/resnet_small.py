"""ResNet4, 6, 8 and 10: one to four stages of one basic block each.

Layer for layer what torchvision builds for ResNet18 with fewer blocks, so ResNet10 belongs to the same family
as ResNet18 and up. Written out here because torchvision cannot leave stages away.
"""

import torch
from torch import nn

from fedsim.config import Model
from fedsim.models.base import Architecture, Backbone, image_sides, stem_conv

STAGE_CHANNELS = (64, 128, 256, 512)
NUM_STAGES = {"ResNet4": 1, "ResNet6": 2, "ResNet8": 3, "ResNet10": 4}


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.relu(self.bn1(self.conv1(inputs)))
        return self.relu(self.bn2(self.conv2(hidden)) + self.shortcut(inputs))


class SmallResNet(nn.Module):
    """(B, ch, h, w) → (B, channels of the last stage)."""

    def __init__(self, channels: int, num_stages: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, STAGE_CHANNELS[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(STAGE_CHANNELS[0])
        self.relu = nn.ReLU(inplace=True)
        self.maxpool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1)
        stages, in_channels = [], STAGE_CHANNELS[0]
        for index, out_channels in enumerate(STAGE_CHANNELS[:num_stages]):
            stages.append(BasicBlock(in_channels, out_channels, stride=1 if index == 0 else 2))
            in_channels = out_channels
        self.stages = nn.Sequential(*stages)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        maps = self.stages(self.maxpool(self.relu(self.bn1(self.conv1(inputs)))))
        return maps.mean(dim=(2, 3))


def small_resnet(name: str, input_shape: tuple[int, ...], config: Model) -> Backbone:
    channels, _, _ = image_sides(name, input_shape)
    num_stages = NUM_STAGES[name]
    network = SmallResNet(channels, num_stages)
    if config.cifar_stem:
        network.conv1 = stem_conv(network.conv1, channels, small_images=True)
        network.maxpool = nn.Identity()
    return Backbone(network, STAGE_CHANNELS[num_stages - 1])


MODELS = {
    "ResNet4": Architecture(small_resnet, 210),
    "ResNet6": Architecture(small_resnet, 330),
    "ResNet8": Architecture(small_resnet, 460),
    "ResNet10": Architecture(small_resnet, 1000),
}
