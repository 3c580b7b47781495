"""From many runs to a table: what stands in the rows and columns, mean and deviation over seeds in the cells."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedsim.errors import UnknownName, UserError
from fedsim.results.groups import Group, Runs
from fedsim.results.settings import METHOD, assignment, order, resolve, text, title
from fedsim.results.statistics import CONFIDENCE, Difference, Sample, paired_difference, what_varies
from fedsim.results.values import Value, Which, require_known, value

NOTHING = "–"
_METRIC, _ROUND = "metric", "round"
"""Columns may also differ in these; they are no settings."""
_CHOICES = ("method.", "train.")
"""Whoever does better by these is better; by all other settings the task is another one."""


@dataclass(frozen=True)
class Description:
    """What a table is to show. Settings that were varied and are named nowhere become columns."""

    rows: Sequence[str] | None = None
    """Names of settings, each perhaps with the values to show, in their order: `method=local,fedtgp`."""
    columns: Sequence[str] | None = None
    metrics: Sequence[str] = ("accuracy",)
    rounds: Sequence[Which] = ("best",)
    population: bool = False
    baseline: str = ""
    """A value of a row or column, such as `local`: all others are held against it, seed by seed."""
    better: Literal["higher", "lower", ""] = ""
    """Which numbers are the best ones; empty: as the metric says."""


@dataclass(frozen=True)
class Cell:
    sample: Sample | None
    value: Value
    place: int = 0
    """1 for the best of its column, 2 for the second; 0 for all others."""
    difference: Difference | None = None
    num_runs: int = 0
    """Those that it is about, with and without a number."""

    @property
    def is_whole(self) -> bool:
        """Whether every run has a number: those that have one may be the lucky ones."""
        return self.sample is not None and self.sample.size >= self.num_runs

    @property
    def mean(self) -> str:
        return self.value.text(self.sample.mean) if self.sample else NOTHING

    @property
    def deviation(self) -> str:
        if self.sample is None or self.sample.deviation is None:
            return ""
        return self.value.text(self.sample.deviation, beside=self.sample.mean)

    @property
    def gap(self) -> str:
        """The difference to the baseline with its interval."""
        if (found := self.difference) is None:
            return NOTHING
        low, high = self.value.text(found.low), self.value.text(found.high)
        return f"{'+' if found.mean >= 0 else ''}{self.value.text(found.mean)} [{low}, {high}]"


@dataclass(frozen=True)
class Table:
    """Ready to be shown. A heading has one text for each level, the outermost first."""

    title: str
    row_titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    headings: Sequence[Sequence[str]]
    cells: Sequence[Sequence[Cell]]
    notes: Sequence[str]
    warnings: Sequence[str] = ()
    baseline: str = ""
    keys: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    """Of each column: the settings, the metric and the round, for programs."""
    num_runs: int = 0
    """Of most cells; 0 where there is none."""

    def counted(self, cell: Cell) -> str:
        """How many runs a cell is of, where that is not the same for all or some have no number."""
        if cell.sample is None:
            return ""
        if not cell.is_whole:
            return f"{cell.sample.size} of {cell.num_runs}"
        return f"n = {cell.sample.size}" if cell.sample.size != self.num_runs else ""


@dataclass(frozen=True)
class _Axis:
    key: str
    values: Sequence[Any]

    def text(self, chosen: Any, *, named: bool) -> str:
        if self.key == _METRIC:
            found = value(chosen)
            return f"{found.title} ({found.unit})" if found.unit else found.title
        if self.key == _ROUND:
            return f"{chosen} round" if chosen else ""
        return assignment(self.key, chosen) if named else text(self.key, chosen)


def build(runs: Runs, description: Description) -> Table:
    require_known(description.metrics, runs.runs)
    row_axes, column_axes = _axes(runs, description)
    columns = [dict(zip(_keys(column_axes), found, strict=True)) for found in _combinations(column_axes)]
    rows = [dict(zip(_keys(row_axes), found, strict=True)) for found in _combinations(row_axes)]
    rows = [row for row in rows if any(_matches(group, row) for group in runs.groups)]
    columns = [column for column in columns if any(_matches(group, column) for group in runs.groups)]
    columns = [column | metric for column in columns for metric in _metrics(description)]
    warnings: list[str] = []
    cells = [[_cell(runs, row, column, description, warnings) for column in columns] for row in rows]
    if not any(cell.sample for of_row in cells for cell in of_row):
        raise UserError(warnings[0] if warnings else "no run has what this table is to show.")
    baseline = _baseline([*row_axes, *column_axes], description.baseline)
    if baseline:
        cells = _held_against(baseline, rows, columns, cells)
        if not any(cell.difference for of_row in cells for cell in of_row):
            warnings.append(
                f"no cell can be held against {assignment(*baseline)}: none has the same seeds and task."
            )
    cells = placed(rows, cells, description.better)
    shown = [*column_axes, *_varied_metrics(description)]
    sizes = [cell.sample.size for of_row in cells for cell in of_row if cell.sample]
    return Table(
        title=_title(description),
        row_titles=[title(axis.key) for axis in row_axes],
        rows=[[axis.text(row[axis.key], named=False) for axis in row_axes] for row in rows],
        headings=[[axis.text(column[axis.key], named=True) for axis in shown] for column in columns],
        cells=cells,
        notes=_notes(runs, cells, description, baseline),
        warnings=list(dict.fromkeys([*runs.left_out, *warnings])),
        baseline=assignment(*baseline) if baseline else "",
        keys=columns,
        num_runs=max(sizes, key=sizes.count),
    )


# ---------------------------------------------------------------------------------------------- rows and columns


def _axes(runs: Runs, description: Description) -> tuple[list[_Axis], list[_Axis]]:
    """As the user says; what he does not name, methods and their options go into rows, other settings into
    columns, so that no cell is a mixture."""
    named = [_axis(runs, words) for words in (*(description.rows or ()), *(description.columns or ()))]
    rows, columns = named[: len(description.rows or ())], named[len(description.rows or ()) :]
    open_keys = [key for key in runs.varied if key not in _keys(named)]
    if description.rows is None:
        of_rows = [key for key in open_keys if key.startswith("method.")]
        if not of_rows and METHOD not in _keys(named):
            of_rows = open_keys[:1] or [METHOD]
        rows = [_Axis(key, _values(runs, key)) for key in of_rows]
        open_keys = [key for key in open_keys if key not in of_rows]
    if description.columns is None:
        columns = [_Axis(key, _values(runs, key)) for key in open_keys]
    if len(set(_keys([*rows, *columns]))) < len([*rows, *columns]):
        raise UserError("a setting can be in the rows or in the columns, and only once; name each once.")
    return rows, columns


def _axis(runs: Runs, words: str) -> _Axis:
    name, sign, wanted = words.partition("=")
    known = dict.fromkeys(key for group in runs.groups for key in group.settings)
    key = resolve(name, list(known))
    there = _values(runs, key)
    if not sign:
        return _Axis(key, there)
    by_text = {_plain(shown): found for found in there for shown in (text(key, found), str(found))}
    chosen = []
    for word in wanted.split("+"):
        if _plain(word) not in by_text:
            raise UnknownName(title(key), word.strip(), [text(key, found) for found in there])
        chosen.append(by_text[_plain(word)])
    return _Axis(key, chosen)


def _values(runs: Runs, key: str) -> list[Any]:
    return order(group.settings.get(key) for group in runs.groups)


def _keys(axes: Iterable[_Axis]) -> list[str]:
    return [axis.key for axis in axes]


def _combinations(axes: Sequence[_Axis]) -> Iterable[tuple[Any, ...]]:
    return itertools.product(*(axis.values for axis in axes))


def _metrics(description: Description) -> list[dict[str, str]]:
    """Metrics, each in the rounds that were asked for if it has one by round."""
    found = []
    for name in description.metrics:
        rounds = description.rounds if value(name).by_round else ("",)
        found += [{_METRIC: name, _ROUND: which} for which in rounds]
    return found


def _varied_metrics(description: Description) -> list[_Axis]:
    axes = [(_METRIC, description.metrics), (_ROUND, description.rounds)]
    return [_Axis(key, values) for key, values in axes if len(values) > 1]


def _plain(word: object) -> str:
    return str(word).strip().lower().replace("-", "").replace("_", "")


# -------------------------------------------------------------------------------------------------------- cells


def _matches(group: Group, wanted: Mapping[str, Any]) -> bool:
    return all(group.settings.get(key) == chosen for key, chosen in wanted.items() if key not in (_METRIC, _ROUND))


def _cell(
    runs: Runs,
    row: Mapping[str, Any],
    column: Mapping[str, Any],
    description: Description,
    warnings: list[str],
) -> Cell:
    shown, which = value(column[_METRIC]), column[_ROUND]
    groups = [group for group in runs.groups if _matches(group, {**row, **column})]
    place = ", ".join(assignment(*item) for item in {**row, **column}.items() if item[0] not in (_METRIC, _ROUND))
    if not groups:
        warnings.append(f"there is no run of {place}, so its cell is empty.")
        return Cell(None, shown)
    if len(groups) > 1:
        keys = [key for key in runs.varied if len(order(g.settings.get(key) for g in groups)) > 1]
        warnings.append(
            f"runs of {place or 'this table'} differ in {' and '.join(keys)} and cannot be averaged, so their "
            f"cell is empty; add {','.join(keys)} to --rows or --columns."
        )
        return Cell(None, shown)
    read = {seeds: shown.read(run, which) for seeds, run in groups[0].runs.items()}
    known = {seeds: number for seeds, number in read.items() if number is not None}
    if not known:
        warnings.append(f"no run of {place} has {column[_METRIC]}, so its cell is empty.")
        return Cell(None, shown)
    return Cell(Sample(known, description.population), shown, num_runs=len(read))


def placed(rows: Sequence[Mapping[str, Any]], cells: Sequence[Sequence[Cell]], better: str) -> list[list[Cell]]:
    """The best and the second of each column, among rows of the same task in which every run has a number; equal
    ones, as they are shown, share a place."""
    placed = [list(of_row) for of_row in cells]
    tasks: dict[tuple[Any, ...], list[int]] = {}
    for number, row in enumerate(rows):
        task = tuple(found for key, found in row.items() if not key.startswith(_CHOICES))
        tasks.setdefault(task, []).append(number)
    for column, same in itertools.product(range(len(placed[0])), tasks.values()):
        known = [(row, cell) for row in same if (cell := placed[row][column]).is_whole]
        direction = better or (known[0][1].value.better if known else "")
        if not direction or len(known) < 2:
            continue
        shown = sorted({float(cell.mean) for _, cell in known}, reverse=direction == "higher")
        for row, cell in known:
            if (place := shown.index(float(cell.mean)) + 1) <= 2:
                placed[row][column] = replace(cell, place=place)
    return placed


def _baseline(axes: Sequence[_Axis], wanted: str) -> tuple[str, Any] | None:
    if not wanted:
        return None
    name, sign, word = wanted.rpartition("=")
    there = [(axis.key, found) for axis in axes for found in axis.values]
    if sign:
        key = resolve(name, _keys(axes))
        there = [item for item in there if item[0] == key]
    fitting = [item for item in there if _plain(word) in (_plain(text(*item)), _plain(item[1]))]
    if not fitting:
        raise UnknownName("baseline", word, [text(*item) for item in there])
    if len(fitting) > 1:
        raise UserError(
            f"--baseline {wanted} may be {' or '.join(f'{k}={v}' for k, v in fitting)}; write one of these."
        )
    return fitting[0]


def _held_against(
    baseline: tuple[str, Any],
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[Mapping[str, Any]],
    cells: Sequence[Sequence[Cell]],
) -> list[list[Cell]]:
    """Each cell against the one that differs from it in the baseline's setting alone. A method has none of the
    options in which others were varied."""
    of_place = {
        _place(row, column): cell
        for row, of_row in zip(rows, cells, strict=True)
        for column, cell in zip(columns, of_row, strict=True)
    }
    key, chosen = baseline
    options = [name for name in (*rows[0], *columns[0]) if key == METHOD and name.startswith("method.")]
    without_options = dict.fromkeys(options)
    held: list[list[Cell]] = []
    for row, of_row in zip(rows, cells, strict=True):
        held.append([])
        for column, cell in zip(columns, of_row, strict=True):
            places = [_place(row, column, options, {key: chosen}) for options in ({}, without_options)]
            others = (other.sample for place in places if (other := of_place.get(place)) and other.sample)
            is_itself = {**row, **column}.get(key) == chosen
            found = None
            if cell.sample and not is_itself and (sample := next(others, None)):
                found = paired_difference(cell.sample, sample)
            held[-1].append(replace(cell, difference=found))
    return held


def _place(*parts: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted({key: found for part in parts for key, found in part.items()}.items()))


# -------------------------------------------------------------------------------------------------------- words


def _title(description: Description) -> str:
    return " and ".join(value(name).title for name in description.metrics)


def _notes(
    runs: Runs,
    cells: Sequence[Sequence[Cell]],
    description: Description,
    baseline: tuple[str, Any] | None,
) -> list[str]:
    """Over what the means are, and what else must be known to read them."""
    what = []
    for name in description.metrics:
        found = value(name)
        unit = {"%": " in per cent", "": ""}.get(found.unit, f" in {found.unit}")
        of_round = f" of the {' and the '.join(description.rounds)} round" if found.by_round else ""
        what.append(f"{found.title}{of_round}{unit}")
    listed = "; ".join(what)
    notes = [f"{listed[0].upper()}{listed[1:]}."]
    samples = [cell.sample for of_row in cells for cell in of_row if cell.sample]
    ways = list(dict.fromkeys(what_varies(list(sample.values)) for sample in samples))
    kind = "population" if description.population else "sample"
    if len(ways) == 1 and samples[0].size > 1:
        notes.append(f"Mean ± {kind} standard deviation over {ways[0]} (n = {samples[0].size}).")
    elif len(ways) == 1:
        notes.append(f"Of {ways[0]}, so there is no deviation.")
    else:
        notes.append(f"Mean ± {kind} standard deviation; cells are not all of the same seeds: {'; '.join(ways)}.")
    if baseline:
        notes.append(
            f"Differences to {assignment(*baseline)} are paired by seed, with their {CONFIDENCE:.0%} interval "
            "(Student's t)."
        )
    return notes + [f"{sentence}." for sentence in runs.cautions]
