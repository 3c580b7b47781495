"""The tables of a report: every number is a sum or a mean of what the run's files hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pandas
from markupsafe import Markup
from pandas import DataFrame

from fedsim.config import Experiment
from fedsim.metrics import GPU_PEAK_BYTES, describe, further_shares, percent
from fedsim.results.groups import Group, Runs
from fedsim.results.load import LEVELS, LoadedRun
from fedsim.results.plots.timing import seconds as seconds_of
from fedsim.results.plots.traffic import by_payload
from fedsim.results.settings import METHOD
from fedsim.results.settings import text as setting_text
from fedsim.results.tables.formats import plain
from fedsim.results.tables.grid import Description, build
from fedsim.results.wording import audit_line, counted, cut_line, difference_line, size

PURPOSES = ("method", "evaluation", "setup", "control", "total")
WAYS = ("up", "down")
DECODED = "decoded_bytes"
"""The ledger's column for arrays as both ends have them in memory: only where some travel in an encoding."""


@dataclass(frozen=True)
class Table:
    """Text under headings. The first column names a row; columns in `words` are no numbers either."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Collection[str] = ()
    num_sums: int = 0
    """How many rows at the end add up the others."""


def _seconds(value: float) -> str:
    return f"{value:,.3f}" if value < 10 else f"{value:,.1f}"


Format = Callable[[Any], str]
_FORMATS: Mapping[str, Format] = {
    **dict.fromkeys(("best", "last", "share", "overhead"), percent),
    **dict.fromkeys(("up", "down", "GPU memory"), size),
    **dict.fromkeys(("seconds", "train s / round"), _seconds),
    "last loss": "{:.4f}".format,
    "cores": "{:.2f}".format,
}
"""By heading; other numbers are counts."""


def _table(frame: DataFrame, formats: Mapping[str, Format] = _FORMATS, num_sums: int = 0) -> Table:
    """What is not known is a dash."""

    def cell(name: str, value: Any) -> str:
        if isinstance(value, str):
            return value
        return "–" if pandas.isna(value) else formats.get(name, "{:,.0f}".format)(value)

    rows = [[cell(*item) for item in zip(frame, row, strict=True)] for row in frame.itertuples(index=False)]
    words = [name for name in frame if any(isinstance(value, str) for value in frame[name])]
    return Table(list(frame), rows, words, num_sums)


def facts(run: LoadedRun) -> list[tuple[str, str, str]]:
    """The few numbers on top: name, value, remark."""
    found = []
    if own := run.best_and_last("accuracy"):
        found += [
            ("best accuracy", percent(own.best), f"round {own.best_round}"),
            ("last accuracy", percent(own.last), f"after {counted(run.num_rounds, 'round')}"),
        ]
    if partial := len(run.partial_rounds):
        found.append(("rounds of fewer clients", str(partial), "neither best nor last"))
    for name in further_shares(run.metrics):
        if of_run := run.best_and_last(name):
            found.append((describe(name).title, percent(of_run.best), f"best, round {of_run.best_round}"))
    for way in WAYS:
        if (total := run.wire_bytes(way)) is not None:
            found.append((f"sent {way}", size(total), "on the wire, all clients"))
    audit = (run.summary or {}).get("audit")
    if audit and audit["checked"]:
        found.append(("kernel agrees", f"{audit['agree']} of {audit['connections']}", "connections, to the byte"))
    found.append(("time", _duration(run.seconds), f"{run.experiment.run.clients} clients"))
    return found


def metrics(run: LoadedRun) -> Table:
    """One row for each column of metrics.csv."""
    rows = []
    for name in run.metrics.columns.drop("round"):
        known, text = run.series(name), describe(name).text
        numbers = [known.iloc[0], known.min(), known.max(), known.iloc[-1]] if len(known) else [None] * 4
        rows.append([name, *map(text, numbers)])
    return Table(["metric", "first", "smallest", "largest", "last"], rows)


def clients(run: LoadedRun) -> Table:
    """One row a client; at the end the last value of whatever else clients report."""
    everyone = range(run.experiment.run.clients)
    architectures = (run.summary or {}).get("architectures") or [None]
    held, measured = run.partition.groupby("client"), run.client_shares.groupby("client")
    columns = {
        "client": everyone,
        "model": [architectures[client % len(architectures)] for client in everyone],
        "train": held["train"].sum(),
        "test": held["test"].sum(),
        "classes": held["train"].agg(lambda counts: (counts > 0).sum()),
        "best": measured["accuracy"].max(),
        "last": measured["accuracy"].last(),
        "last loss": measured["loss"].last(),
        "train s / round": run.timings.groupby("client")["train"].mean(),
        **_gpu_memory(run),
        **run.ledger.pivot_table("wire_bytes", "client", "direction", aggfunc="sum").reindex(columns=WAYS),
    }
    formats = dict(_FORMATS)
    for name in run.client_shares.columns.drop(["round", "client", "accuracy", "loss"]):
        columns[heading := f"last {describe(name).label}"] = measured[name].last()
        formats[heading] = describe(name).text
    return _table(DataFrame(columns, index=everyone), formats)


def _gpu_memory(run: LoadedRun) -> dict[str, pandas.Series]:
    """The most that each client had of its GPU; nothing of runs on CPUs."""
    if GPU_PEAK_BYTES not in run.timings:
        return {}
    return {"GPU memory": run.timings.groupby("client")[GPU_PEAK_BYTES].max()}


def costs(run: LoadedRun) -> Table:
    """Purpose and direction -> the four levels, and what the wire adds to the payload; sums at the end."""
    ledger = pandas.concat([run.ledger, run.ledger.assign(purpose="total")])
    levels = [level for level in (*LEVELS, DECODED) if level in ledger]
    sums = ledger.groupby(["purpose", "direction"])[levels].sum()
    rows = [(purpose, way) for purpose in PURPOSES for way in WAYS if (purpose, way) in sums.index]
    payload = sums["payload_bytes"].where(sums["payload_bytes"] > 0)
    frame = sums.assign(overhead=sums["wire_bytes"] / payload - 1).loc[rows].reset_index(names=["purpose", "way"])
    frame = frame.rename(columns=lambda name: name.replace("_", " "))
    return _table(frame, num_sums=sum(purpose == "total" for purpose, _ in rows))


def payloads(run: LoadedRun) -> Table:
    """Payload -> elements and wire bytes, both ways; where any were encoded also in what, and their bytes."""
    coded = {DECODED: "decoded bytes ", "payload_bytes": "payload bytes "} if DECODED in run.ledger else {}
    frame = by_payload(run, "elements").add_prefix("elements ")
    for level, prefix in (coded | {"wire_bytes": "wire bytes "}).items():
        frame = frame.join(by_payload(run, level).add_prefix(prefix))
    frame = frame.reset_index()
    if coded:
        wire = dict(run.experiment.wire or {})
        frame.insert(1, "encoding", [str(wire.get(payload, "–")) for payload in frame["payload"]])
    return _table(frame)


def kernel_check(run: LoadedRun) -> list[str]:
    """One sentence, and one more for every difference; empty where there was no wire."""
    audit = (run.summary or {}).get("audit")
    if not audit:
        return []
    return [audit_line(audit), *map(cut_line, audit.get("cut", [])), *map(difference_line, audit["differences"])]


def timings(run: LoadedRun) -> Table:
    """Where the time of a client's round goes on average, in seconds and as a share."""
    if not len(run.timings):
        return Table([], [])
    means = seconds_of(run).mean()
    means["whole round"] = means.sum()
    frame = DataFrame({"seconds": means, "share": means / means["whole round"]})
    return _table(frame.reset_index(names="in a client's mean round"), num_sums=1)


def server_timings(run: LoadedRun) -> Table:
    """What the server's step is made of on average, as a share, and on how many cores."""
    table = pandas.concat([run.server_timings, run.server_timings.assign(part="whole step")])
    sums = table.groupby("part", sort=False)[["seconds", "cpu_seconds"]].sum()
    spent = sums["seconds"].where(sums["seconds"] > 0)
    columns = {
        "seconds": sums["seconds"] / table["round"].nunique(),
        "share": sums["seconds"] / spent.get("whole step"),
        "cores": sums["cpu_seconds"] / spent,
    }
    return _table(DataFrame(columns).reset_index(names="in the server's mean step"), num_sums=1)


def config(experiment: Experiment) -> list[tuple[str, list[tuple[str, str, bool]]]]:
    """Section -> option, value, and whether it is not fedsim's default. A method's options have none; of encodings
    and the world only what was chosen is there."""
    given, default = msgspec.to_builtins(experiment), msgspec.to_builtins(Experiment())

    def is_chosen(section: str, key: str, value: Any) -> bool:
        return section not in default or default[section].get(key, value) != value

    return [
        (section, [(key, _plain(value), is_chosen(section, key, value)) for key, value in own.items()])
        for section, own in given.items()
    ]


def summary(runs: Runs) -> tuple[Table, Sequence[str]]:
    """One row for each group of runs: mean ± deviation over its seeds; and what must be known to read it."""
    costs = ("bytes_up", "bytes_down") if any(len(run.ledger) for run in runs.runs) else ()
    metrics = ("accuracy", "worst_tenth", "client_deviation", *costs, "seconds")
    grid = build(runs.finished, Description(rows=runs.varied or [METHOD], columns=[], metrics=metrics))
    texts = {1: Markup("<strong>{}</strong>"), 2: Markup("<u>{}</u>"), 0: Markup("{}")}
    rows = [
        [*labels, *(texts[cell.place].format(plain(grid, cell)) for cell in cells)]
        for labels, cells in zip(grid.rows, grid.cells, strict=True)
    ]
    headings = [*grid.row_titles, *(" ".join(heading) for heading in grid.headings)]
    return Table(headings, rows, grid.row_titles), grid.notes


def comparison(runs: Runs) -> Table:
    """One row a run."""
    stopped = Markup('{} <span class="bad">(stopped early)</span>')
    rows = [
        {
            "run": name if run.completed else stopped.format(name),
            "method": run.method,
            "data set": Path(run.experiment.data.dataset).name,
            "clients": run.experiment.run.clients,
            "rounds": run.num_rounds,
            "best": run.best[1] if run.best else None,
            "in round": run.best[0] if run.best else None,
            "last": run.final_accuracy,
            **{way: run.wire_bytes(way) for way in WAYS},
            "seconds": run.seconds,
        }
        for name, run in zip(_names(runs.runs), runs.runs, strict=True)
    ]
    return _table(DataFrame(rows))


def _names(runs: Sequence[LoadedRun]) -> list[str]:
    """Of their folders, or their paths where names are not enough."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def provenance(run: LoadedRun) -> Table:
    """Where its numbers come from."""
    return Table(["", "value"], [list(item) for item in run.provenance.items()], ["value"])


def differences(runs: Runs) -> Table:
    """The options that are not the same in all groups that have them; a dash where a method does not. Below
    them, what else is not the same: versions, machine, data, code."""
    flat = {
        label: {
            **{key: setting_text(key, value) or None for key, value in group.settings.items()},
            **_provenance(group),
        }
        for label, group in zip(runs.labels, runs.groups, strict=True)
    }
    frame = DataFrame(flat)
    return _table(frame[frame.nunique(axis=1) > 1].reset_index(names="option"))


def _provenance(group: Group) -> dict[str, str]:
    """What all runs of a group have in common; the command says what options say, and runs have one each."""
    facts: dict[str, dict[str, None]] = {}
    for run in group.runs.values():
        for fact, value in run.provenance.items():
            facts.setdefault(fact, {})[value] = None
    return {
        fact: next(iter(values)) if len(values) == 1 else "not the same in all runs"
        for fact, values in facts.items()
        if fact != "command"
    }


def meanings(run: LoadedRun) -> list[tuple[str, str]]:
    """Of the run's metrics that need words."""
    known = [(name, describe(name).meaning) for name in run.metrics.columns]
    return [(name, meaning) for name, meaning in known if meaning]


def _plain(value: Any) -> str:
    """As in config.toml, but words without their quotation marks."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
