"""Measures what a round of a method costs: a rehearsal with a real server and real clients on real sockets.

A run of N + 1 rounds holds N whole ones: in round 0 nothing has been aggregated yet, so nothing comes down, and
after the last round something comes down but nothing goes up. Rounds 1 to N are counted, from the ledger and from
the kernel, whose counters the server reads when a round is over and nothing is under way.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from pandas import DataFrame
from rich.console import Console

from fedsim import assembly, config, methods
from fedsim.config import Experiment
from fedsim.contract import Contract, Payload
from fedsim.costs import rehearsal
from fedsim.costs.formula import Formula, formulae, letters_of, payload_bytes
from fedsim.costs.measured import WAYS, Flow, MethodCost, SettingCosts, both_ways
from fedsim.costs.printed import printed_costs
from fedsim.errors import UnknownName, UserError
from fedsim.method import Setting
from fedsim.results.folder import RunFolder
from fedsim.results.load import LEVELS, LoadedRun, load
from nodes.display.run import Quiet
from nodes.tools.scratch import run_cluster
from protocol.ledger import BEFORE_FIRST_ROUND

Layer = Mapping[str, Any]

FIXED: Mapping[str, Layer] = {
    "run": {"rehearsal": True, "participation": 1.0, "evaluate_every": 1},
    # A round without one of its clients is no measurement.
    "cluster": {"device": "cpu", "checkpoint_every": 0, "quorum": 1.0, "rejoin_seconds": 0.0},
}
"""What every rehearsal has, whatever else is set."""


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
    fixed = {**FIXED, "run": {**FIXED["run"], "rounds": num_rounds + 1}}
    wire: dict[str, Any] = {}
    for layer in layers:
        wire |= layer.get("wire", {})
    _refuse_unsent(wire, names)
    measured, refused = [], {}
    for name, options in _options_by_method(names, method_options or {}, method_defaults or {}).items():
        try:
            chosen = {"method": {"name": name, **options}}
            experiment = config.build([*_without_wire(layers), chosen, fixed])
            experiment = config.build([config.to_layer(experiment), {"wire": _wire_for(experiment, wire)}])
            assembly.check(experiment)
        except UserError as error:
            if not leave_out_refused:
                raise
            refused[title_of(name)] = str(error)
            continue
        measured.append(rehearse(experiment, curve=curve))
    experiment = config.build([*_without_wire(layers), {"method": {"name": "local"}}, fixed])
    return SettingCosts(
        dataset=Path(experiment.data.dataset).name,
        group=experiment.model.group,
        num_clients=experiment.run.clients,
        num_rounds=num_rounds,
        letters=letters_of(_setting(experiment)),
        methods=tuple(measured),
        refused=refused,
        curve=curve,
    )


def title_of(name: str) -> str:
    module = methods.load(name)
    return module.ABOUT.title if hasattr(module, "ABOUT") else name


def rehearse(experiment: Experiment, *, curve: bool = False) -> MethodCost:
    """One method in one setting, from the first fork to the audit."""
    setting = _setting(experiment)
    rehearsal.sizes_of(setting)  # here, so that the processes forked from this one find them ready
    contract, letters = assembly.contract_of(experiment), letters_of(setting)
    found = formulae(contract)
    with tempfile.TemporaryDirectory(prefix="fedsim-") as parent:
        folder = RunFolder.create(Path(parent) / "run", experiment)
        if reason := run_cluster(folder, Quiet(Console(stderr=True)), curve=curve):
            raise UserError(f"the rehearsal of {experiment.method_name} stopped early: {reason}")
        flows = flows_of(load(folder.path), found, letters)
        audit = (folder.summary() or {})["audit"]
    flows = _with_encodings(flows, setting, contract)
    return MethodCost(
        name=experiment.method_name,
        title=title_of(experiment.method["name"]),
        formulae=found,
        letters={letter: letters[letter] for formula in found.values() for letter in formula.letters},
        note=contract.note,
        flows=flows,
        audit=audit,
    )


def flows_of(run: LoadedRun, found: Mapping[str, Formula], letters: Mapping[str, int]) -> tuple[Flow, ...]:
    """From the books of a finished rehearsal: up, down and both of the whole rounds, then the method's part of
    joining."""
    num_rounds = run.experiment.run.rounds - 1
    printed = printed_costs(run.experiment) if num_rounds == 1 else {}
    ledger = run.ledger
    is_whole = ledger["round"].between(1, num_rounds)
    is_setup = (ledger["purpose"] == "setup") & (ledger["round"] == BEFORE_FIRST_ROUND)
    flows, setups = [], []
    for way in WAYS:
        is_way = ledger["direction"] == way
        kernel_bytes = _kernel_bytes(run.rounds[0], run.rounds[num_rounds], f"kernel_bytes_{way}")
        known = {"kernel_bytes": kernel_bytes, "printed": printed.get(way)}
        flows.append(_flow(way, found[way], letters, ledger[is_way & is_whole], num_rounds, **known))
        setups.append(_flow(f"set-up {way}", found[f"setup_{way}"], letters, ledger[is_way & is_setup]))
    up, down = flows
    once = (flow for flow in setups if flow.formula_elements or flow.elements)
    return up, down, both_ways(up, down, printed.get("both")), *once


def _flow(
    way: str, formula: Formula, letters: Mapping[str, int], rows: DataFrame, num_rounds: int = 1, **known: Any
) -> Flow:
    return Flow(
        way=way,
        formula=str(formula),
        formula_elements=formula.evaluate(letters) * num_rounds,
        largest_client_bytes=max(rows.groupby("client")["wire_bytes"].sum().tolist(), default=0),
        **rows[[*LEVELS]].sum().to_dict(),
        decoded_bytes=int(rows.get("decoded_bytes", rows["payload_bytes"]).sum()),
        **known,
    )


def _with_encodings(flows: Sequence[Flow], setting: Setting, contract: Contract) -> tuple[Flow, ...]:
    """What the encodings of the experiment make of each way, beside what was measured."""
    chosen, rounds = assembly.encodings_of(setting.experiment), setting.experiment.run.rounds - 1
    sizes = payload_bytes(setting, contract, chosen)
    ways = {"up": "up", "down": "down", "set-up up": "setup_up", "set-up down": "setup_down"}
    found = {}
    for flow in flows:
        if flow.way == "both":
            continue
        way, size = ways[flow.way], sizes[ways[flow.way]]
        kinds = {getattr(contract, way)[name].payload: encoding.name for name, encoding in chosen[way].items()}
        found[flow.way] = replace(
            flow,
            encoding=", ".join(f"{kind} {name}" for kind, name in kinds.items()),
            formula_bytes=None if size is None else size * (rounds if way in WAYS else 1),
        )
    both = [both_ways(found["up"], found["down"], flow.printed) for flow in flows if flow.way == "both"]
    up, down, *once = found.values()
    return up, down, *both, *once


def _refuse_unsent(wire: Layer, names: Sequence[str]) -> None:
    """Every kind that is to be encoded must exist, and be sent by one of the methods at least."""
    config.wire_of(wire)
    sent = {kind for name in names for kind in _contract(name).payloads()}
    for kind in set(Payload) & wire.keys():
        if kind not in sent:
            raise UserError(f"wire.{kind} has no effect: none of {', '.join(names)} sends {kind}.")


def _contract(name: str) -> Contract:
    module = methods.load(name)
    contract: Contract = module.contract(module.Config())
    return contract


def _wire_for(experiment: Experiment, wire: Layer) -> dict[str, Any]:
    """Of the encodings those of what the method sends; the other options only with one of them."""
    sent = assembly.contract_of(experiment).payloads()
    kinds = {kind: text for kind, text in wire.items() if kind in sent}
    return {**{key: value for key, value in wire.items() if key not in set(Payload)}, **kinds} if kinds else {}


def _without_wire(layers: Sequence[Layer]) -> list[Layer]:
    return [{section: options for section, options in layer.items() if section != "wire"} for layer in layers]


def _kernel_bytes(first: Mapping[str, Any], last: Mapping[str, Any], name: str) -> int | None:
    """What the kernel counted from the end of round 0 to the end of the last whole round."""
    return int(last[name]) - int(first[name]) if name in first and name in last else None


def _setting(experiment: Experiment) -> Setting:
    return assembly.setting_of(experiment, rehearsal.federation_of(experiment))


def _options_by_method(names: Sequence[str], options: Layer, defaults: Layer) -> dict[str, dict[str, Any]]:
    known = {name: {field.name for field in msgspec.structs.fields(methods.load(name).Config)} for name in names}
    for option in options:
        if not any(option in fields for fields in known.values()):
            raise UnknownName("option", f"method.{option}", {f"method.{f}" for own in known.values() for f in own})
    given = {**defaults, **options}
    return {name: {o: value for o, value in given.items() if o in known[name]} for name in names}
