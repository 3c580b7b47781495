"""A run folder read back: `run = load(path)`. Finished or interrupted, all that there is, checked as it is read.

Tables are pandas DataFrames, with NaN where a field is empty. Needs no torch and no data set, so that a folder can
be looked at on any machine.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from pandas import DataFrame, Series
from safetensors import SafetensorError, safe_open

from fedsim import methods
from fedsim.config import Experiment, read_toml
from fedsim.errors import UserError
from fedsim.metrics import CLIENT_COLUMNS, ROUND_COLUMNS, BestAndLast, best_and_last, percent, tests_of
from fedsim.results.folder import PARTITION_COLUMNS, SERVER_TIMING_COLUMNS, TIMING_COLUMNS, RunFolder
from fedsim.results.provenance import facts
from fedsim.results.wording import counted

LEVELS = ("elements", "payload_bytes", "message_bytes", "wire_bytes")
_TABLES: Mapping[str, Mapping[str, type]] = {
    "metrics": dict.fromkeys(ROUND_COLUMNS, float) | {"round": int},
    "clients": dict.fromkeys(CLIENT_COLUMNS, float) | {"round": int, "client": int},
    "timings": dict.fromkeys(TIMING_COLUMNS, float) | {"round": int, "client": int},
    "server_timings": dict.fromkeys(SERVER_TIMING_COLUMNS, float) | {"round": int, "part": str},
    "ledger": dict.fromkeys(("direction", "purpose", "message", "payload"), str)
    | dict.fromkeys(("round", "client", "frames", *LEVELS), int),  # and decoded_bytes, where any were encoded
    "partition": dict.fromkeys(PARTITION_COLUMNS, int),
}
"""The columns that a table must have, and what is in them; any others are numbers."""


@dataclass(frozen=True, eq=False, repr=False)
class LoadedRun:
    """One run. What an interrupted run did not get to write is empty, or None."""

    path: Path
    """Its folder."""
    experiment: Experiment
    """All settings: `run.experiment.train.lr`."""
    metrics: DataFrame
    """One row a round: `accuracy`, `train_loss`, and whatever the method reports."""
    clients: DataFrame
    """One row a round and client: `correct` of `tested`, `loss`, and whatever the method's clients report."""
    timings: DataFrame
    """Where each client's time went, in seconds, by round."""
    server_timings: DataFrame
    """Where the time of the server's step went."""
    ledger: DataFrame
    """Every byte, by round, client, direction, purpose, message and payload; empty for a run in process."""
    partition: DataFrame
    """Training and test samples by client and class."""
    summary: dict[str, Any] | None
    """The numbers of the closing table, as in summary.json."""

    def __repr__(self) -> str:
        """A few lines: what it is, what came out, where it is, and its tables."""
        found = self.best_and_last("accuracy")
        numbers = f"best accuracy {percent(found.best)} in round {found.best_round}, " if found else ""
        last = f"last {percent(found.last)}, " if found else ""
        tables = [
            f"{name} {table.shape[0]}×{table.shape[1]}" for name in _TABLES if len(table := getattr(self, name))
        ]
        return (
            f"{self.title}: {'complete' if self.completed else self.reason}\n"
            f"{numbers}{last}{self.seconds:.1f} s\n"
            f"{self.path}: {', '.join(tables)}"
        )

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def method(self) -> str:
        """As papers write it."""
        return methods.title(str(self.experiment.method["name"]))

    @property
    def title(self) -> str:
        """As the closing table has it."""
        run, dataset = self.experiment.run, Path(self.experiment.data.dataset).name
        counts = f"{counted(run.clients, 'client')}, {counted(self.num_rounds, 'round')}"
        return f"{self.method} on {dataset}, {counts}"

    @property
    def num_rounds(self) -> int:
        """Rounds that were trained: the one after them only evaluates."""
        return int((self.metrics["round"] != self.experiment.run.rounds).sum())

    @property
    def completed(self) -> bool:
        return bool(self.summary and self.summary["completed"])

    @property
    def reason(self) -> str:
        """Why it ended."""
        return str(self.summary["reason"]) if self.summary else "the run was interrupted before it wrote a summary"

    @property
    def provenance(self) -> dict[str, str]:
        """Where its numbers come from: command, versions, machine, data; empty where nobody took it down."""
        return facts((self.summary or {}).get("provenance", {}))

    @property
    def best(self) -> tuple[int, float] | None:
        """Round and accuracy, as in the summary."""
        found = self.best_and_last("accuracy")
        return (found.best_round, found.best) if found else None

    @property
    def final_accuracy(self) -> float | None:
        found = self.best_and_last("accuracy")
        return found.last if found else None

    def series(self, name: str) -> Series:
        """A column of metrics.csv by round, where it has a finite value; empty for a name that no round has."""
        column = self.metrics.set_index("round").get(name, Series(dtype=float))
        return column[np.isfinite(column)]

    def best_and_last(self, name: str) -> BestAndLast | None:
        """Of a column of metrics.csv; None where it was never measured."""
        series = self.series(name)
        return best_and_last(name, series[~series.index.isin(self.partial_rounds)].items())

    @cached_property
    def partial_rounds(self) -> list[int]:
        """Those that are neither best nor last because clients were lost in them."""
        lost = self.series("lost")
        return [] if self.experiment.run.count_partial else lost[lost > 0].index.tolist()

    @cached_property
    def client_shares(self) -> DataFrame:
        """clients.csv with `accuracy` for `correct` of `tested`, and so on for further tests; NaN: not tested."""
        table = self.clients.copy()
        for prefix in tests_of(table):
            table[f"{prefix}accuracy"] = table.pop(f"{prefix}correct") / table.pop(f"{prefix}tested")
        return table

    @property
    def seconds(self) -> float:
        """From the first event to the last where no summary says it."""
        if self.summary:
            return float(self.summary["seconds"])
        times = [event["time"] for event in self.events]
        return float(times[-1] - times[0]) if times else 0.0

    def wire_bytes(self, direction: str) -> int | None:
        """Everything that went over the wire; None where there was no wire, or no ledger was written."""
        sent = self.ledger["wire_bytes"][self.ledger["direction"] == direction]
        return int(sent.sum()) if len(self.ledger) else None

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """All lines of events.jsonl; one that a crash cut off does not count."""
        return list(_events(self.path / "events.jsonl"))

    @cached_property
    def rounds(self) -> dict[int, dict[str, Any]]:
        """What was said when each round was finished; of a round that was played again, the last word."""
        return {event["round"]: event for event in self.events if event["event"] == "round_finished"}

    @cached_property
    def _records(self) -> dict[int, Path]:
        paths = sorted((self.path / "records").glob("round-*.safetensors"))
        return {int(path.stem.removeprefix("round-")): path for path in paths}

    def records(self, *names: str) -> dict[int, dict[str, np.ndarray]]:
        """Round -> these arrays, for the rounds that have all of them; nothing else is read."""
        found = {}
        for round, path in self._records.items():
            try:
                with safe_open(path, framework="numpy") as file:
                    if set(names) <= set(file.keys()):
                        found[round] = {name: file.get_tensor(name) for name in names}
            except (SafetensorError, OSError) as error:
                raise UserError(f"{path} cannot be read ({error}); delete it to go on without it.") from None
        return found


def load(path: Path) -> LoadedRun:
    """Read a run folder."""
    if not path.is_dir():
        raise UserError(f"there is no run folder {path}.")
    RunFolder.open(path)  # is it one?
    tables = {name: _table(path / f"{name}.csv", columns) for name, columns in _TABLES.items()}
    if not len(tables["metrics"]):
        raise UserError(f"{path} has no finished round yet, so there is nothing to show; let the run go on first.")
    return LoadedRun(path, _experiment(path), **tables, summary=_summary(path / "summary.json"))


def _experiment(path: Path) -> Experiment:
    """A run's config is complete, so the method's module, and torch with it, is not needed to read it."""
    try:
        return msgspec.convert(read_toml(path / "config.toml"), Experiment)
    except msgspec.ValidationError as error:
        raise _other_version(path, f"config.toml: {str(error).replace('`', '')}") from None


def _other_version(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path} was made by another version of fedsim ({reason}); open it with that version, or run it again."
    )


def _table(path: Path, needed: Mapping[str, type]) -> DataFrame:
    """A CSV file; a last line that a crash cut off does not count, any other that is broken is an error."""
    if not path.exists():
        return DataFrame({name: Series(dtype=kind) for name, kind in needed.items()})
    *lines, _ = path.read_text(errors="replace").split("\n")
    names, *rows = csv.reader(lines or [""])
    if missing := [name for name in needed if name not in names]:
        raise _other_version(path.parent, f"{path.name} has no column {missing[0]!r}")
    for line, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise _broken(path, line, f"{len(row)} fields instead of {len(names)}")
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    return DataFrame({name: _column(path, name, columns[name], needed.get(name, float)) for name in names})


def _column(path: Path, name: str, values: Sequence[str], kind: type) -> Series:
    """An empty field is a number that is not known; words and whole numbers always are."""
    column = []
    for line, value in enumerate(values, 2):
        try:
            column.append(float(value or "nan") if kind is float else kind(value))
        except ValueError:
            raise _broken(path, line, f"{name} = {value!r} is not a number") from None
    return Series(column, dtype=kind)


def _broken(path: Path, line: int, reason: str) -> UserError:
    return UserError(f"{path}, line {line}, is broken: {reason}; mend or delete the line.")


def _summary(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        summary: dict[str, Any] = json.loads(path.read_text())
    except ValueError:
        raise UserError(
            f"{path} is not valid JSON; delete it, and the numbers are taken from the tables."
        ) from None
    needed = ("completed", "reason", "seconds")
    if missing := [name for name in needed if name not in summary]:
        raise _other_version(path.parent, f"summary.json has no {missing[0]!r}")
    return summary


def _events(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    *lines, _ = path.read_text(errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except ValueError:
            raise _broken(path, number, "it is not valid JSON") from None
