"""How own code is written: `./nets.py:Small` is something in a file, `package.module:Small` something in a module.

The part before the colon is its *place*. Nothing is looked up and nothing is run here.
"""

import re
from pathlib import Path

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def names_code(text: str) -> bool:
    """Whether this is written as own code: FILE.py, FILE.py:NAME or package.module:NAME."""
    place, sign, _ = text.rpartition(":")
    return text.endswith(".py") or place.endswith(".py") or bool(sign and _MODULE.fullmatch(place))


def split(text: str) -> tuple[str, str]:
    """(place, name): a file or a module, and what to take from it; the name is empty where none is given."""
    if text.endswith(".py"):
        return text, ""
    place, _, name = text.rpartition(":")
    return place, name


def label(text: str) -> str:
    """What it is called wherever its file lies: `nets.py:Small`. Whatever is no file stays as it is."""
    place, name = split(text)
    return f"{Path(place).name}:{name}" if place.endswith(".py") else text
