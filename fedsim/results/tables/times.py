"""Time to an accuracy: methods in the rows, links in the columns, what each of them takes in the cells."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedsim.errors import UnknownName
from fedsim.results.groups import Group, Runs
from fedsim.results.load import LoadedRun
from fedsim.results.plots.accuracy import bytes_until
from fedsim.results.retimed import Clock, first_round_at, seconds_until
from fedsim.results.settings import METHOD
from fedsim.results.statistics import Sample, what_varies
from fedsim.results.tables.grid import Cell, Table, placed
from fedsim.results.values import Value

SCHEDULES = {"devices": "own devices", "slots": "own slots"}
METRICS = {
    "seconds": Value("time", lambda run, which: None, "s", "lower", by_round=False),
    "megabytes": Value("sent up and down", lambda run, which: None, "MB", "lower", by_round=False),
    "rounds": Value("rounds", lambda run, which: None, "", "lower", by_round=False),
}
_BY_LINK = "seconds"
_MEGABYTE = 1e6


@dataclass(frozen=True)
class Wanted:
    """What the table is to show. Without accuracies it is about all rounds."""

    links: Sequence[str]
    accuracies: Sequence[float]
    schedules: Sequence[str] = tuple(SCHEDULES)
    metrics: Sequence[str] = (_BY_LINK,)

    def __post_init__(self) -> None:
        for what, names, known in (("schedule", self.schedules, SCHEDULES), ("metric", self.metrics, METRICS)):
            for name in names:
                if name not in known:
                    raise UnknownName(what, name, known)

    def columns(self) -> list[dict[str, Any]]:
        """Only seconds depend on links and on who computes beside whom."""
        found: list[dict[str, Any]] = []
        for metric in self.metrics:
            places = itertools.product(self.links, self.schedules) if metric == _BY_LINK else [("", "")]
            found += [
                {"metric": metric, "link": link, "schedule": schedule, "accuracy": accuracy}
                for link, schedule in places
                for accuracy in self.accuracies or (None,)
            ]
        return found


def build(runs: Runs, clocks: Mapping[LoadedRun, Clock], wanted: Wanted) -> Table:
    columns = wanted.columns()
    cells = [[_cell(group, clocks, column) for column in columns] for group in runs.groups]
    cells = placed([_task(group) for group in runs.groups], cells, "")
    shown = [
        key for key in ("metric", "link", "schedule", "accuracy") if len({c[key] for c in columns} - {""}) > 1
    ]
    sizes = [cell.sample.size for of_row in cells for cell in of_row if cell.sample] or [0]
    labels = runs.labels
    return Table(
        title=_title(wanted),
        row_titles=["run" if len({group.settings[METHOD] for group in runs.groups}) == 1 else "method"],
        rows=[[label] for label in labels],
        headings=[[_heading(key, column) for key in shown] for column in columns],
        cells=cells,
        notes=[*_notes(runs, wanted), *_unranked(cells), *_rankings(labels, columns, cells)],
        warnings=list(runs.left_out),
        keys=columns,
        num_runs=max(sizes, key=sizes.count),
    )


def _task(group: Group) -> dict[str, Any]:
    """Rows of the same data are compared, whatever models and methods they have."""
    return {key: value for key, value in group.settings.items() if key.startswith("data.")}


def _cell(group: Group, clocks: Mapping[LoadedRun, Clock], column: Mapping[str, Any]) -> Cell:
    read = {seeds: _number(run, clocks[run], column) for seeds, run in group.runs.items()}
    known = {seeds: number for seeds, number in read.items() if number is not None}
    return Cell(Sample(known) if known else None, METRICS[column["metric"]], num_runs=len(read))


def _number(run: LoadedRun, clock: Clock, column: Mapping[str, Any]) -> float | None:
    """Until the accuracy is reached; None where it never is. Without one, until the last round is over."""
    goal = column["accuracy"]
    round = first_round_at(run, goal) if goal is not None else int(run.metrics["round"].iloc[-1])
    if round is None:
        return None
    if column["metric"] == "rounds":
        return float(round)
    if column["metric"] == "megabytes":
        return float(bytes_until(run)[round]) / _MEGABYTE
    return seconds_until(clock[column["link"], column["schedule"]])[round]


def _title(wanted: Wanted) -> str:
    what = " and ".join(METRICS[name].title for name in wanted.metrics)
    return f"{what} to {_percent(wanted.accuracies[0])}" if len(wanted.accuracies) == 1 else what


def _heading(key: str, column: Mapping[str, Any]) -> str:
    value = column[key]
    if key == "metric":
        metric = METRICS[value]
        return f"{metric.title} ({metric.unit})" if metric.unit else metric.title
    if key == "accuracy":
        return f"to {_percent(value)}"
    return SCHEDULES.get(value, "") if key == "schedule" else value


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _notes(runs: Runs, wanted: Wanted) -> list[str]:
    ways = list(dict.fromkeys(what_varies(list(group.runs)) for group in runs.groups))
    notes = ["Seconds of the virtual clock."] if _BY_LINK in wanted.metrics else []
    if "devices" in wanted.schedules:
        notes.append("Own devices: all clients of a round compute at once, tests are not counted.")
    if "slots" in wanted.schedules:
        notes.append("Own slots: as many clients compute at once as in the run, tests are counted.")
    if wanted.accuracies:
        notes.append("A dash: never reached.")
    return [*notes, f"Of {'; '.join(ways)}.", *(f"{sentence}." for sentence in runs.cautions)]


def _unranked(cells: Sequence[Sequence[Cell]]) -> list[str]:
    if all(cell.is_whole or not cell.sample for of_row in cells for cell in of_row):
        return []
    return [
        "Where only some runs reached it (1 of 3), the mean is of these, and has no rank: they may be lucky ones."
    ]


def _rankings(
    labels: Sequence[str], columns: Sequence[Mapping[str, Any]], cells: Sequence[Sequence[Cell]]
) -> list[str]:
    """Who is first over which link, where that is not the same for all."""
    sentences = []
    for accuracy in dict.fromkeys(column["accuracy"] for column in columns):
        orders: dict[tuple[str, ...], list[str]] = {}
        for place, column in enumerate(columns):
            if (column["metric"], column["accuracy"]) != (_BY_LINK, accuracy) or column["schedule"] == "slots":
                continue
            known = [
                (cell.sample.mean, label)
                for row, label in zip(cells, labels, strict=True)
                if (cell := row[place]).is_whole and cell.sample
            ]
            orders.setdefault(tuple(label for _, label in sorted(known)), []).append(column["link"])
        goal = f" to {_percent(accuracy)}" if accuracy is not None else ""
        if len(labels) > 1 and len(orders) > 1:
            told = "; ".join(f"{', '.join(links)}: {' < '.join(order)}" for order, links in orders.items())
            sentences.append(f"The ranking{goal} depends on the link: {told}.")
        elif len(labels) > 1 and sum(map(len, orders.values())) > 1:
            sentences.append(
                f"The ranking{goal} is the same over all these links: {' < '.join(next(iter(orders)))}."
            )
    return sentences
