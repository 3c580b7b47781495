"""Where a run's numbers go beside its folder: TensorBoard, MLflow, Weights & Biases. One module each.

The module's name is the tracker's name in `cluster.track`. It has a class `Tracker`, made with a `Tracked`, and
says in `PACKAGE` which package it needs; that is all there is to a new one. None is imported before it is asked
for. Whatever a tracker does, the run neither waits for it nor fails with it: TensorBoard's file is written by the
server, every other tracker follows the run from a process of its own.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedsim.config import Experiment, to_layer
from fedsim.errors import UnknownName
from fedsim.metrics import describe

BUILT_IN = "tensorboard"
ARTEFACTS = (
    "config.toml",
    "summary.json",
    "metrics.csv",
    "clients.csv",
    "ledger.csv",
    "partition.csv",
    "report.html",
)
_ABOUT_CLIENTS = {"correct", "tested", "clients", "expected", "absent", "lost", "train_loss"}
_BYTES = {f"{who}_bytes_{way}" for who in ("wire", "kernel") for way in ("up", "down")}
_TIME = {"seconds", "collect_seconds"}
_NO_METRIC = {"event", "time", "round"}


@dataclass(frozen=True)
class Tracked:
    """A run as a tracker knows it."""

    folder: Path
    experiment: Experiment

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def settings(self) -> dict[str, Any]:
        """All hyper-parameters, `train.lr` and so on; not how it was run."""
        layer = to_layer(self.experiment)
        flat = {f"{section}.{key}": value for section, own in layer.items() for key, value in own.items()}
        return {key: value for key, value in flat.items() if not key.startswith("cluster.")}

    @property
    def family(self) -> str:
        """Runs that differ in seeds only have the same one."""
        from fedsim.results.settings import comparable, settings_of

        changed = comparable(settings_of(self.experiment))
        default = comparable(settings_of(Experiment()))
        own = [
            f"{key}={value}"
            for key, value in changed.items()
            if default.get(key) != value and key != "method.name"
        ]
        return " ".join([f"{self.experiment.method_name}-{self.experiment.data.short_name}", *own])[:250]

    def grouped(self, said: Mapping[str, Any]) -> dict[str, float]:
        """What was said of a finished round as numbers in groups: accuracy/, server/, clients/, bytes/, time/."""
        reported = _reported_by_clients(self.folder / "clients.csv")
        found = {name: value for name, value in said.items() if name not in _NO_METRIC and value is not None}
        return {_tag(name, reported): float(value) for name, value in found.items()}

    def artefacts(self) -> list[Path]:
        return [path for name in ARTEFACTS if (path := self.folder / name).is_file()]


class Follower(Protocol):
    """What every tracker does. A run that is taken up again is begun again, and its rounds are told from the first
    one on: a tracker keeps what it has, for the same experiment gives the same numbers."""

    def __init__(self, run: Tracked): ...
    def add_round(self, round: int, wall_time: float, scalars: Mapping[str, float]) -> None: ...
    def end(self, wall_time: float, *, completed: bool, files: Sequence[Path]) -> None: ...


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def chosen(text: str) -> list[str]:
    """`tensorboard,mlflow`; empty for none."""
    wanted = list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for name in wanted:
        if name not in names():
            raise UnknownName("tracker", name, names())
    return wanted


def missing_package(name: str) -> str:
    """What must be installed for a tracker; empty where nothing is missing. Nothing is imported but our module."""
    package = str(importlib.import_module(f"{__name__}.{name}").PACKAGE)
    return package if package and importlib.util.find_spec(package) is None else ""


def make(name: str, run: Tracked) -> Follower:
    tracker: Follower = importlib.import_module(f"{__name__}.{name}").Tracker(run)
    return tracker


def _tag(name: str, reported: set[str]) -> str:
    if "/" in name:
        return name
    if name in _BYTES:
        return f"bytes/{name.replace('_bytes_', '_')}"
    if name in _TIME:
        return f"time/{name}"
    if describe(name).is_share:
        return f"accuracy/{name}"
    return f"clients/{name}" if name in _ABOUT_CLIENTS | reported else f"server/{name}"


def _reported_by_clients(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    with path.open(newline="") as file:
        return set(next(csv.reader(file), []))
