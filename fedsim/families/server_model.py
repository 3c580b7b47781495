"""The server's own model, which learns from public samples alone: of FedProtoKD, FedPKD and, on request, Fed2PKD.

Dimensions: B batch, C classes, K features, P public samples, k those that it learns from.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import msgspec
import torch
from torch import Tensor, nn

from fedsim import models
from fedsim.config import Experiment
from fedsim.data.inputs import described
from fedsim.errors import UserError
from fedsim.families import public_samples
from fedsim.learning.training import run_epochs
from fedsim.method import Batch, Instead, ServerContext, Setting, Task
from fedsim.models import SplitModel, groups
from fedsim.models.base import FITTING_GROUPS

SMALL_MODEL = "CNN2"
"""Of the server, where there is little to learn from."""
SMALL_EPOCHS = 5
"""Of clients, in the same place; as FedProtoKD's paper has it everywhere."""


def build_server_model(name: str, experiment: Experiment, task: Task) -> SplitModel:
    """With a learnable projection to K, as published, unless the experiment asks for another mapping."""
    clients = experiment.model
    mapping = "project" if clients.feature_mapping == "published" else clients.feature_mapping
    config = msgspec.structs.replace(clients, group=name, feature_mapping=mapping)
    return models.build(config, 0, task.input_shape, task.num_classes)


def check(setting: Setting) -> None:
    """Raises UserError where public samples are missing or of no use, or the server's model is of another kind."""
    public_samples.check(setting)
    name = setting.config.server_model
    if not name:
        return
    num_models = len(groups.entries(name))
    if num_models != 1:
        raise UserError(f"method.server_model = {name} is {num_models} models; give one, as in ResNet34.")
    with torch.device("meta"):
        model = build_server_model(name, setting.experiment, setting.task)
    public_samples.require_comparable(model, setting.experiment.method_name)


def adapt(setting: Setting) -> Iterator[Instead]:
    """A small data set needs no large model, and one that is made for images takes nothing else. What the server's
    model learns is what clients agree on: after one pass over few samples that is one class for everything."""
    yield from public_samples.adapt(setting)
    if public_samples.is_small(setting):
        yield Instead("train", "local_epochs", SMALL_EPOCHS, "clients must know something to agree on it")
    name, kind = setting.federation.dataset.name, described(setting.task.input_shape).kind
    if kind != "image":
        first = groups.entries(FITTING_GROUPS[kind])[0].group
        yield Instead("method", "server_model", first, f"samples of {name} are no images")
    elif public_samples.is_small(setting):
        yield Instead("method", "server_model", SMALL_MODEL, f"{name} is small")


def adam(module: nn.Module, lr: float | None) -> torch.optim.Optimizer | None:
    """Made anew every round. Without a learning rate None: plain SGD, as the training loop makes it."""
    return None if lr is None else torch.optim.Adam(module.parameters(), lr=lr)


class ServerModel:
    """The server's model with the samples it learns from. Uses all of its threads.

    Name, epochs, batch size and learning rate are the method's options; `adam_lr` asks for Adam.
    """

    def __init__(self, context: ServerContext, adam_lr: float | None = None):
        self.context, self.config = context, context.config
        self.public = context.federation.public
        self.lr: float = self.config.server_lr or adam_lr or context.experiment.train.lr
        self.is_adam = adam_lr is not None
        with context.streams.seeded("server-model-init"):
            model = build_server_model(self.config.server_model, context.experiment, context.task)
        self.model = model.to(context.device)

    def features(self) -> Tensor:
        with self._timed():
            return public_samples.public_features(self.model, self.public, self.context.device)

    def features_and_logits(self) -> tuple[Tensor, Tensor]:
        with self._timed():
            return public_samples.features_and_logits(self.model, self.public, self.context.device)

    def learn(
        self, round: int, loss: Callable[[Tensor, Tensor, Tensor], Tensor], rows_k: Tensor | None = None
    ) -> float:
        """`loss(logits, features, rows)` of public samples, trained on all or the rows given; returns its mean."""
        model, context, config = self.model, self.context, self.config
        if rows_k is None:
            rows_k = torch.arange(len(self.public), device=context.device)

        def loss_of_batch(batch: Batch) -> Tensor:
            features_BK = model.features(batch.inputs)
            rows_B = rows_k[public_samples.rows_of(batch, context.device)]
            return loss(model.head(features_BK), features_BK, rows_B)

        with self._timed():
            mean_loss = run_epochs(
                loss_of_batch,
                [model],
                public_samples.some(self.public, rows_k.cpu().numpy()),
                public_samples.training(
                    context.experiment.train, config.server_epochs, config.server_batch_size, self.lr
                ),
                streams=context.streams,
                round=round,
                device=context.device,
                purpose="server-model",
                optimizer=adam(model, self.lr if self.is_adam else None),
            )
        assert mean_loss is not None, "the check lets no fewer than two public samples through"
        return mean_loss

    def _timed(self) -> AbstractContextManager[None]:
        return self.context.stopwatch.part("server model")
