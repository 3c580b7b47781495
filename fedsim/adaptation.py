"""Defaults that do not fit: what stands in for them, so that every method runs as it is on any data.

The defaults are those of the papers, and no data set and no method suits all of them: 2500 public samples are more
than a small data set has, eight different models are too many for a method that averages whole models. Such a
default is replaced, and the user is told so in a line. What anybody asked for, on the command line, in a file or
by a preset, is never touched: it fits, or it is refused.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fedsim import assembly, config
from fedsim.config import Experiment
from fedsim.data import Federation
from fedsim.data.inputs import described
from fedsim.errors import UserError
from fedsim.method import Instead, Setting
from fedsim.models.base import FITTING_GROUPS
from fedsim.own.files import Layer


def build(layers: Iterable[Layer]) -> tuple[Experiment, list[str]]:
    """The experiment of `config.build` with defaults that fit, and a line for each that was replaced."""
    given = config.merged(layers)
    experiment, notes = config.build([given]), []
    for rules in (_for_data, _for_method):
        try:
            wanted = list(rules(assembly.setting_of(experiment, Federation(experiment))))
        except UserError:
            break  # what is wrong, such as data that nobody finds, is said by whoever needs it
        for change in wanted:
            old = config.to_layer(experiment)[change.section][change.key]
            if change.key not in given.get(change.section, {}) and change.value != old:
                given = _with(given, change)
                notes.append(f"{change.section}.{change.key} = {change.value} instead of {old}: {change.why}.")
        experiment = config.build([given])
    return experiment, notes


def _for_data(setting: Setting) -> Iterator[Instead]:
    """What the data decide for all methods alike."""
    federation, sample = setting.federation, described(setting.federation.input_shape)
    if (clients := federation.ready_made_clients) is not None:
        yield Instead("run", "clients", clients, f"{federation.dataset.name} is shared out among so many")
    if setting.experiment.data.partition == "natural":
        why = f"{federation.dataset.name} has so many subjects or domains"
        yield Instead("run", "clients", federation.num_natural_clients, why)
    if sample.kind != "image":
        group = FITTING_GROUPS[sample.kind]
        yield Instead("model", "group", group, f"a sample of {federation.dataset.name} is {sample}")


def _for_method(setting: Setting) -> Iterable[Instead]:
    module = setting.experiment.method_module
    return module.adapt(setting) if hasattr(module, "adapt") else ()


def _with(given: Mapping[str, Any], change: Instead) -> dict[str, Any]:
    return {**given, change.section: {**given.get(change.section, {}), change.key: change.value}}
