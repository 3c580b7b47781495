"""Finding a data set, by its name or as one's own.

A name is looked for in `data.data_dir`, in FEDSIM_DATA, among earlier downloads and in system folders; then
torchvision downloads it. One's own data are a path (a tree of class folders, a folder of idx files or of train.csv
and test.csv, a folder that PFLlib or HtFLlib generated, an .npz or a .csv file), several of them as domains
(`domains:PATH`), code (`./data.py:load`), or what Hugging Face's `datasets` loads (`hf:NAME`).
"""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fedsim.data.cache import cache_folder, locked
from fedsim.data.sources import domains, folders, functions, huggingface, idx, npz, pfllib, tables
from fedsim.data.sources.base import Allocate, Decoded, Source, Wish, reading
from fedsim.data.sources.download import download
from fedsim.data.sources.known import KNOWN, SYNTHETIC
from fedsim.errors import UnknownName, UserError
from fedsim.own import spelling

__all__ = [
    "KNOWN",
    "SYNTHETIC",
    "Allocate",
    "Decoded",
    "Source",
    "Wish",
    "find_here",
    "locate",
    "names",
    "reading",
]

_FILES = (".csv", ".npz")


def names() -> list[str]:
    return sorted({*KNOWN, *SYNTHETIC})


def locate(
    name: str, data_dir: str = "", image_size: int = 0, label: str = "", wish: Wish | None = None
) -> Source:
    """`image_size` is the side for images that come as files, `label` the column of a table with the classes,
    `wish` is for texts and the like."""
    wish = wish or Wish()
    found = _locate(name, data_dir, image_size, label, wish)
    if not found.is_text and (given := wish.of_texts()):
        option, value = next(iter(given.items()))
        raise UserError(
            f"data.{option} = {value!r} is about texts, and {found.name} holds none; unset it, or name the column "
            "of a table (.csv) that holds them with --set data.text=NAME."
        )
    if wish.group and not found.has_columns:
        raise UserError(
            f"data.group = {wish.group!r} names a column of a table (.csv), and {found.name} is none; unset it."
        )
    if wish.published and not found.has_preparations:
        raise UserError(
            f"data.preparation = published is for {', '.join(name for name in KNOWN if KNOWN[name].takes_wish)}; "
            f"{found.name} has but one, so unset it."
        )
    if label and not found.has_columns:
        raise UserError(
            f"data.label = {label!r} names a column of a table (.csv, hf:), and {found.name} is none; unset it."
        )
    return found


def _locate(name: str, data_dir: str, image_size: int, label: str, wish: Wish) -> Source:
    if name.startswith(huggingface.PREFIX):
        return huggingface.find(name, label, image_size)
    if name.startswith(domains.PREFIX):
        return domains.find(name, partial(_locate_path, image_size=image_size, label="", wish=Wish()))
    if spelling.names_code(name):
        return functions.find(name, image_size)
    path = Path(name).expanduser()
    if name in names():
        _refuse_namesake(name)
        return _locate_known(name, data_dir, image_size, wish) if name in KNOWN else SYNTHETIC[name].make()
    if "/" in name or name.startswith("~") or path.suffix in _FILES or path.exists():
        return replace(_locate_path(path.resolve(), image_size, label, wish), name=path.resolve().stem)
    raise UnknownName("data set", name, names())


def _locate_known(name: str, data_dir: str, image_size: int, wish: Wish) -> Source:
    if data_dir and not Path(data_dir).expanduser().is_dir():
        raise UserError(f"data.data_dir = {data_dir!r} is not a folder; give one that holds {name}.")
    known, downloads, roots = KNOWN[name], _downloads(), _roots(name, data_dir)
    search = partial(_search, name, image_size, wish)
    if found := find_here(name, data_dir, image_size, wish):
        return found
    reason = "torchvision does not offer it"
    if known.download:
        # Of processes that start together one downloads; the others wait for the lock and find its work.
        with locked(downloads / f"{name}.lock"):
            reason = "" if search(downloads) else download(known.download, downloads)
        if found := search(downloads):
            return found
    places = ", ".join(map(str, roots))
    remedy = known.remedy.format(name=name)
    raise UserError(f"data set {name} is in none of {places} and was not downloaded ({reason}); {remedy}.")


def find_here(name: str, data_dir: str = "", image_size: int = 0, wish: Wish | None = None) -> Source | None:
    """A published data set among the files of this machine, without a download."""
    for root in _roots(name, data_dir):
        if found := _search(name, image_size, wish or Wish(), root):
            return found
    return None


def _downloads() -> Path:
    return cache_folder() / "datasets"


def _roots(name: str, data_dir: str) -> list[Path]:
    given = [data_dir, os.environ.get("FEDSIM_DATA", ""), str(_downloads()), KNOWN[name].system_folder]
    return [Path(folder).expanduser() for folder in given if folder]


def _search(name: str, image_size: int, wish: Wish, root: Path) -> Source | None:
    known = KNOWN[name]
    found: Source | None = None
    for stem in (name, *known.archives) if not known.takes_wish else ():
        found = found or npz.find(root / f"{stem}.npz", known.sizes.num_classes)
    options: dict[str, Any] = {"side": image_size or known.side} if known.side else {}
    if known.takes_wish:
        options = {"wish": wish}
    for folder in known.folders:
        if not found and (root / folder).is_dir():
            found = known.find(root / folder, known.sizes.num_classes, **options)
    return replace(found, name=name, train_only=known.train_only) if found else None


def _refuse_namesake(name: str) -> None:
    """Whoever has data under the name of a published set may mean either."""
    here = Path(name)
    if here.is_dir() and _find_in_folder(here, 0, "", Wish()):
        raise UserError(
            f"{name} is a data set known by name and also your folder {here.resolve()}; write ./{name} for the "
            "folder, or work from another folder for the data set."
        )


def _locate_path(path: Path, image_size: int, label: str, wish: Wish) -> Source:
    if path.suffix == ".npz" and (found := npz.find(path)):
        return found
    if path.suffix == ".csv" and (found := tables.find(path, label, wish)):
        return found
    if path.is_file():
        raise UserError(
            f"{path} is no .npz and no .csv file; convert it, or load it in a function of your own and give that "
            "as ./FILE.py:FUNCTION."
        )
    if not path.is_dir():
        raise UserError(
            f"there is no data set at {path}; give an existing folder, .npz or .csv file, ./FILE.py:FUNCTION, "
            "hf:NAME, or one of the names that `fedsim data list` shows."
        )
    if found := _find_in_folder(path, image_size, label, wish):
        return found
    raise UserError(
        f"{path} holds neither class folders with images, nor idx files, nor train.csv, nor client files of "
        "PFLlib; give the folder that contains them."
    )


def _find_in_folder(path: Path, image_size: int, label: str, wish: Wish) -> Source | None:
    return (
        pfllib.find(path)
        or idx.find(path)
        or tables.find_folder(path, label, wish)
        or folders.find_tree(path, side=image_size)
    )
