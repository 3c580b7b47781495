"""The data sets that are known by name. A new one is an entry here, and perhaps a reader in a file beside."""

from collections.abc import Callable
from dataclasses import dataclass

from fedsim.data.inputs import InputShape
from fedsim.data.sources import archives, folders, idx, sensors, synthetic, texts
from fedsim.data.sources.base import Source
from fedsim.data.sources.download import Download


@dataclass(frozen=True)
class Sizes:
    """Of a data set as it is published, so that work can be planned before any file is there."""

    input_shape: tuple[int, ...]  # of what is no image an InputShape
    num_classes: int
    num_samples: int
    smallest_class: int


@dataclass(frozen=True)
class Known:
    """Where a published data set may lie, and how to recognise it there."""

    sizes: Sizes
    folders: tuple[str, ...]
    """Below each data folder, in this order; "." is the data folder itself."""
    find: Callable[..., Source | None]
    """Called with a folder and the number of classes, with `side` for images that come as files, and with `wish`
    for texts and signals."""
    archives: tuple[str, ...] = ()
    """Names of .npz files that are accepted beside its own."""
    side: int | None = None
    """Side of the images, where they come as files."""
    takes_wish: bool = False
    system_folder: str = ""
    train_only: bool = False
    download: Download | None = None
    remedy: str = "put torchvision's files or {name}.npz into a folder and name it with --data-dir"


KNOWN = {
    "ag_news": Known(
        Sizes(InputShape((texts.LENGTH,), "tokens", texts.VOCABULARY), 4, 127_600, 31_900),
        ("ag_news_csv", "ag_news"),
        texts.find_ag_news,
        takes_wish=True,
        remedy="put the publisher's folder ag_news_csv (train.csv, test.csv) into a folder and name that one with "
        "--data-dir",
    ),
    "har": Known(
        Sizes(InputShape((9, 1, sensors.HAR_STEPS), "signal"), 6, 10_299, 1406),
        ("UCI HAR Dataset", "har"),
        sensors.find_har,
        takes_wish=True,
        remedy='unpack "UCI HAR Dataset" of the UCI repository into a folder and name that one with --data-dir',
    ),
    "pamap2": Known(
        Sizes(InputShape((9, 3, sensors.PAMAP2_WINDOW), "signal"), 12, 13_000, 300),
        ("PAMAP2_Dataset", "pamap2"),
        sensors.find_pamap2,
        takes_wish=True,
        remedy="unpack PAMAP2_Dataset (Protocol/subject101.dat, ...) of the UCI repository into a folder and name "
        "that one with --data-dir",
    ),
    "cifar10": Known(
        Sizes((3, 32, 32), 10, 60_000, 6000),
        ("cifar-10-batches-py", "."),
        archives.find_cifar,
        download=Download("CIFAR10"),
    ),
    "cifar100": Known(
        Sizes((3, 32, 32), 100, 60_000, 600),
        ("cifar-100-python", "."),
        archives.find_cifar,
        download=Download("CIFAR100"),
    ),
    "flowers102": Known(
        Sizes((3, 64, 64), 102, 8189, 40),
        ("flowers-102", "."),
        folders.find_flowers102,
        side=64,
        download=Download("Flowers102"),
    ),
    "fmnist": Known(
        Sizes((1, 28, 28), 10, 70_000, 7000),
        ("FashionMNIST/raw", "fashion-mnist", "fmnist", "."),
        idx.find,
        system_folder="/usr/share/datasets/fashion-mnist",
        download=Download("FashionMNIST"),
        remedy="install Debian's package dataset-fashion-mnist, or put the four idx files into a folder and "
        "name it with --data-dir",
    ),
    "mnist": Known(
        Sizes((1, 28, 28), 10, 70_000, 6313), ("MNIST/raw", "mnist", "."), idx.find, download=Download("MNIST")
    ),
    "svhn": Known(
        Sizes((3, 32, 32), 10, 99_289, 6254),
        ("svhn", "SVHN", "."),
        archives.find_svhn,
        download=Download("SVHN", ({"split": "train"}, {"split": "test"})),
    ),
    "tiny_imagenet": Known(
        Sizes((3, 64, 64), 200, 100_000, 500),
        ("tiny-imagenet-200", "tiny_imagenet"),
        folders.find_tree,
        archives=("tiny_imagenet_small",),
        side=64,
        train_only=True,
        remedy="unpack cs231n.stanford.edu/tiny-imagenet-200.zip into a folder and name it with --data-dir",
    ),
}
"""Published data sets, as files."""


@dataclass(frozen=True)
class Synthetic:
    """A data set that needs no file."""

    sizes: Sizes
    make: Callable[[], Source]


_SPIRAL = Sizes((2,), synthetic.NUM_ARMS, synthetic.NUM_ARMS * synthetic.NUM_POINTS, synthetic.NUM_POINTS)
SYNTHETIC = {
    "digits": Synthetic(Sizes((1, 28, 28), 10, 1797, 174), synthetic.digits),
    "spiral": Synthetic(_SPIRAL, synthetic.spiral),
    "spiral_clean": Synthetic(_SPIRAL, synthetic.spiral_clean),
}


def sizes_of(name: str) -> Sizes | None:
    """None for data of the user's own."""
    found = KNOWN.get(name) or SYNTHETIC.get(name)
    return found.sizes if found else None
