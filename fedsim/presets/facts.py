"""What tables need to know of data sets and models before any is loaded: sizes, and what training them costs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DataFacts:
    """Sizes of a data set as the partition sees it."""

    input_shape: tuple[int, ...]
    num_classes: int
    num_samples: int
    smallest_class: int


DATASETS = {
    "cifar10": DataFacts((3, 32, 32), 10, 60_000, 6000),
    "cifar100": DataFacts((3, 32, 32), 100, 60_000, 600),
    "digits": DataFacts((1, 28, 28), 10, 1797, 174),
    "flowers102": DataFacts((3, 64, 64), 102, 8189, 40),
    "fmnist": DataFacts((1, 28, 28), 10, 70_000, 7000),
    "spiral": DataFacts((2,), 6, 30_000, 5000),
    "spiral_clean": DataFacts((2,), 6, 30_000, 5000),
    "tiny_imagenet": DataFacts((3, 64, 64), 200, 100_000, 500),
}

TRAINING_MFLOPS = {
    "CNN": 140,
    "CNN1": 210,
    "CNN2": 140,
    "CNN3": 270,
    "CNN4": 150,
    "CNN5": 460,
    "CNN6": 260,
    "CNN7": 530,
    "CNN8": 290,
    "ResNet4": 210,
    "ResNet6": 330,
    "ResNet8": 460,
    "ResNet10": 1000,
    "ResNet18": 2200,
    "ResNet34": 3900,
    "ResNet50": 12000,
    "ResNet101": 32000,
    "ResNet152": 39000,
    "GoogLeNet": 2000,
    "MobileNetV2": 1400,
    "ShuffleNetV2": 930,
    "EfficientNetB0": 2100,
    "ViT-B/16": 18000,
    "ViT-B/32": 11000,
    "MLP": 1,
}
"""Time of training on one 3×32×32 sample in a batch of 10, on one core, in millions of operations of a matrix
product on that core. Small batches do not reach the speed of a matrix product, and SGD moves all weights once a
batch, so this is about 10 times (CNN) to 150 times (ShuffleNetV2) what the forward pass counts."""

PUBLISHED_PIXELS = 32 * 32
EVALUATION_SHARE = 0.25
"""Time of a sample that is only passed through the model, to predict or for prototypes, as a share of training."""
