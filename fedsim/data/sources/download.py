"""torchvision's downloads, moved into place only when they are complete."""

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 30.0

DOWNLOADS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "cifar10": ("CIFAR10", [{}]),
    "cifar100": ("CIFAR100", [{}]),
    "flowers102": ("Flowers102", [{}]),
    "fmnist": ("FashionMNIST", [{}]),
    "mnist": ("MNIST", [{}]),
    "svhn": ("SVHN", [{"split": "train"}, {"split": "test"}]),
}
"""The class in torchvision.datasets, and what to call it with to get all of its files."""


def download(name: str, folder: Path) -> str:
    """Fetch a data set into `folder`. Returns why it could not be had, or an empty text."""
    from fedsim.compat import import_torchvision

    kind, calls = DOWNLOADS[name]
    dataset = getattr(import_torchvision().datasets, kind)
    # Beside its final place, so that an interrupted download leaves nothing that looks like a data set.
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}-") as unfinished, _timeout():
        try:
            for options in calls:
                dataset(unfinished, download=True, **options)
        except (OSError, RuntimeError) as error:  # torchvision raises RuntimeError for a wrong checksum
            return str(error).rstrip(".") or type(error).__name__
        for path in Path(unfinished).iterdir():
            path.rename(folder / path.name)
    return ""


@contextlib.contextmanager
def _timeout() -> Iterator[None]:
    """torchvision sets none, and a silent server would stop every process of a run for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
