"""A user's own Python code: the one door through which it comes in.

A place is a file, or a module that Python finds. Of a file only the file itself is run, under a name of its own
and with sys.path as it was, so nothing beside it is picked up by accident. The server sends no code: every node
names its own copy, and `sha256` tells whether two are equal.

A run folder keeps copies. One of them runs as the file that it was copied from: it has that file's `__file__`, so
what lies beside the original is found, and where that has been imported already it is the same module.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import json
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from fedsim.compat import import_torchvision
from fedsim.errors import UnknownName, UserError

ORIGINS = "origins.json"
"""Beside copies: {name of the copy: {"from": the place it was copied from, "sha256": its hash}}."""

MODULE_PREFIX = "fedsim_own_"
"""Of the names that files have among Python's modules."""

_allowed: Mapping[str, str] | None = None
_running: list[str] = []


def load(place: str, name: str) -> Any:
    """What a file or a module calls by this name."""
    module = load_module(place)
    if hasattr(module, name):
        return getattr(module, name)
    known = _public_names(module)
    if not known:
        raise UserError(f"{place} defines nothing; define {name or 'a name'} there and give it as {place}:NAME.")
    if not name:
        raise UserError(f"say what to take from {place}, as in {place}:NAME; it has {', '.join(known)}.")
    raise UnknownName(f"object in {place} called", name, known)


def load_module(place: str) -> ModuleType:
    """The whole file or module; a file that has not changed since is run once in a process."""
    if _allowed is not None and place not in _allowed:
        raise UserError(f"{place} is code that the run names but nobody named here, so it is not run here.")
    here = _here(place)
    return _load_file(here) if here.endswith(".py") else _import(here)


def allow_only(copies: Mapping[str, str] | None) -> None:
    """From now on this process runs no own code but this: place as an experiment has it -> file or module here.

    It is for clients, to whom a server may name code, but neither send it nor choose what they run. None is for
    everyone else, and allows everything.
    """
    global _allowed
    _allowed = copies


def being_run() -> str | None:
    """The file that is being imported at this very moment, if any is."""
    return _running[-1] if _running else None


def file_of(place: str) -> Path:
    """The one file that is run."""
    here = _here(place)
    if not here.endswith(".py"):
        return Path(str(load_module(place).__file__))  # which imports it, so it must be allowed
    path = Path(here).expanduser().resolve()
    if not path.is_file():
        raise UserError(f"there is no file {path}; give the path of a Python file that exists.")
    return path


def sha256(place: str) -> str:
    """The hash of that file, equal for equal copies on different machines."""
    return hashlib.sha256(file_of(place).read_bytes()).hexdigest()


def original(path: Path) -> Path:
    """Where a copy in a run folder was copied from, if that is still there; any other file is its own original."""
    try:
        record = json.loads((path.parent / ORIGINS).read_text())[path.name]
    except (OSError, ValueError, KeyError):
        return path
    found = Path(record["from"])
    return found if found.is_file() else path


@contextlib.contextmanager
def explained(doing: str, file: Path) -> Iterator[None]:
    """Whatever own code raises becomes one sentence: `./data.py:load failed (line 3, ValueError: …)`.

    `doing` says what failed; the line is the last one of `file` that was run.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f"{doing} ({described(error, file)}); mend it and try again.") from error


def described(error: BaseException, file: Path) -> str:
    """`line 3, ValueError: …`, with the last line of `file` that was run, if any was."""
    reason = " ".join(str(error).split()).rstrip(".")
    what = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    line = _line_in(file, error)
    return f"line {line}, {what}" if line else what


def _here(place: str) -> str:
    """What stands in for a place in this process."""
    return place if _allowed is None else _allowed.get(place, place)


def _load_file(place: str) -> ModuleType:
    path = file_of(place)
    source = path.read_bytes()
    # Path and content in the name: two files called data.py, or one that was edited, are different modules.
    first = original(path)
    digest = hashlib.sha256(str(first).encode() + b"\0" + source).hexdigest()[:16]
    name = f"{MODULE_PREFIX}{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    shown = first if first.read_bytes() == source else path  # in tracebacks
    module = ModuleType(name)
    module.__file__ = str(first)
    sys.modules[name] = module  # dataclasses look their module up while they are made
    _running.append(place)
    try:
        with explained(f"{place} cannot be imported", path):
            if b"torchvision" in source:
                import_torchvision()  # repaired where it does not fit its torch
            # Not importlib's loader, which would leave a __pycache__ in the user's folder.
            exec(compile(source, str(shown), "exec", dont_inherit=True), module.__dict__)
    except UserError as error:
        del sys.modules[name]
        if (missing := _module_beside(path, error.__cause__)) is not None:
            raise UserError(
                f"{place} imports {missing}, which lies beside it, but only the named file is found by itself;"
                f" put its folder on PYTHONPATH, as in PYTHONPATH={path.parent}."
            ) from error
        raise
    finally:
        _running.pop()
    return module


def _import(place: str) -> ModuleType:
    try:
        found = importlib.util.find_spec(place)
    except (ModuleNotFoundError, ValueError):  # of a package that it would be in; of a module made by hand
        found = None
    if found is None or not found.origin:
        file = Path(*place.split(".")).with_suffix(".py")
        remedy = f"write ./{file}" if file.is_file() else "write the path of its file, ending in .py,"
        raise UserError(f"Python finds no module {place}; {remedy} or put its folder on PYTHONPATH.")
    with explained(f"{place} cannot be imported", Path(found.origin)):
        return importlib.import_module(place)


def _public_names(module: ModuleType) -> list[str]:
    """What the module itself defines: neither what it imports nor what it hides."""
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", module.__name__) == module.__name__
    )


def _line_in(path: Path, error: BaseException) -> int | None:
    same = {str(path), str(original(path))}
    if isinstance(error, SyntaxError) and error.filename in same:
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in reversed(frames) if frame.filename in same), None)


def _module_beside(path: Path, error: BaseException | None) -> str | None:
    """The neighbour that an import did not find."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    first = error.name.partition(".")[0]
    return first if (path.parent / f"{first}.py").is_file() or (path.parent / first).is_dir() else None
