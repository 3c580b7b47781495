"""The public samples as both sides have them, and the server's own model, which learns from nothing else.

Public samples are unlabelled training images that no client holds (`data.public_samples`), the same for everyone
and always in the same order. A client that owns the data set knows them by their numbers, so nothing travels;
otherwise they are sent once, at set-up. Either way both sides compute with the same bits. They come from the data
set that clients hold the rest of, so their classes cannot be others.

Dimensions: B batch, C classes, K features, P public samples.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from typing import Literal

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from fedsim import models
from fedsim.config import Experiment, Train
from fedsim.contract import Arrays, Field, Fields, Payload
from fedsim.data import Dataset, Subset
from fedsim.errors import UserError
from fedsim.learning.evaluation import outputs, server_accuracy
from fedsim.learning.training import Batch, run_epochs
from fedsim.method import ClientContext, Metrics, ServerContext, Setting, Task, Upload, filled
from fedsim.models import SplitModel, groups

DEFAULTS = {"data": {"public_samples": 2500, "global_test": True}}
"""What methods with public samples ask of the data unless the user says otherwise."""

Source = Literal["known", "sent"]
Optimizer = Literal["sgd", "adam"]


# ------------------------------------------------------------------------------------------- at set-up


def setup_fields(source: Source, dtype: str) -> Fields:
    """What goes down once: all public samples, a row each."""
    return {"public": Field(Payload.IMAGES, "Np inputs", dtype)} if source == "sent" else {}


def setup_arrays(source: Source, dtype: str, public: Subset) -> Arrays:
    if source == "known":
        return {}
    if dtype == "uint8":
        rows = np.take(public.dataset.inputs, public.indices, axis=0)
    else:
        rows = torch.cat([inputs for inputs, _ in public.batches(len(public))]).numpy()
    return {"public": rows.reshape(len(public), -1)}


def received(public_rows: np.ndarray, task: Task) -> Subset:
    """The samples that came with the set-up. Bytes are pixels, floats are what models read."""
    shape = task.input_shape
    if public_rows.dtype == np.uint8:
        channels, height, width = shape
        shape = (height, width, channels)
    num = len(public_rows)
    labels = np.full(num, -1, np.int64)
    dataset = Dataset("public", public_rows.reshape(num, *shape), labels, task.num_classes, num)
    return Subset(dataset, np.arange(num), labelled=False)


def known(context: ClientContext) -> Subset:
    """The samples that a client finds in its own copy of the data set."""
    assert context.public is not None, "the method's check lets no experiment without public samples through"
    return context.public


def sizes(setting: Setting) -> dict[str, int]:
    """Letters for contracts: Np public samples of so many inputs."""
    return {"Np": setting.experiment.data.public_samples, "inputs": prod(setting.task.input_shape)}


def check(setting: Setting, *, source: Source = "known", dtype: str = "float32", server_model: str = "") -> None:
    """Raises UserError where a method with public samples cannot work."""
    name = setting.experiment.method_name
    if not setting.experiment.data.public_samples:
        raise UserError(f"{name} needs public samples, and data.public_samples = 0; set it, to 2500 as published.")
    used = setting.dimensions.get("kept", setting.dimensions["Np"])
    if used < 2:  # batch normalisation cannot train on one
        raise UserError(f"{name} would learn from {used} public sample; raise data.public_samples to 2 or more.")
    if source == "sent" and dtype == "uint8" and setting.federation.dataset.inputs.dtype != np.uint8:
        raise UserError(
            f"method.public_dtype = uint8 needs images, and samples of {setting.federation.dataset.name} are "
            "other numbers; use float32."
        )
    for client in range(setting.task.num_clients):
        _require_comparable(setting.model(client), name)
    if server_model:
        num_models = len(groups.entries(server_model))
        if num_models != 1:
            raise UserError(
                f"method.server_model = {server_model} is {num_models} models; give one, as in ResNet34."
            )
        with torch.device("meta"):
            _require_comparable(build_server_model(server_model, setting.experiment, setting.task), name)


def _require_comparable(model: SplitModel, method: str) -> None:
    """Features that were made equally long by pooling have nothing to do with each other."""
    if isinstance(model.extractor[1], nn.AdaptiveAvgPool1d):
        raise UserError(
            f"{model.name} has {model.backbone_dim} features and {method} compares {model.feature_dim}; set "
            "model.feature_mapping = project, or model.feature_dim to the size that all models have."
        )


# ------------------------------------------------------------------------------------------ what models say


def public_logits(model: nn.Module, public: Subset, device: torch.device) -> Tensor:
    """(P, C), in evaluation mode."""
    return torch.cat([logits_BC for logits_BC, _ in outputs(model, public, device)])


def public_features(model: SplitModel, public: Subset, device: torch.device) -> Tensor:
    """(P, K), in evaluation mode."""
    return torch.cat([features_BK for features_BK, _ in outputs(model, public, device, forward=model.features)])


def features_and_logits(model: SplitModel, public: Subset, device: torch.device) -> tuple[Tensor, Tensor]:
    """(P, K) and (P, C) in one pass, in evaluation mode."""

    def both(inputs: Tensor) -> Tensor:
        features_BK = model.features(inputs)
        return torch.cat([features_BK, model.head(features_BK)], dim=1)

    both_P = torch.cat([both_B for both_B, _ in outputs(model, public, device, forward=both)])
    return both_P[:, : model.feature_dim], both_P[:, model.feature_dim :]


def stacked(uploads: list[Upload], name: str, device: torch.device) -> Tensor:
    """(M, …): the arrays of this name of all clients that sent something."""
    return torch.from_numpy(np.stack([upload.arrays[name] for upload in filled(uploads)])).to(device)


def make_optimizer(kind: Optimizer, module: nn.Module, lr: float) -> torch.optim.Optimizer | None:
    """Made anew every round. None: plain SGD, as the training loop makes it."""
    return torch.optim.Adam(module.parameters(), lr=lr) if kind == "adam" else None


def rows_of(batch: Batch, device: torch.device) -> Tensor:
    """Which samples of the subset a batch holds, to look up what is known of them."""
    return torch.from_numpy(batch.rows_B).to(device)


# ------------------------------------------------------------------------------------- the server's model


def build_server_model(name: str, experiment: Experiment, task: Task) -> SplitModel:
    """With a learnable projection to K, as published, unless the experiment asks for another mapping."""
    clients = experiment.model
    mapping = "project" if clients.feature_mapping == "published" else clients.feature_mapping
    config = msgspec.structs.replace(clients, group=name, feature_mapping=mapping)
    return models.build(config, 0, task.input_shape, task.num_classes)


@dataclass(frozen=True)
class ServerTraining:
    """How the server's model is trained in each round."""

    epochs: int
    batch_size: int
    lr: float
    optimizer: Optimizer = "sgd"


class ServerModel:
    """The server's model with the samples it learns from and those that test it. Uses all of its threads."""

    def __init__(self, context: ServerContext, name: str, training: ServerTraining):
        self.context = context
        self.training = training
        self.public = context.federation.public
        with context.streams.seeded("server-model-init"):
            model = build_server_model(name, context.experiment, context.task)
        self.model = model.to(context.device)

    def features(self) -> Tensor:
        with self._timed():
            return public_features(self.model, self.public, self.context.device)

    def features_and_logits(self) -> tuple[Tensor, Tensor]:
        with self._timed():
            return features_and_logits(self.model, self.public, self.context.device)

    def learn(self, round: int, loss: Callable[[Tensor, Tensor, Tensor], Tensor], rows_k: Tensor) -> float:
        """`loss(logits, features, rows)` of public samples, trained on the rows given; returns its mean."""
        model, context, training = self.model, self.context, self.training
        chosen = Subset(self.public.dataset, self.public.indices[rows_k.cpu().numpy()], labelled=False)

        def loss_of_batch(batch: Batch) -> Tensor:
            features_BK = model.features(batch.inputs)
            return loss(model.head(features_BK), features_BK, rows_k[rows_of(batch, context.device)])

        with self._timed():
            return run_epochs(
                loss_of_batch,
                [model],
                chosen,
                public_training(context.experiment.train, training.epochs, training.batch_size, training.lr),
                streams=context.streams,
                round=round,
                device=context.device,
                purpose="server-model",
                optimizer=make_optimizer(training.optimizer, model, training.lr),
            )

    def accuracy(self, round: int) -> Metrics:
        return server_accuracy(self.context, self.model, round)

    def _timed(self) -> AbstractContextManager[None]:
        return self.context.stopwatch.part("server model")


def public_training(train: Train, epochs: int, batch_size: int, lr: float) -> Train:
    """Public samples are few and nobody's: they are shuffled, and all are used but one that is left over alone."""
    return msgspec.structs.replace(
        train, local_epochs=epochs, batch_size=batch_size, lr=lr, shuffle=True, drop_last=False
    )
