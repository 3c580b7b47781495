"""Many runs in order: found in folders, read, grouped by what was varied. Runs of a group differ in seeds only.

What cannot be read or counted is left out with one sentence; the others go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedsim.errors import UserError
from fedsim.results.load import LoadedRun, load
from fedsim.results.settings import (
    METHOD,
    Seeds,
    Settings,
    assignment,
    comparable,
    order,
    seeds_of,
    settings_of,
    text,
)


@dataclass(frozen=True)
class Group:
    """Runs with the same settings, one for each seed."""

    settings: Settings
    runs: Mapping[Seeds, LoadedRun]

    @property
    def first(self) -> LoadedRun:
        return next(iter(self.runs.values()))

    @property
    def shown(self) -> Mapping[Seeds, LoadedRun]:
        """Those that are complete; where there are none, whatever there is."""
        return {seeds: run for seeds, run in self.runs.items() if run.completed} or self.runs

    @property
    def is_local(self) -> bool:
        """Clients by themselves: what every method must beat."""
        return bool(self.settings[METHOD] == "local")


@dataclass(frozen=True)
class Runs:
    """Runs that are shown together."""

    groups: Sequence[Group]
    left_out: Sequence[str] = ()
    """A sentence for each run that could not be used."""

    @property
    def runs(self) -> list[LoadedRun]:
        return [run for group in self.groups for run in group.runs.values()]

    @cached_property
    def varied(self) -> list[str]:
        """What was varied on purpose: settings that differ among runs of one method, the method itself first."""
        found: dict[str, None] = {}
        if len({group.settings[METHOD] for group in self.groups}) > 1:
            found[METHOD] = None
        for settings in _by_method(self.groups).values():
            found |= dict.fromkeys(_differing(settings))
        return list(found)

    def label(self, group: Group, keys: Sequence[str]) -> str:
        """`FedTGP, τ = 10`; of one method alone `τ = 10`."""
        shown = [key for key in keys if key in group.settings]
        return ", ".join(assignment(key, group.settings[key]) for key in shown) or text(
            METHOD, group.settings[METHOD]
        )

    @property
    def labels(self) -> list[str]:
        """One for each group, all different."""
        found = [self.label(group, self.varied) for group in self.groups]
        return [
            label if found.count(label) == 1 else f"{label} ({group.first.name})"
            for label, group in zip(found, self.groups, strict=True)
        ]

    @property
    def finished(self) -> Runs:
        """Of each group the runs that are complete; where there are none, whatever there is."""
        return Runs([Group(group.settings, group.shown) for group in self.groups])

    @property
    def stopped(self) -> list[str]:
        """A sentence where there are runs that are not complete."""
        found = [run.name for run in self.runs if not run.completed]
        if not found:
            return []
        return [f"stopped early, and left out where others of their group are complete: {', '.join(found)}"]

    @property
    def firsts(self) -> dict[str, LoadedRun]:
        """One run of each group, for pictures that are of single runs."""
        return dict(zip(self.labels, (group.first for group in self.groups), strict=True))

    @property
    def cautions(self) -> list[str]:
        """Settings that are not the same for all methods, though nobody varied them on purpose: say so."""
        sentences = []
        by_method = _by_method(self.groups)
        for key in _differing([settings[0] for settings in by_method.values()]):
            if key in self.varied or key.startswith("method."):
                continue
            values: dict[Any, list[str]] = {}
            for method, settings in by_method.items():
                values.setdefault(settings[0].get(key), []).append(text(METHOD, method))
            shown = "; ".join(f"{text(key, value)} for {', '.join(names)}" for value, names in values.items())
            sentences.append(f"{key} is not the same for all methods: {shown}")
        return sentences


def collect(paths: Sequence[Path], *, finished_only: bool = False) -> Runs:
    """Run folders, and folders that hold some, such as a sweep's."""
    runs, left_out = [], []
    for folder in _run_folders(paths):
        try:
            run = load(folder)
            seeds_of(run.experiment)
        except UserError as error:
            left_out.append(f"left out: {error}")
            continue
        if finished_only and not run.completed:
            left_out.append(f"left out: {folder} did not end well ({run.reason}); go on with --resume {folder}.")
        else:
            runs.append(run)
    if not runs:
        raise UserError(
            left_out[0].removeprefix("left out: ") if len(left_out) == 1 else _nothing(paths, left_out)
        )
    groups, twice = _grouped(runs)
    return Runs(groups, [*left_out, *twice])


def _nothing(paths: Sequence[Path], left_out: Sequence[str]) -> str:
    where = ", ".join(map(str, paths))
    if not left_out:
        return f"there is no run in {where}; name run folders, or a folder that holds some."
    return f"none of the {len(left_out)} runs in {where} can be used, the first because: " + left_out[
        0
    ].removeprefix("left out: ")


def _run_folders(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise UserError(f"there is no run folder {path}.")
        inside = list(_below(path))
        if not inside and len(paths) == 1:
            raise UserError(f"there is no run in {path}; name run folders, or a folder that holds some.")
        found += inside or [path]  # which says what is wrong with it when it is read
    resolved = [path.resolve() for path in found]
    for path, full in zip(found, resolved, strict=True):
        if resolved.count(full) > 1:
            raise UserError(f"the run {path} is given twice; give each run once.")
    return found


def _below(path: Path) -> Iterator[Path]:
    """A run folder itself, or those below it in the order of their names; nothing inside a run is looked at."""
    if (path / "config.toml").is_file():
        yield path
        return
    for inner in sorted(path.iterdir()):
        if inner.is_dir() and not inner.name.startswith("."):
            yield from _below(inner)


def _grouped(runs: Sequence[LoadedRun]) -> tuple[list[Group], list[str]]:
    """Groups in the order of methods and values. A run that is there twice counts once: a complete one, if any."""
    found: dict[tuple[tuple[str, Any], ...], dict[Seeds, LoadedRun]] = {}
    twice = []
    for run in sorted(runs, key=lambda run: not run.completed):
        key = tuple(sorted(comparable(settings_of(run.experiment)).items()))
        same = found.setdefault(key, {}).setdefault(seeds_of(run.experiment), run)
        if same is not run:
            twice.append(f"left out: {run.path} has the same settings and seeds as {same.path}.")
    groups = [Group(dict(key), dict(sorted(of_seeds.items()))) for key, of_seeds in found.items()]
    keys = dict.fromkeys([METHOD, *(key for group in groups for key in group.settings)])
    ranks = {key: order(group.settings.get(key) for group in groups) for key in keys}

    def place(group: Group) -> tuple[int, ...]:
        return (not group.is_local, *(ranks[key].index(group.settings.get(key)) for key in keys))

    return sorted(groups, key=place), twice


def _by_method(groups: Sequence[Group]) -> dict[str, list[Settings]]:
    found: dict[str, list[Settings]] = {}
    for group in groups:
        found.setdefault(group.settings[METHOD], []).append(group.settings)
    return found


def _differing(settings: Sequence[Settings]) -> list[str]:
    """Keys whose values are not the same in all; of those that not all have, nothing is said."""
    keys = [key for key in settings[0] if all(key in other for other in settings)]
    return [key for key in keys if len(order(other[key] for other in settings)) > 1]
