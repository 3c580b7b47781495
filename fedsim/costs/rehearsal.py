"""A rehearsal: real processes exchange messages of the real shapes, and nobody learns anything.

Set `run.rehearsal` and both halves of the method are replaced by the two below, which are made from the
method's contract alone. What a round costs in elements and in bytes is then measured in milliseconds, also for
models that would take minutes to train: no model is built, and all arrays hold zeros.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from torch import nn

from fedsim import method
from fedsim.config import Data, Experiment, Run, Train, to_json
from fedsim.contract import CLASSES_HELD, Arrays, Contract, Field, Fields
from fedsim.costs.formula import classes_covered
from fedsim.data import Federation
from fedsim.errors import UserError
from fedsim.learning.evaluation import NOTHING_TESTED
from fedsim.method import Metrics, Reported, Setting, Step, Upload


def federation_of(experiment: Experiment) -> Federation:
    """The federation of a rehearsal, drawn once for all methods that are rehearsed on the same data: processes
    that are forked afterwards find it ready."""
    return _federation(experiment.run, experiment.data, experiment.train)


@lru_cache(maxsize=8)
def _federation(run: Run, data: Data, train: Train) -> Federation:
    return Federation(Experiment(run=run, data=data, train=train))


def sizes_of(setting: Setting) -> dict[str, int]:
    """Found once for each experiment: a method's own sizes may take a matrix decomposition to find out."""
    experiment = to_json(setting.experiment)
    if experiment not in _SIZES:
        _SIZES[experiment] = setting.rehearsed_dimensions
    return _SIZES[experiment]


_SIZES: dict[bytes, dict[str, int]] = {}


class Messages:
    """What a half of the method would send, filled with zeros, and with a row for each of `classes`."""

    def __init__(self, setting: Setting, classes: set[int]):
        self._method = setting.experiment.method_name
        self._contract: Contract = setting.experiment.method_module.contract(setting.config)
        self._letters = sizes_of(setting) | {CLASSES_HELD: len(classes)}
        self._classes = sorted(classes)

    def of(self, direction: str) -> Arrays:
        fields: Fields = getattr(self._contract, direction)
        return {name: self._array(name, field) for name, field in fields.items()}

    def _array(self, name: str, field: Field) -> np.ndarray:
        for word in field.words:
            if not word.isdigit() and word not in self._letters:
                raise UserError(
                    f"{self._method} cannot be rehearsed: the size {word!r} of its field {name!r} is not known; "
                    "give it in `rehearsal_sizes` of the method."
                )
        shape = tuple(int(word) if word.isdigit() else self._letters[word] for word in field.words)
        if field.payload.is_knowledge:
            return np.zeros(shape, field.numpy_dtype)
        numbers = self._classes if field.words == [CLASSES_HELD] else range(int(np.prod(shape)))
        return np.array(numbers, field.numpy_dtype).reshape(shape)


class Client(method.Client):
    """Sends what a client of the method would send after training."""

    def __init__(self, setting: Setting, client: int):
        self.model = nn.Identity()  # type: ignore[assignment]  # without weights
        self.data = setting.federation.client(client)
        self._messages = Messages(setting, classes_covered(setting, client))

    def setup(self) -> Arrays:
        return self._messages.of("setup_up")

    def evaluate(self) -> Metrics:
        return dict(NOTHING_TESTED)

    def train(self, round: int) -> Reported:
        return {"loss": 0.0}

    def drops(self, round: int) -> bool:
        return False  # what is measured is a round of all

    def upload(self) -> Arrays:
        return self._messages.of("up")


class Server(method.Server):
    """Sends what the server of the method would send after aggregation."""

    def __init__(self, setting: Setting):
        clients = range(setting.task.num_clients)
        self._messages = Messages(setting, set().union(*(classes_covered(setting, client) for client in clients)))

    def setup(self, uploads: list[Upload]) -> Arrays:
        return self._messages.of("setup_down")

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        return Step(self._messages.of("down"))
