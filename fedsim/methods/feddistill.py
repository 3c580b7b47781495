"""FedDistill, or federated distillation: mean logits per class (Jeong et al. 2018).

Client: cross-entropy + γ · d(logits, global mean logits of the sample's class); cross-entropy alone until the
first global logits arrive. It gathers the logits of its training samples while it trains and uploads their
mean per class. Server: unweighted mean over the clients that hold a class. Prediction: largest logit.

What travels: up C numbers per class held, down C numbers per class that any client sent this round.

Deliberate choices
- d is the cross-entropy with the softmax of the global logits as target. `logit_loss=raw` takes the logits
  themselves as the target, as the latest published code does; `logit_loss=mse` their mean squared difference.
- A sample whose class has no global logits has its own logits as the target, as published.
"""

from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from fedsim import method
from fedsim.config import NonNegative, Section
from fedsim.contract import Arrays, Contract, Field, Payload, class_ids
from fedsim.equations.class_vectors import ClassMeans, ClassVectors
from fedsim.families.uploads import mean_per_class, pack, stack_uploads
from fedsim.method import About, Batch, ClientContext, Reported, State, Step, Upload

ABOUT = About(title="FedDistill", paper="Jeong et al., 2018", evaluation="largest logit")


class Config(Section, frozen=True, kw_only=True):
    """FedDistill's options."""

    logit_weight: NonNegative = 1.0
    """γ, the weight of the distillation term."""
    logit_loss: Literal["softmax", "raw", "mse"] = "softmax"
    """softmax, raw: cross-entropy with the softmax of the global logits, or the logits themselves, as target.
    mse: mean squared difference of logits."""


def contract(config: Config) -> Contract:
    rows = {"logits": Field(Payload.LOGITS, "n C"), "class_ids": class_ids("n")}
    return Contract(up=rows, down=rows)


def distillation_loss(
    logits_BC: Tensor, labels_B: Tensor, targets: ClassVectors, kind: Literal["softmax", "raw", "mse"]
) -> Tensor:
    """Mean over the batch of d(logits, target of its class)."""
    present_B1 = targets.present_C[labels_B][:, None]
    targets_BC = torch.where(present_B1, targets.vectors_CK[labels_B], logits_BC.detach())
    match kind:
        case "softmax":
            return cross_entropy(logits_BC, targets_BC.softmax(dim=1))
        case "raw":
            return cross_entropy(logits_BC, targets_BC)
        case "mse":
            return mse_loss(logits_BC, targets_BC)


class Client(method.Client):
    def __init__(self, context: ClientContext):
        super().__init__(context)
        num_classes = context.task.num_classes
        self.config: Config = context.config
        self.global_logits = ClassVectors.empty(num_classes, num_classes, context.device)
        self.is_guided = False
        self.seen = ClassMeans(num_classes, num_classes, context.device)

    def receive(self, round: int, down: Arrays) -> None:
        if down:
            self.global_logits = ClassVectors.from_rows(
                down["logits"], down["class_ids"], self.context.task.num_classes, self.context.device
            )

    def train(self, round: int) -> Reported:
        num_classes = self.context.task.num_classes
        self.seen = ClassMeans(num_classes, num_classes, self.context.device)
        self.is_guided = self.global_logits.any and self.config.logit_weight > 0
        return super().train(round)

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy + γ · d(logits, global mean logits of the class); logits are gathered on the way."""
        logits_BC = self.model(batch.inputs)
        self.seen.add(logits_BC, batch.labels_B)
        total = cross_entropy(logits_BC, batch.labels_B)
        if self.is_guided:
            extra = distillation_loss(logits_BC, batch.labels_B, self.global_logits, self.config.logit_loss)
            total = total + self.config.logit_weight * extra
        return total

    def upload(self) -> Arrays:
        return pack(self.seen.means(), name="logits")

    def state(self) -> State:
        rows_nC, ids_n = self.global_logits.rows()
        return super().state() | {"global_logits": rows_nC, "global_class_ids": ids_n}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.global_logits = ClassVectors.from_rows(
            state["global_logits"], state["global_class_ids"], self.context.task.num_classes, self.context.device
        )


class Server(method.Server):
    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        num_classes = self.context.task.num_classes
        uploaded = stack_uploads(uploads, "logits", num_classes, num_classes, self.context.device)
        means = mean_per_class(uploaded, num_classes)
        down = pack(means, name="logits")
        # How sure the federation is of each class: the share that its mean logits give to it.
        own_C = means.vectors_CK.softmax(dim=1).diagonal().cpu().numpy()
        confidence = float(own_C[down["class_ids"]].mean()) if means.any else 0.0
        records = {"global_confidences": np.where(means.present_C.cpu().numpy(), own_C, np.nan)}
        return Step(down, {"global_confidence": confidence}, records)
