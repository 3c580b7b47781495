"""What FedProtoKD and FedPKD share: logits on public samples and prototypes travel both ways, and the server
has a model of its own.

A round: clients train on their own data with a pull towards the global prototypes (Eq. 17 to 19 of
FedProtoKD; cross entropy alone in the first round, Eq. 3), and send their logits for all public samples and
their prototypes. The server turns the prototypes into global ones (`combine`), the logits into one opinion
per sample (Eq. 4), decides how far each sample is to be trusted (`judge`), trains its model with all of
this (Eq. 11 to 13) and sends the model's logits and the global prototypes. Clients then learn from these
logits (Eq. 14 to 16) before they evaluate; `trained_accuracy` is how good they were just before that
(`evaluate_after`). Clients that do not train in a round learn from the server too whenever they are evaluated.

Dimensions: B batch, C classes, K features, P public samples, k those that are used.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn

from fedsim.config import AboveZero, NonNegative, Positive
from fedsim.contract import Arrays, Contract, Field, Payload
from fedsim.data import Subset
from fedsim.equations.class_vectors import ClassVectors
from fedsim.equations.public_distillation import aggregate_logits, client_loss, server_loss
from fedsim.families import public_samples
from fedsim.families.prototypes import (
    PrototypeClient,
    PrototypeConfig,
    PrototypeServer,
    prototype_contract,
)
from fedsim.families.public_samples import (
    ServerModel,
    ServerTraining,
    make_optimizer,
    public_training,
    rows_of,
    stacked,
)
from fedsim.learning.training import Batch, run_epochs
from fedsim.method import ClientContext, Metrics, ServerContext, Setting, Step, Upload

RECORDED_SAMPLES = 500
"""So many public samples' features are recorded each round, in half precision: enough for a t-SNE, 0.5 MB."""

Share = Annotated[float, Meta(ge=0, le=1)]


class DualConfig(PrototypeConfig, frozen=True, kw_only=True):
    """Options of both methods. Letters are the paper's."""

    prototype_weight: NonNegative = 0.5
    """ε, the weight of the clients' prototype loss (Eq. 18), an element-mean squared error."""
    evaluate_by: Literal["global_prototype", "local_prototype", "logits"] = "logits"
    """How a client predicts: the largest logit, or the nearest global or own prototype."""
    evaluate_after: Literal["distillation", "training"] = "distillation"
    """Which clients `accuracy` is of: those that have just learnt from the server, or as their own training left
    them. The other one is reported beside it, as `trained_accuracy` or `distilled_accuracy`."""
    public_data: Literal["known", "sent"] = "known"
    """known: clients own the data set and know the public samples by number. sent: once, at set-up."""
    public_dtype: Literal["float32", "uint8"] = "float32"
    """How public images travel if they do; uint8 is a quarter of the bytes and the very same images."""
    logit_weighting: Literal["variance", "equal"] = "variance"
    """variance: Eq. 4. equal: the plain mean of the clients' logits."""
    kl: Literal["forward", "reverse", "printed"] = "forward"
    """forward: KL(teacher ‖ student). reverse: KL(student ‖ teacher). printed: server forward, clients reverse."""
    temperature: AboveZero = 1.0
    """Of the softmaxes that are compared."""
    eta: Share = 0.5
    """η of Eq. 16: share of the divergence in what clients distil; the rest is cross-entropy."""
    distill_epochs: Positive = 1
    """Epochs over the public samples when a client receives logits; the paper does not say."""
    upsilon: Share = 0.5
    """Υ of Eq. 13: share of distillation in the server's loss; the rest pulls to the prototypes."""
    server_model: str = "ResNet34"
    """The server's model, any single model of the zoo."""
    server_epochs: Positive = 10
    """Epochs of the server's model in each round."""
    server_batch_size: Positive = 32
    """Public samples per mini-batch on the server."""
    server_lr: NonNegative = 0.0
    """Learning rate of the server's model; 0: the clients'."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Of all models, on clients and server; the paper does not say."""
    adam_lr: AboveZero = 0.001
    """Learning rate of adam, in place of the experiment's."""

    @property
    def weight(self) -> float:
        return self.prototype_weight


def dual_contract(config: DualConfig, *, all_classes_down: bool = False, with_counts: bool = False) -> Contract:
    """Prototypes as in other methods, and logits for all public samples beside them."""
    base = prototype_contract(config, all_classes_down=all_classes_down, with_counts=with_counts)
    logits = {"logits": Field(Payload.LOGITS, "Np C")}
    setup_down = public_samples.setup_fields(config.public_data, config.public_dtype)
    return Contract(up={**base.up, **logits}, down={**base.down, **logits}, setup_down=setup_down)


def check(setting: Setting) -> None:
    config: DualConfig = setting.config
    public_samples.check(
        setting, source=config.public_data, dtype=config.public_dtype, server_model=config.server_model
    )


class DualClient(PrototypeClient):
    """A prototype client that also tells what it thinks of the public samples and learns what the server does."""

    config: DualConfig

    def __init__(self, context: ClientContext):
        super().__init__(context)
        self.public: Subset | None = None
        self.trained: Metrics = {}
        if self.config.public_data == "known":
            self.public = public_samples.known(context)

    def receive_setup(self, down: Arrays) -> None:
        self.public = public_samples.received(down["public"], self.context.task)

    def receive(self, round: int, down: Arrays) -> None:
        super().receive(round, down)
        if down:
            if self.context.experiment.run.is_evaluated(round):
                self.trained = super().evaluate()
            rows = down.get("sample_ids", np.arange(len(down["logits"])))
            self._distil(round, rows, torch.from_numpy(down["logits"]).to(self.context.device))

    def evaluate(self) -> Metrics:
        distilled = super().evaluate()
        if not self.trained:
            return distilled
        if self.config.evaluate_after == "training":
            return self.trained | {f"distilled_{name}": count for name, count in distilled.items()}
        return distilled | {f"trained_{name}": count for name, count in self.trained.items()}

    def upload(self) -> Arrays:
        logits_PC = public_samples.public_logits(self.model, self._samples, self.context.device)
        return super().upload() | {"logits": logits_PC.cpu().numpy()}

    def optimizer(self) -> torch.optim.Optimizer | None:
        return make_optimizer(self.config.optimizer, self.model, self.config.adam_lr)

    @property
    def _samples(self) -> Subset:
        assert self.public is not None, "the set-up comes before the first round"
        return self.public

    def _distil(self, round: int, rows_k: np.ndarray, teacher_kC: Tensor) -> None:
        """Eq. 14 to 16."""
        context, config, samples = self.context, self.config, self._samples
        train = context.experiment.train

        def loss(batch: Batch) -> Tensor:
            return client_loss(
                self.model(batch.inputs),
                teacher_kC[rows_of(batch, context.device)],
                eta=config.eta,
                direction="forward" if config.kl == "forward" else "reverse",  # Eq. 14 has the student first
                temperature=config.temperature,
            )

        run_epochs(
            loss,
            [self.model],
            Subset(samples.dataset, samples.indices[rows_k], labelled=False),
            public_training(train, config.distill_epochs, train.batch_size, train.lr),
            streams=context.streams,
            client=context.client,
            round=round,
            device=context.device,
            purpose="distil",
            optimizer=self.optimizer(),
        )


@dataclass(frozen=True)
class Judged:
    """Which public samples the server learns from, in ascending order, and how much each of all P counts."""

    rows_k: Tensor
    weights_P: Tensor
    metrics: Metrics = field(default_factory=dict)
    records: Arrays = field(default_factory=dict)


class DualServer(PrototypeServer):
    """Global prototypes by a method's `combine`, then a lesson for the server's model."""

    def __init__(self, context: ServerContext):
        super().__init__(context)
        self.config: DualConfig = context.config
        config, lr = self.config, context.experiment.train.lr
        default_lr = config.adam_lr if config.optimizer == "adam" else lr
        training = ServerTraining(
            config.server_epochs, config.server_batch_size, config.server_lr or default_lr, config.optimizer
        )
        self.pupil = ServerModel(context, config.server_model, training)

    @abstractmethod
    def judge(self, features_PK: Tensor, labels_P: Tensor, prototypes: ClassVectors) -> Judged:
        """How far each public sample can be trusted, given the server's features at the start of the round."""

    def setup(self, uploads: list[Upload]) -> Arrays:
        return public_samples.setup_arrays(self.config.public_data, self.config.public_dtype, self.pupil.public)

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        step = super().aggregate(round, uploads)
        num_classes, device = self.context.task.num_classes, self.context.device
        prototypes = ClassVectors.from_rows(
            step.down["prototypes"], step.down.get("class_ids", np.arange(num_classes)), num_classes, device
        )
        opinions_PC = aggregate_logits(stacked(uploads, "logits", device), self.config.logit_weighting)  # L̂
        labels_P = opinions_PC.argmax(dim=1)  # Eq. 8
        judged = self.judge(self.pupil.features(), labels_P, prototypes)
        mean_loss = self._teach(round, opinions_PC, labels_P, judged, prototypes)
        features_PK, logits_PC = self.pupil.features_and_logits()
        metrics = {
            "server_model_loss": mean_loss,
            "pseudo_label_agreement": float((logits_PC.argmax(dim=1) == labels_P).float().mean()),
            **judged.metrics,
            **self.pupil.accuracy(round),
        }
        down = step.down | {"logits": logits_PC[judged.rows_k].cpu().numpy()}
        records = {
            "public_features": features_PK[:RECORDED_SAMPLES].half().cpu().numpy(),
            "public_labels": labels_P.to(torch.int32).cpu().numpy(),
            "global_prototypes": step.down["prototypes"],
        }
        return Step(down, step.metrics | metrics, step.records | judged.records | records)

    def modules(self) -> dict[str, nn.Module]:
        return {"server_model": self.pupil.model}

    def _teach(
        self, round: int, opinions_PC: Tensor, labels_P: Tensor, judged: Judged, prototypes: ClassVectors
    ) -> float:
        config = self.config

        def loss(logits_BC: Tensor, features_BK: Tensor, rows_B: Tensor) -> Tensor:
            return server_loss(
                logits_BC,
                features_BK,
                opinions_PC[rows_B],
                labels_P[rows_B],
                judged.weights_P[rows_B],
                prototypes,
                upsilon=config.upsilon,
                direction="reverse" if config.kl == "reverse" else "forward",  # Eq. 11 has the teacher first
                temperature=config.temperature,
            )

        return self.pupil.learn(round, loss, judged.rows_k)
