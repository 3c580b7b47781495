"""The settings of a run by name, as text for people, and what must be equal for runs to be averaged.

A setting is called as in config.toml, `data.beta`. Where it is plain which one is meant, `beta` is enough, and
`method` is the method itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from fedsim import methods
from fedsim.config import Experiment
from fedsim.errors import UnknownName, UserError
from fedsim.own import files, spelling

METHOD = "method.name"
SEEDS = ("run.seed", "data.seed")
_TITLES = {
    METHOD: "method",
    "data.dataset": "data set",
    "data.beta": "β",
    "data.classes_per_client": "classes per client",
    "data.seed": "data seed",
    "model.group": "models",
    "model.feature_dim": "K",
    "method.tau": "τ",
}
_SHORT = {"method": METHOD, "seed": "run.seed", "data_seed": "data.seed", "partition_seed": "data.seed"}
_WITHOUT_NAME = (METHOD, "data.dataset", "data.partition", "model.group")
"""What is understood without saying what it is: `FedTGP`, but `β = 0.1`."""

Settings = dict[str, Any]


class Seeds(NamedTuple):
    """What was drawn: of the run (weights, batches), and of the data (partition, public samples)."""

    run: int
    data: int


def settings_of(experiment: Experiment) -> Settings:
    """All settings; own code is known by its name and content, wherever it lies."""
    layer = msgspec.to_builtins(experiment)
    method = layer["method"]["name"]
    with suppress(UserError):  # of code that is not on this machine: then its name must do
        layer = files.without_places(layer)
    found = {f"{section}.{key}": _hashable(value) for section, own in layer.items() for key, value in own.items()}
    if methods.is_own(method):
        found[METHOD] = "@".join([methods.title(method), *found[METHOD].partition("@")[2:]])
    return found


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {item}" for key, item in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def comparable(settings: Settings) -> Settings:
    """What must be equal for runs to differ only in what was drawn: not how they were run, nor where data lie."""
    return {
        key: value
        for key, value in settings.items()
        if not key.startswith("cluster.") and key not in (*SEEDS, "data.data_dir")
    }


def seeds_of(experiment: Experiment) -> Seeds:
    run = experiment.run.seed
    return Seeds(run, experiment.data.seed or run)


def resolve(name: str, known: Collection[str]) -> str:
    """`beta` as `data.beta`; an unknown or doubtful name is refused."""
    wanted = _SHORT.get(name.strip().replace("-", "_"), name.strip())
    if wanted in known:
        return wanted
    found = [key for key in known if key.partition(".")[2] == wanted.replace("-", "_")]
    if len(found) == 1:
        return found[0]
    short = (key if key.partition(".")[2] in _SHORT else key.partition(".")[2] for key in known)
    raise UnknownName("setting", name, found or {"method", *short})


def title(key: str) -> str:
    """Of a setting, over a column."""
    return _TITLES.get(key) or key.partition(".")[2].replace("_", " ")


def text(key: str, value: Any) -> str:
    """A value alone, as in a row that says what it is about."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if key == METHOD:
        return value.partition("@")[0] if "@" in value else methods.title(value)
    plain = ",".join(part.partition("@")[0] + _object(part) for part in value.split(","))
    return Path(spelling.label(plain)).name


def _object(part: str) -> str:
    """`nets.py@ab12:Small` has a name after its hash."""
    _, sign, rest = part.partition("@")
    _, colon, name = rest.partition(":")
    return f"{colon}{name}" if sign else ""


def assignment(key: str, value: Any) -> str:
    """A value with its name: `β = 0.1`."""
    return text(key, value) if key in _WITHOUT_NAME else f"{title(key)} = {text(key, value)}"


def order(values: Iterable[Any]) -> list[Any]:
    """Numbers by size, words as they came; what is not set comes last."""
    found = list(dict.fromkeys(values))
    numbers = [value for value in found if isinstance(value, int | float)]
    words = [value for value in found if value is not None and value not in numbers]
    return [*sorted(numbers), *words, *([None] if None in found else [])]
