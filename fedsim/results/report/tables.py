"""The tables of a report, as plain values: every number is a sum or a mean of what the run's files hold.

Dimensions: M clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedsim.config import Experiment
from fedsim.results.load import LEVELS, LoadedRun, Table
from fedsim.results.plots import timing as timing_plots
from fedsim.results.plots.accuracy import client_accuracies
from fedsim.results.plots.traffic import payload_bytes
from fedsim.results.wording import FURTHER_ACCURACIES, audit_line, counted, difference_line, percent, size

Row = dict[str, Any]

PURPOSES = ("method", "evaluation", "setup", "control")
WAYS = ("up", "down")


def facts(run: LoadedRun) -> list[tuple[str, str, str]]:
    """The few numbers on top: name, value, remark."""
    found = []
    if run.best is not None:
        best_round, best = run.best
        found += [
            ("best accuracy", percent(best), f"round {best_round}"),
            ("last accuracy", percent(run.final_accuracy), f"after {counted(run.num_rounds, 'round')}"),
        ]
    for name, whose in FURTHER_ACCURACIES.items():
        if name in run.metrics and (best_of := run.metrics.best(name)) is not None:
            found.append((whose, percent(best_of[1]), f"best, round {best_of[0]}"))
    for way in WAYS:
        if (total := run.wire_bytes(way)) is not None:
            found.append((f"sent {way}", size(total), "on the wire, all clients"))
    audit = (run.summary or {}).get("audit")
    if audit and audit["checked"]:
        found.append(("kernel agrees", f"{audit['agree']} of {audit['connections']}", "connections, to the byte"))
    found.append(("time", _duration(run.seconds), f"{run.experiment.run.clients} clients"))
    return found


def clients(run: LoadedRun) -> list[Row]:
    """One row a client. What is not known of a client is None."""
    architectures = (run.summary or {}).get("architectures")
    ids, _, shares_MR = client_accuracies(run)
    accuracy = {int(client): shares[~np.isnan(shares)] for client, shares in zip(ids, shares_MR, strict=True)}
    rows = []
    for client in range(run.experiment.run.clients):
        held, timed = run.partition.where(client=client), run.timings.where(client=client)
        losses = run.clients.where(client=client).known("loss")[1]
        trained = timed.known("train")[1]
        shares = accuracy.get(client, np.empty(0))
        rows.append(
            {
                "client": client,
                "model": architectures[client % len(architectures)] if architectures else None,
                "train": int(held["train"].sum()) if len(held) else None,
                "test": int(held["test"].sum()) if len(held) else None,
                "classes": int((held["train"] > 0).sum()) if len(held) else None,
                "best": float(shares.max()) if len(shares) else None,
                "last": float(shares[-1]) if len(shares) else None,
                "loss": float(losses[-1]) if len(losses) else None,
                "seconds": float(trained.mean()) if len(trained) else None,
                **{way: _wire(run, client=client, direction=way) for way in WAYS},
            }
        )
    return rows


def costs(run: LoadedRun) -> list[Row]:
    """Purpose and direction -> the four levels, and what the wire adds to the payload; sums at the end."""
    rows = []
    for purpose in (*PURPOSES, "total"):
        for way in WAYS:
            wanted = {"direction": way} | ({} if purpose == "total" else {"purpose": purpose})
            chosen = run.ledger.where(**wanted)
            if len(chosen):
                levels = {level: int(chosen[level].sum()) for level in LEVELS}
                row: Row = {"purpose": purpose, "way": way, **levels}
                payload = row["payload_bytes"]
                row["overhead"] = (row["wire_bytes"] - payload) / payload if payload else None
                rows.append(row)
    return rows


def payloads(run: LoadedRun) -> list[Row]:
    """Payload -> elements and wire bytes, both ways."""
    rows = []
    for payload, of_way in payload_bytes(run).items():
        chosen: Table = run.ledger.where(payload=payload)
        elements = {f"elements_{way}": int(chosen.where(direction=way)["elements"].sum()) for way in WAYS}
        rows.append({"payload": payload, **elements, **of_way})
    return rows


def kernel_check(run: LoadedRun) -> list[str]:
    """One sentence, and one more for every difference; empty where there was no wire."""
    audit = (run.summary or {}).get("audit")
    if audit is None:
        return []
    return [audit_line(audit), *map(difference_line, audit["differences"])]


def timings(run: LoadedRun) -> list[Row]:
    """Where the time of a client's round goes on average, in seconds and as a share."""
    if not len(run.timings):
        return []
    means = {part: float(values.mean()) for part, values in timing_plots.seconds(run).items()}
    whole = sum(means.values())
    rows = [{"part": part, "seconds": means[part], "share": means[part] / whole} for part in timing_plots.PARTS]
    return [*rows, {"part": "whole round", "seconds": whole, "share": 1.0}]


def server_timings(run: LoadedRun) -> list[Row]:
    """What the server's step is made of on average, as a share, and on how many cores."""
    table = run.server_timings
    if not len(table):
        return []
    num_steps, whole = len(np.unique(table["round"])), table["seconds"].sum()
    parts = [(part, table.where(part=part)) for part in dict.fromkeys(table["part"].tolist())]
    found = []
    for part, rows in [*parts, ("whole step", table)]:
        seconds, cpu_seconds = rows["seconds"].sum(), rows["cpu_seconds"].sum()
        cores = cpu_seconds / seconds if seconds else None
        share = seconds / whole if whole else None
        found.append({"part": part, "seconds": seconds / num_steps, "share": share, "cores": cores})
    return found


def config(experiment: Experiment) -> list[tuple[str, list[tuple[str, str, bool]]]]:
    """Section -> option, value, and whether it is not fedsim's default, which a method's options have none of."""
    given, default = msgspec.to_builtins(experiment), msgspec.to_builtins(Experiment())

    def rows(section: str) -> list[tuple[str, str, bool]]:
        known = default[section]
        return [(key, _plain(value), known.get(key, value) != value) for key, value in given[section].items()]

    return [(section, rows(section)) for section in given]


def comparison(runs: Mapping[str, LoadedRun]) -> list[Row]:
    """One row a run."""
    return [
        {
            "name": name,
            "method": run.method,
            "dataset": Path(run.experiment.data.dataset).name,
            "clients": run.experiment.run.clients,
            "rounds": run.num_rounds,
            "best": run.best[1] if run.best else None,
            "best_round": run.best[0] if run.best else None,
            "last": run.final_accuracy,
            **{way: run.wire_bytes(way) for way in WAYS},
            "seconds": run.seconds,
            "completed": run.completed,
        }
        for name, run in runs.items()
    ]


def differences(runs: Mapping[str, LoadedRun]) -> list[Row]:
    """The options that are not the same in all runs that have them; None where a run's method does not."""
    flat = {
        name: {
            f"{section}.{key}": _plain(value)
            for section, options in msgspec.to_builtins(run.experiment).items()
            for key, value in options.items()
        }
        for name, run in runs.items()
    }
    options = dict.fromkeys(option for of_run in flat.values() for option in of_run)
    rows = [{"option": option, "values": [of_run.get(option) for of_run in flat.values()]} for option in options]
    return [row for row in rows if len({value for value in row["values"] if value is not None}) > 1]


def _wire(run: LoadedRun, **wanted: Any) -> int | None:
    return int(run.ledger.where(**wanted)["wire_bytes"].sum()) if len(run.ledger) else None


def _plain(value: Any) -> str:
    """As in config.toml, but words without their quotation marks."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
