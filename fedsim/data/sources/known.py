"""The data sets that are known by name. A new one is an entry here, and perhaps a reader in a file beside."""

from collections.abc import Callable
from dataclasses import dataclass

from fedsim.data.sources import archives, folders, idx, synthetic
from fedsim.data.sources.base import Source
from fedsim.data.sources.download import Download


@dataclass(frozen=True)
class Known:
    """Where a published data set may lie, and how to recognise it there."""

    num_classes: int
    folders: tuple[str, ...]
    """Below each data folder, in this order; "." is the data folder itself."""
    find: Callable[..., Source | None]
    """Called with a folder and the number of classes, and with `side` for images that come as files."""
    archives: tuple[str, ...] = ()
    """Names of .npz files that are accepted beside its own."""
    side: int | None = None
    """Side of the images, where they come as files."""
    system_folder: str = ""
    train_only: bool = False
    download: Download | None = None
    remedy: str = "put torchvision's files or {name}.npz into a folder and name it with --data-dir"


KNOWN = {
    "cifar10": Known(10, ("cifar-10-batches-py", "."), archives.find_cifar, download=Download("CIFAR10")),
    "cifar100": Known(100, ("cifar-100-python", "."), archives.find_cifar, download=Download("CIFAR100")),
    "flowers102": Known(
        102, ("flowers-102", "."), folders.find_flowers102, side=64, download=Download("Flowers102")
    ),
    "fmnist": Known(
        10,
        ("FashionMNIST/raw", "fashion-mnist", "fmnist", "."),
        idx.find,
        system_folder="/usr/share/datasets/fashion-mnist",
        download=Download("FashionMNIST"),
        remedy="install Debian's package dataset-fashion-mnist, or put the four idx files into a folder and "
        "name it with --data-dir",
    ),
    "mnist": Known(10, ("MNIST/raw", "mnist", "."), idx.find, download=Download("MNIST")),
    "svhn": Known(
        10,
        ("svhn", "SVHN", "."),
        archives.find_svhn,
        download=Download("SVHN", ({"split": "train"}, {"split": "test"})),
    ),
    "tiny_imagenet": Known(
        200,
        ("tiny-imagenet-200", "tiny_imagenet"),
        folders.find_tree,
        archives=("tiny_imagenet_small",),
        side=64,
        train_only=True,
        remedy="unpack cs231n.stanford.edu/tiny-imagenet-200.zip into a folder and name it with --data-dir",
    ),
}
"""Published data sets, as files."""

SYNTHETIC = {"digits": synthetic.digits, "spiral": synthetic.spiral, "spiral_clean": synthetic.spiral_clean}
"""Data sets that need no file."""
