"""The own code that an experiment names: its method, its models, its data. Where it lies, and who has which copy.

A *place* is a file or a module, the part before the colon of `/home/me/nets.py:Small`. Experiments name files by
absolute paths. A run folder has copies of them in `code/`, and names these, so that a run can be taken up, or
repeated, when the originals have changed or gone. Clients on other machines have copies of their own, which must
be equal: `matched` finds the one for each place by its hash.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsim import methods
from fedsim.errors import UserError
from fedsim.own import loading, spelling

Layer = Mapping[str, Any]

LIBRARIES = ("hf", "timm", "torchvision")
"""What stands before a colon and is no place."""


def renamed(layer: Layer, rename: Callable[[str], str]) -> dict[str, Any]:
    """The same part of a config with other places."""
    result = dict(layer)
    for section, values in layer.items():
        if section in ("method", "model", "data") and isinstance(values, Mapping):
            result[section] = {
                key: _renamed(section, key, value, rename) if isinstance(value, str) else value
                for key, value in values.items()
            }
    return result


def _renamed(section: str, key: str, text: str, rename: Callable[[str], str]) -> str:
    match section, key:
        case "method", "name":
            return rename(text) if methods.is_own(text) else text
        case "data", "dataset":
            return _object(text, rename)
        case "model", "group" if any(is_place(part.strip()) for part in text.split(",")):
            return ",".join(_object(part.strip(), rename) for part in text.split(","))
        case "method", _ if ".py:" in text:  # some methods have an option that names a model
            return _object(text, rename)
    return text


def _object(text: str, rename: Callable[[str], str]) -> str:
    """`./nets.py:Small` or `package.module:Small`; `CNN:256` is a model with a hidden layer."""
    if not is_place(text):
        return text
    place, name = spelling.split(text)
    return f"{rename(place)}:{name}" if name else rename(place)


def is_place(text: str) -> bool:
    """Whether this is own code, as a model or as data."""
    place, name = spelling.split(text)
    return spelling.names_code(text) and place not in LIBRARIES and (not name or name.isidentifier())


def absolute(layer: Layer, folder: Path) -> dict[str, Any]:
    """With places that mean the same from everywhere; relative ones are taken to be below `folder`."""

    def found(place: str) -> str:
        path = Path(place).expanduser()
        return place if not _is_file(place) else str(path if path.is_absolute() else (folder / path).resolve())

    return renamed(layer, found)


def places(layer: Layer) -> list[str]:
    """All places, each once."""
    found: dict[str, None] = {}

    def note(place: str) -> str:
        found[place] = None
        return place

    renamed(layer, note)
    name = layer.get("method", {}).get("name", "")
    if (place := methods.place_of(name)) is not None:
        note(place)  # also where the method goes by the name under which a package registers it
    return list(found)


def check_names(layer: Layer) -> None:
    """Copies, models and tables go by the names of files, so no two may share one."""
    seen: dict[str, str] = {}
    for place in places(layer):
        other = seen.setdefault(copy_name(place), place)
        if other != place:
            raise UserError(f"{other} and {place} have the same name; rename one of the files.")


def hashes(layer: Layer) -> dict[str, str]:
    """Place -> SHA-256 of the file that is run."""
    return {place: loading.sha256(place) for place in places(layer)}


def without_places(layer: Layer) -> dict[str, Any]:
    """The same whatever machine and folder the code lies on: places are the names and hashes of their files."""
    return renamed(layer, lambda place: f"{copy_name(place)}@{loading.sha256(place)}")


# ------------------------------------------------------------------------------------------------ in a run folder


def copy_name(place: str) -> str:
    return Path(place).name if _is_file(place) else f"{place}.py"


def save_copies(layer: Layer, folder: Path) -> dict[str, Any]:
    """Copy all files into `folder`; returns the layer that names the copies, as seen from above the folder.

    A module is copied for the record only: it may need the package that it is in.
    """
    origins = {}
    for place in places(layer):
        folder.mkdir(exist_ok=True)
        path = loading.file_of(place)
        copy = folder / copy_name(place)
        copy.write_bytes(path.read_bytes())
        copy.chmod(0o444)  # one edits the original
        origins[copy.name] = {
            "from": str(loading.original(path)) if _is_file(place) else place,
            "sha256": loading.sha256(str(copy)),
        }
    if origins:
        (folder / loading.ORIGINS).write_text(json.dumps(origins, indent=2) + "\n")
    return renamed(layer, lambda place: f"{folder.name}/{copy_name(place)}" if _is_file(place) else place)


def check_copies(folder: Path) -> None:
    """What a run began with is what it goes on with."""
    record = folder / loading.ORIGINS
    for name, origin in json.loads(record.read_text()).items() if record.is_file() else ():
        place = str(folder / name) if _is_file(origin["from"]) else origin["from"]
        if (now := loading.sha256(place)) != origin["sha256"]:
            raise UserError(
                f"{place} has changed since the run began: its SHA-256 was {origin['sha256']}, now it is {now}; "
                f"put it back as it was" + ("." if _is_file(place) else f", as in {folder / name}.")
            )


# ------------------------------------------------------------------------------------------- on another machine


def matched(told: Mapping[str, str], named: Sequence[str]) -> dict[str, str]:
    """Place as the server has it -> the equal file or module here; one that differs or is missing is refused.

    Only what was `named` here counts, and methods that were installed here: a server cannot choose what is run.
    """
    return {place: _match(place, digest, named) for place, digest in told.items()}


def _match(place: str, digest: str, named: Sequence[str]) -> str:
    name = copy_name(place)
    candidates = [place] if place in methods.installed().values() else named
    here = {candidate: loading.sha256(candidate) for candidate in candidates}
    for candidate, own in here.items():
        if own == digest:
            return candidate
    for candidate, own in here.items():
        if copy_name(candidate) == name or len(here) == 1:
            raise UserError(
                f"{candidate} differs from the server's {name}: its SHA-256 is {own}, the server's is {digest}; "
                "copy the server's file to this machine."
            )
    raise UserError(
        f"the run uses {name} (SHA-256 {digest}), and code never travels; copy the file to this machine and name "
        f"it with --code {name}."
    )


def _is_file(place: str) -> bool:
    return place.endswith(".py")
