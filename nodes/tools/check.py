"""What the methods that ship are held to, tried on any method, model or data: the checks of `fedsim check`.

One small experiment is run again and again, each time in processes of its own: with other global random seeds, as
a cluster, with all halves made anew from their state after each round. All must give the same bits. The ledger is
held against the contract, and other settings must work or be refused with a sentence.
"""

from __future__ import annotations

import csv
import inspect
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path

import msgspec
import numpy as np
import torch
from pandas import read_csv
from rich.console import Console

from fedsim import assembly, config, methods
from fedsim.config import Experiment
from fedsim.contract import Fields
from fedsim.costs.formula import ALL_HELD, ANY_HELD, formulae, letters_of, pretty
from fedsim.data import sources
from fedsim.errors import ContractError, UnknownName, UserError
from fedsim.models import groups, own
from fedsim.own import loading, spelling
from fedsim.own.files import Layer
from fedsim.results.folder import RunFolder
from nodes.display.run import Quiet
from nodes.inprocess import Oracle, run_in_process
from nodes.launchers import processes, zygote
from nodes.tools.scratch import run_cluster

SMALL: Layer = {
    "run": {"clients": 3, "rounds": 3},
    "data": {"dataset": "digits", "partition": "pathological", "classes_per_client": 4, "samples_per_class": 12},
    "model": {"group": "MLP", "feature_dim": 12, "feature_mapping": "project"},
    "train": {"batch_size": 5, "lr": 0.001},  # small, so that nothing diverges
    # One thread and no GPU, because both may change how sums are rounded.
    "cluster": {"server_threads": 1, "device": "cpu"},
}
PUBLIC: Layer = {"data": {"public_samples": 60, "global_test": True}}
"""For methods that want samples that nobody holds."""
LITTLE_WORK = {"server_epochs": 1, "server_model": "MLP"}
"""Options that keep a method's server from taking long, where the method has them."""

OTHER_SETTINGS: dict[str, Layer] = {
    "different models": {"model": {"group": "MLP,CNN2"}},
    "half of the clients in a round": {"run": {"clients": 4, "participation": 0.5}},
    "a client that drops after training": {"run": {"drop_rate": 0.4}},
    "samples that are no images": {"data": {"dataset": "spiral"}},
}

_DRAW_ONLY = (
    "methods draw only from self.context.streams, models only in their constructor and in training, data from a "
    "generator with a seed; nothing may depend on a clock or on the order of a set"
)


@dataclass(frozen=True)
class Finding:
    """One line: what was tried, and what is wrong, if anything is."""

    what: str
    problem: str = ""
    was_tried: bool = True


@dataclass(frozen=True)
class Failure:
    """Why a run did not get to its end."""

    kind: str
    """"contract", "refusal", or "error" for all else."""
    sentence: str


def layers_for(thing: str) -> list[Layer]:
    """What must be set to check this: a method, a model, or data."""
    other_method = {"method": {"name": "fedproto"}}
    match _kind(thing):
        case "method":
            return [{"method": {"name": thing}}]
        case "model":
            return [{"model": {"group": thing}}, other_method]
        case _:  # it may have fewer classes than a pathological partition wants
            return [{"data": {"dataset": thing, "partition": "iid"}}, other_method]


def _kind(thing: str) -> str:
    if methods.is_own(thing) or methods.plain(thing) in (*methods.names(), *methods.installed()):
        return "method"
    if thing.partition(":")[0] in (own.TIMM, own.TORCHVISION) or groups.is_known(thing):
        return "model"
    if spelling.names_code(thing) and not thing.startswith("hf:"):
        return "model" if _makes_model(loading.load(*spelling.split(thing))) else "data"
    if thing in sources.names() or not thing.isidentifier():
        return "data"
    known = [*methods.names(), *groups.group_names(), *sources.names()]
    raise UnknownName("method, model or data set", thing, known)


def _makes_model(value: object) -> bool:
    if isinstance(value, type | torch.nn.Module):
        return not isinstance(value, type) or issubclass(value, torch.nn.Module)
    if not callable(value):
        return False
    takes = set(inspect.signature(value).parameters)
    return bool(takes & set(own.OFFERED)) or (not takes and isinstance(value(), torch.nn.Module))


def small_experiment(layers: Sequence[Layer]) -> Experiment:
    """The experiment that all checks run; `layers` say what is checked, and lie on top."""
    name = config.build([SMALL, *layers]).method["name"]
    module = methods.load(name)
    options = {field.name for field in msgspec.structs.fields(module.Config)}
    little = {option: value for option, value in LITTLE_WORK.items() if option in options}
    public = PUBLIC if "public_samples" in getattr(module, "DEFAULTS", {}).get("data", {}) else {}
    return config.build([SMALL, public, {"method": {"name": name, **little}}, *layers])


class Examination:
    """All checks of one experiment, in the order in which their findings make sense."""

    def __init__(self, layers: Sequence[Layer], scratch: Path):
        self._layers = layers
        self._scratch = scratch
        self._num_runs = 0

    def findings(self) -> Iterator[Finding]:
        try:
            self._experiment = small_experiment(self._layers)
            federation = assembly.check(self._experiment)
        except UserError as error:
            yield Finding("it can be used", str(error))
            return
        self._setting = assembly.setting_of(self._experiment, federation)
        self._contract = assembly.contract_of(self._experiment)
        run = self._experiment.run
        made_of = f"{self._experiment.method_name}, {self._setting.architectures[0]}, {federation.dataset.name}"
        yield Finding(f"it can be used: {made_of}, {run.clients} clients, {run.rounds} rounds")

        first, failure = self._run(run_in_process)
        declared = f"it sends what it declares: {self._declared()}"
        if failure is not None:
            yield Finding(declared if failure.kind == "contract" else "it runs", failure.sentence)
            return
        yield Finding("it runs")
        yield Finding(declared)

        second, failure = self._run(run_in_process)
        differs = failure.sentence if failure else difference(first, second)
        yield Finding("two runs give the same bits", f"{differs}; {_DRAW_ONLY}" if differs else "")
        if differs:
            for what in ("a cluster gives the same bits", "its state survives a restart"):
                yield Finding(f"{what}: not tried, because two runs differ", was_tried=False)
        else:
            yield from self._cluster(first)
            yield self._restarts(first)
        yield from self._others()

    def _declared(self) -> str:
        def listed(fields: Fields) -> str:
            return ", ".join(f"{name} ({field.shape})" for name, field in fields.items()) or "nothing"

        return f"up {listed(self._contract.up)}; down {listed(self._contract.down)}"

    def _cluster(self, first: RunFolder) -> Iterator[Finding]:
        """The same in processes of its own, and then what they sent."""
        folder = self._new_folder(self._experiment)
        differs = run_cluster(folder, Quiet(Console(quiet=True)))
        if not differs and (differs := difference(first, folder)):
            differs += "; what a client does must not depend on other clients, but by what the server sends"
        yield Finding("a cluster gives the same bits", differs)
        if not differs:
            found = formulae(self._contract)
            costs = f"{pretty(str(found['up']))} up, {pretty(str(found['down']))} down"
            yield Finding(f"it costs what its contract says: {costs}", self._cost_difference(folder))

    def _cost_difference(self, folder: RunFolder) -> str:
        """Elements by the contract beside those of the ledger: of a whole round, and of the set-up."""
        letters, found = letters_of(self._setting), formulae(self._contract)
        known = {*self._setting.dimensions, ALL_HELD, ANY_HELD}  # the others only training shows
        sums = read_csv(folder.path / "ledger.csv").groupby(["direction", "purpose", "round"])["elements"].sum()
        for way in ("up", "down"):
            for purpose, round, formula in (("method", 1, found[way]), ("setup", -1, found[f"setup_{way}"])):
                sent, expected = int(sums.get((way, purpose, round), 0)), formula.evaluate(letters)
                if sent != expected and set(formula.letters) <= known:
                    return (
                        f"by its contract {pretty(str(formula))} = {expected:,} elements go {way}, but {sent:,} "
                        "did; all that is declared must be sent, and rows of classes for those that are held"
                    )
        return ""

    def _restarts(self, first: RunFolder) -> Finding:
        what = "its state survives a restart"
        for half in ("Client", "Server"):
            folder, failure = self._run(partial(_run_with_restarts, server=half == "Server"))
            if differs := failure.sentence if failure else difference(first, folder):
                return Finding(
                    what,
                    f"made anew from its state() after each round, its {half} goes on otherwise ({differs}); what "
                    "it keeps between rounds belongs into modules(), or into state() and load_state()",
                )
        return Finding(what)

    def _others(self) -> Iterator[Finding]:
        """Where it cannot work, it must be refused before the run, and not fail in the middle of it."""
        short = {"run": {"rounds": 2}}
        usual = small_experiment([*self._layers, short])
        for name, layer in OTHER_SETTINGS.items():
            try:
                experiment = small_experiment([layer, *self._layers, short])
                if experiment == usual:
                    continue  # what is checked decides this itself
                assembly.check(experiment)
                _, failure = self._run(run_in_process, experiment)
            except UserError as error:
                failure = Failure("refusal", str(error))
            if failure is None or failure.kind == "refusal":
                yield Finding(
                    f"{name}: {'it runs' if failure is None else f'refused, because {failure.sentence}'}"
                )
            else:
                yield Finding(name, f"{failure.sentence}; mend it, or refuse such a setting in check(setting)")

    def _run(
        self, main: Callable[[RunFolder], object], experiment: Experiment | None = None
    ) -> tuple[RunFolder, Failure | None]:
        """In a child process, so that nothing is left of it but what it wrote."""
        experiment = experiment or self._experiment
        folder = self._new_folder(experiment)
        number, outcome = self._num_runs, folder.path.with_suffix(".json")

        def child() -> int:
            zygote.redirect_output(folder.path.with_suffix(".log"))
            if spelling.names_code(experiment.data.dataset):  # own data are made anew
                os.environ["FEDSIM_CACHE"] = str(folder.path.with_suffix(".cache"))
            _disturb(number)
            outcome.write_bytes(msgspec.json.encode(_attempt(main, folder)))
            return 0

        process = zygote.fork(child)
        try:
            _, status = os.waitpid(process, 0)
        except KeyboardInterrupt:  # it must not go on writing while its folder is removed
            zygote.stop_process(process)
            raise
        if not outcome.exists():
            return folder, Failure("error", f"its process {processes.describe_exit(status)}")
        return folder, msgspec.json.decode(outcome.read_bytes(), type=Failure | None)

    def _new_folder(self, experiment: Experiment) -> RunFolder:
        self._num_runs += 1
        return RunFolder.create(self._scratch / f"run-{self._num_runs}", experiment)


def _disturb(number: int) -> None:
    """Whoever draws from a global generator, also while a file is imported, draws something else in each run."""
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)
    for name in [name for name in sys.modules if name.startswith(loading.MODULE_PREFIX)]:
        del sys.modules[name]


def _attempt(main: Callable[[RunFolder], object], folder: RunFolder) -> Failure | None:
    try:
        main(folder)
    except ContractError as error:
        return Failure("contract", str(error))
    except UserError as error:
        return Failure("refusal", str(error))
    except (Exception, SystemExit) as error:
        module = RunFolder.open(folder.path).experiment().method_module
        return Failure("error", f"it fails ({loading.described(error, Path(str(module.__file__)))})")
    return None


def _run_with_restarts(folder: RunFolder, *, server: bool) -> None:
    oracle = Oracle(folder)
    oracle.set_up()
    for round in range(oracle.learner.last_round + 1):
        oracle.play(round)
        oracle.restart(server=server)
    if oracle.learner.down:
        folder.write_final(oracle.learner.down)


def difference(first: RunFolder, second: RunFolder) -> str:
    """What differs between two runs that should be equal to the bit; nothing where they are."""
    for name in ("metrics.csv", "clients.csv"):
        lines = ((folder.path / name).read_text().splitlines() for folder in (first, second))
        for ours, theirs in zip_longest(*map(csv.DictReader, lines), fillvalue={}):
            for column in {**ours, **theirs}:
                if ours.get(column) != theirs.get(column):
                    who = f"client {ours['client']}, " if "client" in ours else ""
                    values = f"{ours.get(column) or 'nothing'}, then {theirs.get(column) or 'nothing'}"
                    return f"{who}round {ours.get('round')}: {column} is {values}"
    known, found = first.final(), second.final()
    for name in {**known, **found}:
        if name not in known or name not in found or known[name].tobytes() != found[name].tobytes():
            return f"{name}, as the server would send it next, is not the same"
    return ""
