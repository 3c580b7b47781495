"""What FedProtoKD and FedPKD share: logits on public samples and prototypes travel both ways, and the server
has a model of its own.

A round: clients train on their own data with a pull towards the global prototypes (Eq. 17 to 19 of FedProtoKD;
cross-entropy alone in the first round, Eq. 3), and send their logits for all public samples and their prototypes.
The server turns the prototypes into global ones, the logits into one opinion per sample (Eq. 4), decides how far
each sample is to be trusted, trains its model with all of this (Eq. 11 to 13) and sends the model's logits and the
global prototypes. Clients then learn from these logits (Eq. 14 to 16) before they evaluate; `trained_accuracy` is
how good they were just before that (`evaluate_after`). Clients that do not train in a round learn from the server
too whenever they are evaluated.

Dimensions: B batch, C classes, K features, P public samples, k those that are used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor

from fedsim.config import AboveZero, NonNegative, Positive
from fedsim.contract import Arrays, Contract, Field, Payload
from fedsim.equations.distillation import KLDirection
from fedsim.families import public_samples
from fedsim.families.prototypes import PrototypeConfig, prototype_contract
from fedsim.families.server_model import ServerModel
from fedsim.learning.training import run_epochs
from fedsim.method import Batch, Client, Metrics

RECORDED_SAMPLES = 500
"""So many public samples' features are recorded each round, in half precision: enough for a t-SNE, 0.5 MB."""

Share = Annotated[float, Meta(ge=0, le=1)]


class DualConfig(PrototypeConfig, frozen=True, kw_only=True):
    """Options of both methods. Letters are the paper's."""

    # Clients
    prototype_weight: NonNegative = 0.5
    """ε, the weight of the clients' prototype loss (Eq. 18), an element-mean squared error."""
    evaluate_by: Literal["global_prototype", "local_prototype", "logits"] = "logits"
    """How a client predicts: the largest logit, or the nearest global or own prototype."""
    evaluate_after: Literal["distillation", "training"] = "distillation"
    """Which clients `accuracy` is of: those that have just learnt from the server, or as their own training left
    them. The other one is reported beside it, as `trained_accuracy` or `distilled_accuracy`."""
    # Public samples, and what is learnt from them
    public_data: Literal["known", "sent"] = "known"
    """known: clients own the data set and know the public samples by number. sent: once, at set-up."""
    public_dtype: Literal["float32", "uint8", "int32"] = "float32"
    """How public samples travel if they do; images as uint8 are a quarter of the bytes and the very same images;
    texts travel as int32."""
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
    # The server's model
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
    # All models
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Of all models, on clients and server; the paper does not say."""
    adam_lr: AboveZero = 0.001
    """Learning rate of adam, in place of the experiment's."""

    @property
    def adam(self) -> float | None:
        """The learning rate of Adam, if it is wanted."""
        return self.adam_lr if self.optimizer == "adam" else None

    @property
    def client_kl(self) -> KLDirection:
        """Eq. 14 prints the student first."""
        return "forward" if self.kl == "forward" else "reverse"

    @property
    def server_kl(self) -> KLDirection:
        """Eq. 11 prints the teacher first."""
        return "reverse" if self.kl == "reverse" else "forward"


def dual_contract(config: DualConfig) -> Contract:
    """Prototypes as in other methods, and logits for all public samples beside them."""
    base = prototype_contract(config)
    logits = {"logits": Field(Payload.LOGITS, "Np C")}
    setup_down = public_samples.setup_fields(config.public_data, config.public_dtype)
    return Contract(up={**base.up, **logits}, down={**base.down, **logits}, setup_down=setup_down)


class Student:
    """What a client has to do with public samples: it says what it thinks of them, learns what the server does,
    and knows how good it was before that."""

    def __init__(self, client: Client):
        self.client, self.config = client, client.context.config
        self.public = public_samples.PublicSamples(client.context)
        self.trained: Metrics = {}

    def learn(
        self, round: int, down: Arrays, loss: Callable[[Tensor, Tensor], Tensor], test: Callable[[], Metrics]
    ) -> None:
        """`loss(logits, teacher's logits)` on the samples that the server sent its logits for, if it has; `test`
        says how good the client is until then."""
        self.trained = {}  # or it would be told of a round in which nothing was learnt
        if not down:
            return
        context, model = self.client.context, self.client.model
        train = context.experiment.train
        if context.experiment.run.is_evaluated(round):
            self.trained = test()
        teacher_kC = torch.from_numpy(down["logits"]).to(context.device)

        def loss_of_batch(batch: Batch) -> Tensor:
            return loss(model(batch.inputs), teacher_kC[public_samples.rows_of(batch, context.device)])

        run_epochs(
            loss_of_batch,
            [model],
            self.public.subset(down.get("sample_ids", np.arange(len(teacher_kC)))),
            public_samples.training(train, self.config.distill_epochs, train.batch_size, train.lr),
            streams=context.streams,
            client=context.client,
            round=round,
            device=context.device,
            purpose="distil",
            optimizer=self.client.optimizer(),
        )

    def before_and_after(self, distilled: Metrics) -> Metrics:
        """The one that `accuracy` is to be of, and the other one beside it."""
        if not self.trained:
            return distilled
        if self.config.evaluate_after == "training":
            return self.trained | {f"distilled_{name}": count for name, count in distilled.items()}
        return distilled | {f"trained_{name}": count for name, count in self.trained.items()}


def after_the_lesson(pupil: ServerModel, mean_loss: float, labels_P: Tensor) -> tuple[Tensor, Metrics, Arrays]:
    """The logits (P, C) of the server's model, what is worth knowing of its lesson, and where its features lie."""
    features_PK, logits_PC = pupil.features_and_logits()
    metrics = {
        "server_model_loss": mean_loss,
        "pseudo_label_agreement": float((logits_PC.argmax(dim=1) == labels_P).float().mean()),
    }
    records = {
        "public_features": features_PK[:RECORDED_SAMPLES].half().cpu().numpy(),
        "public_labels": labels_P.to(torch.int32).cpu().numpy(),
    }
    return logits_PC, metrics, records
