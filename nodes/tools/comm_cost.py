"""Measures what a round of a method costs: a rehearsal with a real server and real clients on real sockets.

A run of N + 1 rounds holds N whole ones: in round 0 nothing has been aggregated yet, so nothing comes down, and
after the last round something comes down but nothing goes up. Rounds 1 to N are counted, from the ledger and from
the kernel, whose counters the server reads when a round is over and nothing is under way.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console

from fedsim import assembly, config, methods
from fedsim.config import Experiment
from fedsim.costs import rehearsal
from fedsim.costs.formula import Formula, formulae, letters_of
from fedsim.costs.measured import WAYS, Flow, MethodCost, SettingCosts
from fedsim.costs.printed import Printed, printed_costs
from fedsim.errors import UnknownName, UserError
from fedsim.method import Setting
from fedsim.results.folder import RunFolder
from fedsim.results.load import LEVELS, Table, load
from fedsim.results.wording import difference_line
from nodes.display.run import Quiet
from nodes.launchers.base import LaunchOptions
from nodes.launchers.local import LocalLauncher
from protocol import wire
from protocol.ledger import BEFORE_FIRST_ROUND

Layer = Mapping[str, Any]


def measure_setting(
    layers: Sequence[Layer],
    names: Sequence[str],
    *,
    method_options: Layer | None = None,
    method_defaults: Layer | None = None,
    num_rounds: int = 1,
    curve: bool = False,
    leave_out_refused: bool = False,
) -> SettingCosts:
    """Rehearse one method after the other. Options of methods go to every method that has them; each of
    `method_options` must mean something to at least one of them.

    A method that cannot work in this setting is a UserError, or with `leave_out_refused` listed with its reason.
    """
    fixed = {
        "run": {"rounds": num_rounds + 1, "rehearsal": True, "participation": 1.0, "evaluate_every": 1},
        # A round without one of its clients is no measurement.
        "cluster": {"device": "cpu", "checkpoint_every": 0, "quorum": 1.0, "rejoin_seconds": 0.0},
    }
    measured, refused = [], {}
    for name, options in _options_by_method(names, method_options or {}, method_defaults or {}).items():
        try:
            experiment = config.build([*layers, {"method": {"name": name, **options}}, fixed])
            assembly.check(experiment)
        except UserError as error:
            if not leave_out_refused:
                raise
            refused[title_of(name)] = str(error)
            continue
        measured.append(rehearse(experiment, curve=curve))
    experiment = config.build([*layers, {"method": {"name": "local"}}, fixed])
    return SettingCosts(
        dataset=Path(experiment.data.dataset).name,
        group=experiment.model.group,
        num_clients=experiment.run.clients,
        num_rounds=num_rounds,
        letters=letters_of(_setting(experiment)),
        methods=tuple(measured),
        refused=refused,
        curve=curve,
        heartbeat_seconds=experiment.cluster.heartbeat_seconds,
    )


def title_of(name: str) -> str:
    module = methods.load(name)
    return module.ABOUT.title if hasattr(module, "ABOUT") else name


def rehearse(experiment: Experiment, *, curve: bool = False) -> MethodCost:
    """One method in one setting, from the first fork to the audit."""
    started = time.monotonic()
    setting = _setting(experiment)
    rehearsal.messages_of(setting)  # here, so that the processes forked from this one find them ready
    letters = letters_of(setting)
    contract = assembly.contract_of(experiment)
    found = formulae(contract)
    with tempfile.TemporaryDirectory(prefix="fedsim-") as parent:
        folder = RunFolder.create(Path(parent) / "run", experiment)
        LocalLauncher(folder, Quiet(Console(stderr=True)), LaunchOptions(curve=curve)).run()
        summary = folder.summary()
        if summary is None or not summary["completed"]:
            reason = summary["reason"] if summary else (folder.logs / "server.log").read_text().strip()
            raise UserError(f"the rehearsal of {experiment.method_name} stopped early: {reason}")
        run = load(folder.path)
        books = Books(run.ledger, run.rounds, num_rounds=experiment.run.rounds - 1)
        printed = printed_costs(experiment)
        flows = _flows(experiment, found, letters, books, printed, curve=curve)
    audit = summary["audit"]
    used = (letter for formula in found.values() for letter in formula.letters)
    return MethodCost(
        name=experiment.method_name,
        title=title_of(experiment.method_name),
        formulae=found,
        letters={letter: letters[letter] for letter in used},
        flows=tuple(flows),
        num_connections=audit["connections"],
        num_agreeing=audit["agree"],
        num_reconciled=audit["checked"],
        differences=tuple(difference_line(difference) for difference in audit["differences"]),
        num_heartbeats=audit["heartbeats"],
        seconds=time.monotonic() - started,
        printed_both=printed.get("both"),
        note=contract.note,
    )


@dataclass(frozen=True)
class Books:
    """The ledger and the kernel's counters of a finished rehearsal."""

    ledger: Table
    ends: Mapping[int, Mapping[str, Any]]
    """Round -> what the server said when it was over."""
    num_rounds: int

    def rounds(self, way: str) -> Table:
        """All that went one way in the whole rounds."""
        rows = self.ledger.where(direction=way)
        return rows.only((rows["round"] >= 1) & (rows["round"] <= self.num_rounds))

    def setup(self, way: str) -> Table:
        """The method's part of joining."""
        return self.ledger.where(direction=way, purpose="setup", round=BEFORE_FIRST_ROUND)

    def kernel_bytes(self, way: str) -> int | None:
        """What the kernel counted from the end of round 0 to the end of the last whole round."""
        name = f"kernel_bytes_{way}"
        first, last = self.ends[0], self.ends[self.num_rounds]
        return int(last[name]) - int(first[name]) if name in first and name in last else None


def _flows(
    experiment: Experiment,
    found: Mapping[str, Formula],
    letters: Mapping[str, int],
    books: Books,
    printed: Mapping[str, Printed],
    *,
    curve: bool,
) -> Iterator[Flow]:
    has_heartbeats = experiment.cluster.heartbeat_seconds > 0
    unit_bytes = {"up": wire.ping_bytes(curve=curve), "down": wire.pong_bytes(curve=curve)}
    for way in WAYS:
        rows, kernel = books.rounds(way), books.kernel_bytes(way)
        levels = _sum(rows)
        # The ledger books heartbeats with joining; here they belong to the rounds in which they came.
        beyond = (kernel or 0) - levels["wire_bytes"]
        heartbeats = beyond if has_heartbeats and beyond > 0 and beyond % unit_bytes[way] == 0 else 0
        levels["wire_bytes"] += heartbeats
        yield Flow(
            way=way,
            formula=str(found[way]),
            expected=found[way].evaluate(letters) * books.num_rounds,
            **levels,
            kernel_bytes=kernel,
            largest_client_bytes=_largest_client(rows),
            heartbeat_bytes=heartbeats,
            printed=printed.get(way) if books.num_rounds == 1 else None,
        )
    for way in WAYS:
        formula, rows = found[f"setup_{way}"], books.setup(way)
        levels = _sum(rows)
        expected = formula.evaluate(letters)
        if expected or levels["elements"]:
            yield Flow(
                way=f"set-up {way}",
                formula=str(formula),
                expected=expected,
                **levels,
                kernel_bytes=None,
                largest_client_bytes=_largest_client(rows),
                heartbeat_bytes=0,
                printed=None,
            )


def _sum(rows: Table) -> dict[str, int]:
    return {level: int(rows[level].sum()) for level in LEVELS}


def _largest_client(rows: Table) -> int:
    of_client = (int(rows.where(client=client)["wire_bytes"].sum()) for client in np.unique(rows["client"]))
    return max(of_client, default=0)


def _setting(experiment: Experiment) -> Setting:
    return assembly.setting_of(experiment, rehearsal.federation_of(experiment))


def _options_by_method(names: Sequence[str], options: Layer, defaults: Layer) -> dict[str, dict[str, Any]]:
    known = {name: {field.name for field in msgspec.structs.fields(methods.load(name).Config)} for name in names}
    for option in options:
        if not any(option in fields for fields in known.values()):
            raise UnknownName("option", f"method.{option}", {f"method.{f}" for own in known.values() for f in own})
    given = {**defaults, **options}
    return {name: {o: value for o, value in given.items() if o in known[name]} for name in names}
