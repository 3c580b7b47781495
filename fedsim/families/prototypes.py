"""What all prototype methods share: options, contract, the client half and most of the server half.

A prototype is the mean feature of one class (FedTGP Eq. 2, ProtoNorm Eq. 2). Clients send one row per class
that they hold, with the class numbers beside it. FedProto, FedTGP and ProtoNorm differ only in what their
server makes of these rows, so each of them is a `Config`, a `Server.combine` and little else. The tensor work
(losses, means, margins, the nearest prototype) is in fedsim/equations/class_vectors.py.

Dimensions: B batch, C classes, K features, n classes held, N prototypes uploaded by all clients together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsim.config import AboveZero, NonNegative, Section
from fedsim.contract import Arrays, Contract, Field, Payload, class_ids
from fedsim.equations.class_vectors import (
    ClassMeans,
    ClassVectors,
    class_margins,
    margins,
    nearest_prototype,
    prototype_loss,
)
from fedsim.errors import ContractError, UserError
from fedsim.learning.evaluation import NOTHING_TESTED, count_correct, outputs
from fedsim.learning.training import Batch, samples_per_epoch, train_locally
from fedsim.method import Client, ClientContext, Metrics, Server, State, Step, Upload, filled

PUBLISHED_WEIGHTS = {"mse": 10.0, "l2": 0.1}
"""λ that belongs to each distance: the papers print 0.1 for the Euclidean, their runs use 10 with MSE."""


MAX_RECORDED_BYTES = 4 << 20
"""Of uploaded prototypes over a whole run, beside those of the last round."""


class PrototypeConfig(Section, frozen=True, kw_only=True):
    """Options of every prototype method."""

    distance: Literal["mse", "l2"] = "mse"
    """φ in the client's loss. mse: mean over K elements, as in the runs. l2: Euclidean, as printed."""
    prototype_weight: NonNegative | Literal["auto"] = "auto"
    """λ, the weight of the prototype loss; auto: 10 with mse, 0.1 with l2."""
    prototype_scale: AboveZero = 1.0
    """γ: clients multiply the global prototypes by this before they use them (ProtoNorm Eq. 15)."""
    prototypes_from: Literal["train_pass", "eval_pass"] = "eval_pass"
    """train_pass: mean of the features seen in training. eval_pass: of a pass in evaluation mode after it."""
    stale_prototypes: bool = False
    """Take the eval pass before training and not after it, as the published FedTGP and ProtoNorm runs do."""
    evaluate_by: Literal["global_prototype", "local_prototype", "logits"] = "global_prototype"
    """How a client predicts: the nearest global or own prototype, or the largest logit."""
    restrict_to_local_classes: bool = False
    """Let a client predict only the classes of its own training data (prototype evaluation only)."""
    report_margins: bool = False
    """Clients also upload the distance of each of their prototypes to the nearest other one of theirs."""

    def __post_init__(self) -> None:
        if self.stale_prototypes and self.prototypes_from == "train_pass":
            raise UserError("method.stale_prototypes = true needs method.prototypes_from = eval_pass; set both.")

    @property
    def weight(self) -> float:
        """λ as a number."""
        return PUBLISHED_WEIGHTS[self.distance] if self.prototype_weight == "auto" else self.prototype_weight

    @property
    def scale(self) -> float:
        """γ in force."""
        return self.prototype_scale


def prototype_contract(
    config: PrototypeConfig, *, all_classes_down: bool = False, with_counts: bool = False
) -> Contract:
    """Up: a row for each class held. Down: one for each class that exists, or all C without class numbers."""
    up = {"prototypes": Field(Payload.PROTOTYPES, "n K"), "class_ids": class_ids("n")}
    if with_counts:
        up["counts"] = Field(Payload.COUNTS, "n", "int32")
    if config.report_margins:
        up["margins"] = Field(Payload.MARGINS, "n")
    if all_classes_down:
        return Contract(up=up, down={"prototypes": Field(Payload.PROTOTYPES, "C K")})
    return Contract(up=up, down={"prototypes": Field(Payload.PROTOTYPES, "n K"), "class_ids": class_ids("n")})


class PrototypeClient(Client):
    """Trains with cross-entropy + λ · φ(features, γ · global prototypes), and uploads its class means."""

    sends_counts = False

    def __init__(self, context: ClientContext):
        super().__init__(context)
        self.config: PrototypeConfig = context.config
        task = context.task
        self.global_prototypes = ClassVectors.empty(task.num_classes, task.feature_dim, context.device)
        self.local_prototypes = ClassVectors.empty(task.num_classes, task.feature_dim, context.device)
        self.local_counts_C = torch.zeros(task.num_classes, device=context.device)

    def receive(self, round: int, down: Arrays) -> None:
        if not down:
            return
        num_classes = self.context.task.num_classes
        received = ClassVectors.from_rows(
            down["prototypes"],
            down.get("class_ids", np.arange(num_classes)),
            num_classes,
            self.context.device,
        )
        self.global_prototypes = ClassVectors(received.vectors_CK * self.config.scale, received.present_C)

    def evaluate(self) -> Metrics:
        device = self.context.device
        if self.config.evaluate_by == "logits":
            return count_correct(self.model, self.data.test, device)
        local = self.config.evaluate_by == "local_prototype"
        allowed_C = None
        if self.config.restrict_to_local_classes:
            allowed_C = torch.zeros(self.context.task.num_classes, dtype=torch.bool, device=device)
            allowed_C[torch.as_tensor(self.data.classes, dtype=torch.int64)] = True
        predict = nearest_prototype(self.local_prototypes if local else self.global_prototypes, allowed_C)
        if predict is None:
            return dict(NOTHING_TESTED)
        return count_correct(self.model, self.data.test, device, forward=self.model.features, predict=predict)

    def train(self, round: int) -> Metrics:
        config, targets = self.config, self.global_prototypes
        guided = targets.any and config.weight > 0
        seen = self._class_means() if config.prototypes_from == "train_pass" else None
        if config.stale_prototypes:
            # The model has not changed since the client last took part, so these are that model's prototypes.
            self._keep(eval_pass(self.context))

        def loss(batch: Batch) -> Tensor:
            features_BK = self.model.features(batch.inputs)
            if seen is not None:
                seen.add(features_BK, batch.labels_B)
            total = cross_entropy(self.model.head(features_BK), batch.labels_B)
            if guided:
                pull = prototype_loss(features_BK, batch.labels_B, targets, config.distance)
                total = total + config.weight * pull
            return total

        mean_loss = train_locally(self.context, round, loss, optimizer=self.optimizer())
        if not config.stale_prototypes:
            self._keep(eval_pass(self.context) if seen is None else seen)
        return {"loss": mean_loss}

    def optimizer(self) -> torch.optim.Optimizer | None:
        """Of local training; None is the experiment's plain SGD."""
        return None

    def upload(self) -> Arrays:
        rows_nK, ids_n = self.local_prototypes.rows()
        arrays = {"prototypes": rows_nK, "class_ids": ids_n}
        if self.sends_counts:
            arrays["counts"] = self.local_counts_C.cpu().numpy()[ids_n].astype(np.int32)
        if self.config.report_margins:
            # A single class has no margin; the border lets no NaN through, so it is sent as 0.
            arrays["margins"] = np.nan_to_num(margins(torch.from_numpy(rows_nK)).numpy(), nan=0.0)
        return arrays

    def state(self) -> State:
        return super().state() | {
            "global_prototypes": self.global_prototypes.vectors_CK.cpu().numpy(),
            "global_present": self.global_prototypes.present_C.cpu().numpy(),
            "local_prototypes": self.local_prototypes.vectors_CK.cpu().numpy(),
            "local_counts": self.local_counts_C.cpu().numpy(),
        }

    def load_state(self, state: State) -> None:
        super().load_state(state)
        tensors = {
            name: torch.from_numpy(state[name].copy()).to(self.context.device)
            for name in ("global_prototypes", "global_present", "local_prototypes", "local_counts")
        }
        self.global_prototypes = ClassVectors(tensors["global_prototypes"], tensors["global_present"])
        self.local_prototypes = ClassVectors(tensors["local_prototypes"], tensors["local_counts"] > 0)
        self.local_counts_C = tensors["local_counts"]

    def _class_means(self) -> ClassMeans:
        task = self.context.task
        return ClassMeans(task.num_classes, task.feature_dim, self.context.device)

    def _keep(self, means: ClassMeans) -> None:
        self.local_prototypes, self.local_counts_C = means.means(), means.weights_C


def eval_pass(context: ClientContext) -> ClassMeans:
    """Features of the samples that an epoch of training covers, in evaluation mode."""
    task, model, data = context.task, context.model, context.data.train
    means = ClassMeans(task.num_classes, task.feature_dim, context.device)
    num_samples = samples_per_epoch(len(data), context.experiment.train)
    for features_BK, labels_B in outputs(
        model, data, context.device, forward=model.features, num_samples=num_samples
    ):
        means.add(features_BK, labels_B)
    return means


@dataclass(frozen=True)
class Uploaded:
    """The rows of all clients in a round, stacked in the order of client ids."""

    vectors_NK: Tensor
    labels_N: Tensor
    clients_N: np.ndarray
    counts_N: Tensor | None


def stack_uploads(uploads: list[Upload], name: str, dim: int, num_classes: int, device: torch.device) -> Uploaded:
    """Stack the arrays called `name`. Uploads without arrays, and those with no rows, add nothing."""
    uploads = filled(uploads)
    for upload in uploads:
        ids = upload.arrays["class_ids"]
        if len(ids) and not 0 <= ids.min() <= ids.max() < num_classes:
            raise ContractError(
                f"client {upload.client}: field 'class_ids' must lie in 0..{num_classes - 1}, "
                f"not {ids.min()}..{ids.max()}"
            )
        if len(np.unique(ids)) < len(ids):
            raise ContractError(
                f"client {upload.client}: field 'class_ids' names a class twice ({len(ids)} rows for at most "
                f"{num_classes} classes)"
            )

    def stacked(array_name: str, empty: np.ndarray) -> Tensor:
        rows = np.concatenate([empty, *(upload.arrays[array_name] for upload in uploads)], dtype=empty.dtype)
        return torch.from_numpy(rows).to(device)

    clients = [np.full(len(upload.arrays["class_ids"]), upload.client, np.int32) for upload in uploads]
    has_counts = any("counts" in upload.arrays for upload in uploads)
    return Uploaded(
        vectors_NK=stacked(name, np.zeros((0, dim), np.float32)),
        labels_N=stacked("class_ids", np.zeros(0, np.int64)),
        clients_N=np.concatenate([np.zeros(0, np.int32), *clients]),
        counts_N=stacked("counts", np.zeros(0, np.float32)) if has_counts else None,
    )


def mean_per_class(uploaded: Uploaded, num_classes: int) -> ClassVectors:
    """Mean over the clients that hold a class (ProtoNorm Eq. 7), weighted by their counts if they sent any.

    The printed weighted mean (FedTGP Eq. 3, ProtoNorm Eq. 3) is also divided by the number of clients, which
    would shrink the prototypes by that number; no published run does it.
    """
    means = ClassMeans(num_classes, uploaded.vectors_NK.shape[1], uploaded.vectors_NK.device)
    means.add(uploaded.vectors_NK, uploaded.labels_N, uploaded.counts_N)
    return means.means()


@dataclass(frozen=True)
class Combined:
    """The global prototypes, and what is worth knowing about how they came about."""

    prototypes: ClassVectors
    metrics: Metrics = field(default_factory=dict)
    records: Arrays = field(default_factory=dict)


class PrototypeServer(Server, ABC):
    """Turns all uploaded prototypes into global ones; a method says how in `combine`."""

    sends_all_classes = False

    @abstractmethod
    def combine(self, round: int, uploaded: Uploaded) -> Combined:
        """One round's prototypes in, the global ones out."""

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        task = self.context.task
        uploaded = stack_uploads(uploads, "prototypes", task.feature_dim, task.num_classes, self.context.device)
        with self.context.stopwatch.part("prototypes"):
            combined = self.combine(round, uploaded)
        rows_nK, ids_n = combined.prototypes.rows()
        down = {"prototypes": rows_nK}
        if not self.sends_all_classes:
            down["class_ids"] = ids_n
        margins_C = class_margins(combined.prototypes).cpu().numpy()
        known = margins_C[~np.isnan(margins_C)]
        separation = {
            "margin_max": float(known.max()) if len(known) else 0.0,
            "margin_mean": float(known.mean()) if len(known) else 0.0,
        }
        scale = np.float32(self.context.config.scale)
        records = {
            "global_margins": margins_C,
            "prototype_scale": np.array(scale),  # a client uses a prototype, and so a margin, times this
            **client_margins(uploaded),
            **combined.records,
        }
        if self._keeps_prototypes(round, uploaded.vectors_NK.nbytes):
            records["client_prototypes"] = uploaded.vectors_NK.cpu().numpy()
            records["global_prototypes"] = rows_nK * scale
            records["global_classes"] = ids_n
        return Step(down, combined.metrics | separation, records)

    def _keeps_prototypes(self, round: int, num_bytes: int) -> bool:
        """The last round's always; of those before, as many at equal distances as a few megabytes hold."""
        num_rounds = self.context.experiment.run.rounds
        every = -(-num_rounds * num_bytes // MAX_RECORDED_BYTES)
        return round == num_rounds - 1 or (every > 0 and round % every == 0)


def client_margins(uploaded: Uploaded) -> Arrays:
    """For each uploaded prototype: its margin among those of the same client, which client, which class."""
    margins_N = np.full(len(uploaded.clients_N), np.nan, np.float32)
    for client in np.unique(uploaded.clients_N):
        rows = np.flatnonzero(uploaded.clients_N == client)
        margins_N[rows] = margins(uploaded.vectors_NK[torch.from_numpy(rows)]).cpu().numpy()
    return {
        "client_margins": margins_N,
        "client_ids": uploaded.clients_N,
        "client_classes": uploaded.labels_N.to(torch.int32).cpu().numpy(),
    }
