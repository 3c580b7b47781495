"""Finding a data set, by its name or by the path of one's own data.

A name is looked for in `data.data_dir`, in FEDSIM_DATA, among earlier downloads and in system folders; then
torchvision downloads it. A path may be a tree of class folders, a folder of idx files, an .npz file, or a
folder that PFLlib or HtFLlib generated.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedsim.data.cache import cache_folder, locked
from fedsim.data.sources import archives, folders, idx, pfllib, synthetic
from fedsim.data.sources.base import Allocate, Decoded, Source, reading
from fedsim.data.sources.download import DOWNLOADS, download
from fedsim.errors import UnknownName, UserError

__all__ = ["Allocate", "Decoded", "Source", "find_here", "locate", "names", "reading"]


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
    remedy: str = "put torchvision's files or {name}.npz into a folder and name it with --data-dir"


KNOWN = {
    "cifar10": Known(10, ("cifar-10-batches-py", "."), archives.find_cifar),
    "cifar100": Known(100, ("cifar-100-python", "."), archives.find_cifar),
    "flowers102": Known(102, ("flowers-102", "."), folders.find_flowers102, side=64),
    "fmnist": Known(
        10,
        ("FashionMNIST/raw", "fashion-mnist", "fmnist", "."),
        idx.find,
        system_folder="/usr/share/datasets/fashion-mnist",
        remedy="install Debian's package dataset-fashion-mnist, or put the four idx files into a folder and "
        "name it with --data-dir",
    ),
    "mnist": Known(10, ("MNIST/raw", "mnist", "."), idx.find),
    "svhn": Known(10, ("svhn", "SVHN", "."), archives.find_svhn),
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
SYNTHETIC = {"digits": synthetic.digits, "spiral": synthetic.spiral, "spiral_clean": synthetic.spiral_clean}


def names() -> list[str]:
    return sorted({*KNOWN, *SYNTHETIC})


def locate(name: str, data_dir: str = "", image_size: int = 0) -> Source:
    """`image_size` is the side for images that come as files; 0: the usual one."""
    if name in SYNTHETIC:
        return SYNTHETIC[name]()
    if name in KNOWN:
        found = _locate_known(name, data_dir, image_size)
        return replace(found, name=name, train_only=KNOWN[name].train_only)
    if "/" in name or name.startswith("~") or name.endswith(".npz"):
        path = Path(name).expanduser().resolve()
        return replace(_locate_path(path, image_size), name=path.stem)
    raise UnknownName("data set", name, names())


def _locate_known(name: str, data_dir: str, image_size: int) -> Source:
    if data_dir and not Path(data_dir).expanduser().is_dir():
        raise UserError(f"data.data_dir = {data_dir!r} is not a folder; give one that holds {name}.")
    downloads, roots = _downloads(), _roots(name, data_dir)
    search = partial(_search, name, image_size)
    if found := find_here(name, data_dir, image_size):
        return found
    reason = "torchvision does not offer it"
    if name in DOWNLOADS:
        # Of processes that start together one downloads; the others wait for the lock and find its work.
        with locked(downloads / f"{name}.lock"):
            reason = "" if search(downloads) else download(name, downloads)
        if found := search(downloads):
            return found
    places = ", ".join(map(str, roots))
    remedy = KNOWN[name].remedy.format(name=name)
    raise UserError(f"data set {name} is in none of {places} and was not downloaded ({reason}); {remedy}.")


def find_here(name: str, data_dir: str = "", image_size: int = 0) -> Source | None:
    """A published data set among the files of this machine, without a download."""
    for root in _roots(name, data_dir):
        if found := _search(name, image_size, root):
            return found
    return None


def _downloads() -> Path:
    return cache_folder() / "datasets"


def _roots(name: str, data_dir: str) -> list[Path]:
    given = [data_dir, os.environ.get("FEDSIM_DATA", ""), str(_downloads()), KNOWN[name].system_folder]
    return [Path(folder).expanduser() for folder in given if folder]


def _search(name: str, image_size: int, root: Path) -> Source | None:
    known = KNOWN[name]
    for stem in (name, *known.archives):
        if found := archives.find_npz(root / f"{stem}.npz", known.num_classes):
            return found
    options = {"side": image_size or known.side} if known.side else {}
    for folder in known.folders:
        path = root / folder
        if path.is_dir() and (found := known.find(path, known.num_classes, **options)):
            return found
    return None


def _locate_path(path: Path, image_size: int) -> Source:
    if path.is_file():
        found = archives.find_npz(path)
    elif path.is_dir():
        found = pfllib.find(path) or idx.find(path) or folders.find_tree(path, side=image_size)
    else:
        raise UserError(f"there is no data set at {path}; give an existing folder or .npz file, or a name.")
    if not found:
        raise UserError(
            f"{path} holds neither class folders with images, nor idx files, nor client files of PFLlib; "
            "give the folder that contains them."
        )
    return found
