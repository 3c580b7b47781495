"""A run folder read back: `run = load(path)`. Finished or interrupted, all that there is, checked as it is read.

Needs no torch and no data set, so that a folder can be looked at on any machine.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open

from fedsim.config import Experiment, read_toml
from fedsim.errors import UserError
from fedsim.metrics import CLIENT_COLUMNS
from fedsim.results.folder import PARTITION_COLUMNS, SERVER_TIMING_COLUMNS, TIMING_COLUMNS
from fedsim.results.wording import counted

Kinds = Mapping[str, type]
"""The columns that a table must have, and what is in them; any others are numbers."""

METRICS: Kinds = {"round": int} | dict.fromkeys(
    ("accuracy", "pooled_accuracy", "client_mean_accuracy", "correct", "tested", "clients", "train_loss"), float
)
"""Further columns are what a method's server reports."""
CLIENTS: Kinds = dict.fromkeys(CLIENT_COLUMNS, float) | {"round": int, "client": int}
TIMINGS: Kinds = dict.fromkeys(TIMING_COLUMNS, float) | {"round": int, "client": int}
SERVER_TIMINGS: Kinds = dict.fromkeys(SERVER_TIMING_COLUMNS, float) | {"round": int, "part": str}
PARTITION: Kinds = dict.fromkeys(PARTITION_COLUMNS, int)
LEVELS = ("elements", "payload_bytes", "message_bytes", "wire_bytes")
LEDGER: Kinds = (
    {"round": int, "client": int}
    | dict.fromkeys(("direction", "purpose", "message", "payload"), str)
    | dict.fromkeys(("frames", *LEVELS), int)
)


class Table:
    """Columns as arrays: words, whole numbers, or numbers with NaN for an empty field."""

    def __init__(self, columns: Mapping[str, np.ndarray]):
        self.columns = dict(columns)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def where(self, **wanted: Any) -> Table:
        """The rows with these values: `ledger.where(direction="up", round=3)`."""
        chosen = np.ones(len(self), dtype=bool)
        for name, value in wanted.items():
            chosen &= self[name] == value
        return self.only(chosen)

    def only(self, chosen: np.ndarray) -> Table:
        """The rows for which an array of truths says so."""
        return Table({name: column[chosen] for name, column in self.columns.items()})

    def known(self, name: str, by: str = "round") -> tuple[np.ndarray, np.ndarray]:
        """The column `by` and a column of numbers, both where the latter has a value."""
        has_value = ~np.isnan(self[name].astype(float))
        return self[by][has_value], self[name][has_value]

    def best(self, name: str) -> tuple[int, float] | None:
        """The round in which a column is largest, the earliest of equals, and its value there."""
        rounds, values = self.known(name)
        return (int(rounds[values.argmax()]), float(values.max())) if len(values) else None


@dataclass(frozen=True)
class LoadedRun:
    """One run. What an interrupted run did not get to write is empty, or None."""

    path: Path
    experiment: Experiment
    metrics: Table
    clients: Table
    timings: Table
    server_timings: Table
    ledger: Table
    partition: Table
    summary: dict[str, Any] | None

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def method(self) -> str:
        return str(self.experiment.method["name"])

    @property
    def title(self) -> str:
        """As the closing table has it."""
        run, dataset = self.experiment.run, Path(self.experiment.data.dataset).name
        counts = f"{counted(run.clients, 'client')}, {counted(self.num_rounds, 'round')}"
        return f"{self.method} on {dataset}, {counts}"

    @property
    def num_rounds(self) -> int:
        """Rounds that were trained."""
        return int(np.sum(~np.isnan(self.metrics["train_loss"])))

    @property
    def completed(self) -> bool:
        return bool(self.summary and self.summary["completed"])

    @property
    def reason(self) -> str:
        """Why it ended."""
        return str(self.summary["reason"]) if self.summary else "the run was interrupted before it wrote a summary"

    @property
    def best(self) -> tuple[int, float] | None:
        """Round and accuracy; the earliest of equals, as in the summary."""
        return self.metrics.best("accuracy")

    @property
    def final_accuracy(self) -> float | None:
        shares = self.metrics.known("accuracy")[1]
        return float(shares[-1]) if len(shares) else None

    @property
    def seconds(self) -> float:
        """From the first event to the last where no summary says it."""
        if self.summary:
            return float(self.summary["seconds"])
        times = [event["time"] for event in self.events]
        return float(times[-1] - times[0]) if times else 0.0

    def wire_bytes(self, direction: str) -> int | None:
        """Everything that went over the wire; None where there was no wire, or no ledger was written."""
        return int(self.ledger.where(direction=direction)["wire_bytes"].sum()) if len(self.ledger) else None

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
    if not (path / "config.toml").is_file():
        raise UserError(f"{path} is not a run folder: it has no config.toml.")
    metrics = _table(path / "metrics.csv", METRICS)
    if not len(metrics):
        raise UserError(f"{path} has no finished round yet, so there is nothing to show; let the run go on first.")
    return LoadedRun(
        path=path,
        experiment=_experiment(path),
        metrics=metrics,
        clients=_table(path / "clients.csv", CLIENTS),
        timings=_table(path / "timings.csv", TIMINGS),
        server_timings=_table(path / "server_timings.csv", SERVER_TIMINGS),
        ledger=_table(path / "ledger.csv", LEDGER),
        partition=_table(path / "partition.csv", PARTITION),
        summary=_summary(path / "summary.json"),
    )


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


def _table(path: Path, needed: Kinds) -> Table:
    """A CSV file; a last line that a crash cut off does not count, any other that is broken is an error."""
    if not path.exists():
        return Table({name: np.empty(0, kind) for name, kind in needed.items()})
    text = path.read_text(errors="replace")
    reader = csv.reader(text[: text.rfind("\n") + 1].split("\n")[:-1])
    names = next(reader, [])
    if missing := [name for name in needed if name not in names]:
        raise _other_version(path.parent, f"{path.name} has no column {missing[0]!r}")
    rows = []
    for row in reader:
        if len(row) != len(names):
            raise _broken(path, reader.line_num, f"{len(row)} fields instead of {len(names)}")
        rows.append(row)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return Table(
        {
            name: _column(path, name, values, needed.get(name, float))
            for name, values in zip(names, columns, strict=True)
        }
    )


def _column(path: Path, name: str, values: tuple[str, ...], kind: type) -> np.ndarray:
    convert: Callable[[str], object] = (lambda value: float(value or "nan")) if kind is float else kind
    try:
        return np.array([convert(value) for value in values], dtype=kind)
    except ValueError:
        line, value = next((line, value) for line, value in enumerate(values, 2) if _fails(convert, value))
        raise _broken(path, line, f"{name} = {value!r} is not a number") from None


def _fails(convert: Callable[[str], object], value: str) -> bool:
    try:
        convert(value)
    except ValueError:
        return True
    return False


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
