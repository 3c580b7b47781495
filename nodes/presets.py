"""Named experiments: TOML files that state only what differs from the defaults."""

import tomllib
from importlib import resources
from typing import Any

from fedsim.errors import UnknownName


def preset_names() -> list[str]:
    folder = resources.files("fedsim.presets")
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_preset(name: str) -> dict[str, Any]:
    if name not in preset_names():
        raise UnknownName("preset", name, preset_names())
    return tomllib.loads((resources.files("fedsim.presets") / f"{name}.toml").read_text())
