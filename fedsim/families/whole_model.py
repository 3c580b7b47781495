"""What all methods share that send whole models: options, contract, the client half and the server half.

Every client trains a copy of one model and uploads it; the server sends the mean of the copies back. FedAvg is
just this; FedProx, FedNH and FedUV add to the clients' loss, and FedNH has a head of its own.

A model can be judged in two ways. `global`: the mean that came down, on every client's own test set. This is what
published runs of FedAvg do. `personalised`: the copy that a client trained last, which it keeps until it trains
again. With heterogeneous data the second number is far higher, and papers do not always say which one they print.

Dimensions: B batch, C classes, K features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from fedsim import models
from fedsim.config import Fraction, NonNegative, Section
from fedsim.contract import Arrays, Contract, Field, Payload
from fedsim.errors import UserError
from fedsim.families.uploads import Aggregation, mean_of
from fedsim.learning.parameters import flatten, load_flat
from fedsim.method import (
    Client,
    ClientContext,
    Instead,
    Metrics,
    Reported,
    Server,
    Setting,
    State,
    Step,
    Upload,
    filled,
)
from fedsim.models import SplitModel


class SharingConfig(Section, frozen=True, kw_only=True):
    """Options of every method that shares models. Momentum and all else of a client's SGD is in `train`."""

    evaluation: Literal["global", "personalised"] = "global"
    """global: clients test the mean that came down. personalised: the copy that they trained last themselves."""
    aggregation: Aggregation = "weighted"
    """weighted: by each client's number of training samples. mean: every client counts alike."""
    buffers: Literal["local", "averaged"] = "local"
    """Running statistics of batch normalisation. local: stay with the client. averaged: travel as weights do."""
    lr_schedule: Literal["constant", "cosine", "diminishing"] = "constant"
    """What becomes of train.lr from round to round. cosine: half a cosine, towards 0 at the end of the run.
    diminishing: times lr_decay every round."""
    lr_decay: Fraction = 0.99
    """Factor of lr_schedule = diminishing."""
    clip_norm: NonNegative = 0.0
    """Largest norm of a batch's gradient; 0: not clipped."""


def contract(config: SharingConfig) -> Contract:
    """Up and down all weights in one vector, as long as `sizes` says."""
    model = {"model": Field(Payload.PARAMETERS, "model")}
    return Contract(up=model, down=model)


def sizes(setting: Setting) -> dict[str, int]:
    return {"model": sum(tensor.numel() for tensor in shared_tensors(setting.model(0), setting.config))}


def check(setting: Setting) -> None:
    """Models can be averaged only if all are the same, and tested only where all of their parts are."""
    title = setting.about.title
    different = sorted(set(setting.architectures))
    if len(different) > 1:
        raise UserError(
            f"{title} averages whole models, so all clients need the same one, but model.group = "
            f"{setting.experiment.model.group} gives them {len(different)}; choose one, as in "
            f"--model-group {setting.architectures[0]}."
        )
    has_statistics = bool(statistics(setting.model(0)))
    if setting.experiment.data.global_test and setting.config.buffers == "local" and has_statistics:
        raise UserError(
            f"the server cannot test {different[0]} on data.global_test while the statistics of its batch "
            "normalisation stay with the clients; set method.buffers = averaged."
        )


def adapt(setting: Setting) -> Iterator[Instead]:
    first = setting.architectures[0]
    if len(set(setting.architectures)) > 1:
        yield Instead(
            "model", "group", first, f"{setting.about.title} averages models, so all clients have the same"
        )


def statistics(module: nn.Module) -> list[Tensor]:
    """Buffers that training changes. What is not saved with a module is a constant, such as a table of positions;
    the counter of batches seen, which only a cumulative average would need, is not a float and stays."""
    saved = {id(tensor) for tensor in module.state_dict(keep_vars=True).values()}
    return [buffer for buffer in module.buffers() if buffer.is_floating_point() and id(buffer) in saved]


def shared_tensors(model: SplitModel, config: SharingConfig) -> list[Tensor]:
    """What travels of a model, in the order in which it does."""
    tensors: list[Tensor] = list(model.parameters())
    return tensors + (statistics(model.extractor) if config.buffers == "averaged" else [])


def load_shared(model: SplitModel, config: SharingConfig, down: Arrays) -> None:
    """Make a model the one that goes down."""
    load_flat(shared_tensors(model, config), down["model"])


def learning_rate(lr: float, config: SharingConfig, round: int, num_rounds: int) -> float:
    """The learning rate of a round. Rounds count from 0, and the first has `lr` whatever the schedule."""
    match config.lr_schedule:
        case "constant":
            return lr
        case "cosine":
            return lr * (1 + math.cos(math.pi * round / num_rounds)) / 2
        case "diminishing":
            return lr * config.lr_decay**round


class SharingClient(Client):
    """Trains the mean of all clients' models on its own data, with cross-entropy unless a method adds to it."""

    load = staticmethod(load_shared)

    def __init__(self, context: ClientContext):
        super().__init__(context)
        self.config: Any = context.config  # a SharingConfig with the method's own options
        self.waiting: Arrays = {}
        """What came down and is not in the model yet, because the client's own copy is still to be tested."""
        self.has_trained = False

    def receive(self, round: int, down: Arrays) -> None:
        # Clients of one architecture start from the same weights, so the first round needs nothing from above.
        if not down:
            return
        self.waiting = down
        # A client that has never trained has nothing of its own to keep.
        if self.config.evaluation == "global" or not self.has_trained:
            self.adopt()

    def adopt(self) -> None:
        """Make the own model the one that came down, if that has not been done yet."""
        if self.waiting:
            self.load(self.model, self.config, self.waiting)
            self.waiting = {}

    def train(self, round: int) -> Reported:
        self.adopt()
        experiment = self.context.experiment
        rate = learning_rate(experiment.train.lr, self.config, round, experiment.run.rounds)
        mean_loss = self.train_locally(round, learning_rates=[rate], clip_norm=self.config.clip_norm)
        self.has_trained = True
        return {"loss": mean_loss}

    def upload(self) -> Arrays:
        return {"model": flatten(shared_tensors(self.model, self.config))}

    def state(self) -> State:
        waiting = {f"waiting.{name}": array for name, array in self.waiting.items()}
        return super().state() | waiting | {"has_trained": np.array(self.has_trained)}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        start = "waiting."
        self.waiting = {
            name.removeprefix(start): array.copy() for name, array in state.items() if name.startswith(start)
        }
        self.has_trained = bool(state["has_trained"])


class SharingServer(Server):
    """Averages models. With `data.global_test` it also tests the mean, on samples that no client holds."""

    load = staticmethod(load_shared)

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        uploads = filled(uploads)
        if not uploads:
            return Step(down={})
        down = self.combine(uploads)
        return Step(down, self._test(round, down))

    def combine(self, uploads: Sequence[Upload]) -> Arrays:
        """One round's models in, what goes down out."""
        return {"model": mean_of(uploads, "model", self.context.config.aggregation)}

    def build_model(self) -> SplitModel:
        """A model to test. Everything in it that matters is overwritten before it is used."""
        experiment, task = self.context.experiment, self.context.task
        with self.context.streams.seeded("server-model"):
            model = models.build(experiment.model, 0, task.input_shape, task.num_classes)
        return model.to(self.context.device)

    @cached_property
    def _model(self) -> SplitModel:
        return self.build_model()

    def _test(self, round: int, down: Arrays) -> Metrics:
        if not self.context.experiment.data.global_test:
            return {}  # and no model is built
        self.load(self._model, self.context.config, down)
        return self.test(round, self._model)
