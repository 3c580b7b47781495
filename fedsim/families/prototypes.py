"""What all prototype methods share: options, contract, and all of both halves but the loss and the server's step.

A prototype is the mean feature of one class (FedTGP Eq. 2, ProtoNorm Eq. 2). Clients send one row per class that
they hold, with the class numbers beside it. A method's client writes its loss with `features` and `pull`; its
server makes global prototypes of what `stack` gives, and `step` makes of these what goes down and is recorded.

Dimensions: B batch, C classes, K features, n classes held, N prototypes uploaded by all clients together.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedsim.config import AboveZero, NonNegative, Section
from fedsim.contract import Arrays, Contract, Field, Payload
from fedsim.equations.class_vectors import (
    ClassMeans,
    ClassVectors,
    class_margins,
    margins,
    nearest_prototype,
    prototype_loss,
)
from fedsim.errors import UserError
from fedsim.families.uploads import COUNTS, PROTOTYPES, Uploaded, class_means, pack, stack_uploads
from fedsim.learning.evaluation import Predict, count_read_outs, largest
from fedsim.method import Batch, Client, ClientContext, Metrics, Reported, Server, State, Step, Upload

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

    all_classes_down: ClassVar[bool] = False
    """Whether prototypes of all C classes go down always, so that no class numbers are needed."""

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

    @property
    def sends_counts(self) -> bool:
        """Whether clients tell how many samples of each class they have."""
        return False


def prototype_contract(config: PrototypeConfig) -> Contract:
    """Up: a row for each class held. Down: one for each class that exists, or all C without class numbers."""
    up = dict(PROTOTYPES)
    if config.sends_counts:
        up["counts"] = COUNTS
    if config.report_margins:
        up["margins"] = Field(Payload.MARGINS, "n")
    return Contract(
        up, {"prototypes": Field(Payload.PROTOTYPES, "C K")} if config.all_classes_down else PROTOTYPES
    )


class PrototypeClient(Client):
    """Keeps the global prototypes and its own: receives the ones, gathers and uploads the others."""

    def __init__(self, context: ClientContext):
        super().__init__(context)
        self.config: PrototypeConfig = context.config
        self.global_prototypes = ClassVectors.empty(
            context.task.num_classes, context.task.feature_dim, context.device
        )
        self.is_guided = False
        self.seen = self._no_means()
        self._keep(self.seen)

    # ---------------------------------------------------------------------------- pieces of a method's loss

    def features(self, batch: Batch) -> Tensor:
        """(B, K); where prototypes come from the training pass, they are gathered here."""
        features_BK = self.model.features(batch.inputs)
        if self.config.prototypes_from == "train_pass":
            self.seen.add(features_BK, batch.labels_B)
        return features_BK

    def pull(self, features_BK: Tensor, labels_B: Tensor) -> Tensor:
        """λ · φ(feature, γ · global prototype of its class), its mean over the batch; 0 before there are any."""
        if not self.is_guided:
            return features_BK.new_zeros(())
        distance = prototype_loss(features_BK, labels_B, self.global_prototypes, self.config.distance)
        return self.config.weight * distance

    # ------------------------------------------------------------------------------------------ one round

    def receive(self, round: int, down: Arrays) -> None:
        if not down:
            return
        num_classes = self.context.task.num_classes
        ids_n = down.get("class_ids", np.arange(num_classes))
        received = ClassVectors.from_rows(down["prototypes"], ids_n, num_classes, self.context.device)
        self.global_prototypes = ClassVectors(received.vectors_CK * self.config.scale, received.present_C)

    def evaluate(self) -> Metrics:
        """By prototypes and by logits, from the same features: the nearest prototype may flip for a client while
        its logits get better. Which of them is the accuracy, the options say; the other is told beside it."""
        by_logits = self.config.evaluate_by == "logits"
        lengths: list[Tensor] = []
        counts = count_read_outs(
            self.model,
            self.data.test,
            self.context.device,
            {
                "prototype_" if by_logits else "": self._by_prototypes(),
                "" if by_logits else "logit_": lambda features_BK: largest(self.model.head(features_BK)),
            },
            forward=self.model.features,
            watch=lambda features_BK: lengths.append(features_BK.norm(dim=1)),
            further=self.measures_further,
        )
        return counts | ({"feature_norm": float(torch.cat(lengths).mean())} if lengths else {})

    def _by_prototypes(self) -> Predict | None:
        """Nearest prototype; None before there are any."""
        allowed_C = None
        if self.config.restrict_to_local_classes:
            allowed_C = torch.zeros(self.context.task.num_classes, dtype=torch.bool, device=self.context.device)
            allowed_C[torch.as_tensor(self.data.classes, dtype=torch.int64)] = True
        local = self.config.evaluate_by == "local_prototype"
        return nearest_prototype(self.local_prototypes if local else self.global_prototypes, allowed_C)

    def train(self, round: int) -> Reported:
        """With the method's loss; prototypes are gathered on the way, after it or, stale, before it."""
        config = self.config
        self.is_guided = self.global_prototypes.any and config.weight > 0
        self.seen = self._no_means()
        if config.stale_prototypes:
            # The model has not changed since the client last took part, so these are that model's prototypes.
            self._keep(class_means(self.context))
        mean_loss = self.train_locally(round)
        if not config.stale_prototypes:
            self._keep(self.seen if config.prototypes_from == "train_pass" else class_means(self.context))
        return {"loss": mean_loss}

    def upload(self) -> Arrays:
        arrays = pack(self.local_prototypes, self.local_counts_C if self.config.sends_counts else None)
        if self.config.report_margins:
            # A single class has no margin; the border lets no NaN through, so it is sent as 0.
            arrays["margins"] = np.nan_to_num(margins(torch.from_numpy(arrays["prototypes"])).numpy(), nan=0.0)
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
        global_CK, present_C, local_CK, counts_C = (
            torch.from_numpy(state[name].copy()).to(self.context.device)
            for name in ("global_prototypes", "global_present", "local_prototypes", "local_counts")
        )
        self.global_prototypes = ClassVectors(global_CK, present_C)
        self.local_prototypes, self.local_counts_C = ClassVectors(local_CK, counts_C > 0), counts_C

    def _no_means(self) -> ClassMeans:
        return ClassMeans(self.context.task.num_classes, self.context.task.feature_dim, self.context.device)

    def _keep(self, means: ClassMeans) -> None:
        self.local_prototypes, self.local_counts_C = means.means(), means.weights_C


class PrototypeServer(Server):
    """All clients' prototypes in, global ones out: a method's `aggregate` says how the ones become the others."""

    def stack(self, uploads: list[Upload]) -> Uploaded:
        """The prototypes of all clients, a row for each class that a client holds."""
        task = self.context.task
        return stack_uploads(uploads, "prototypes", task.feature_dim, task.num_classes, self.context.device)

    def step(
        self,
        round: int,
        uploaded: Uploaded,
        prototypes: ClassVectors,
        metrics: Metrics | None = None,
        records: Arrays | None = None,
    ) -> Step:
        """The global prototypes go down. Beside what the method tells of them, it is told how far apart they are
        and how long, as clients use them; of some rounds they are recorded, with those they were made from."""
        config: PrototypeConfig = self.context.config
        down = pack(prototypes)
        ids_n = down.pop("class_ids") if config.all_classes_down else down["class_ids"]
        margins_C = class_margins(prototypes).cpu().numpy()
        known = margins_C[~np.isnan(margins_C)]
        separation = {
            "margin_max": float(known.max()) if len(known) else 0.0,
            "margin_mean": float(known.mean()) if len(known) else 0.0,
        }
        scale = np.float32(config.scale)
        norms_n = np.linalg.norm(down["prototypes"] * scale, axis=1)
        if len(norms_n):
            separation |= {"prototype_norm": float(norms_n.mean()), "prototype_norm_min": float(norms_n.min())}
            separation["prototype_norm_max"] = float(norms_n.max())
        recorded = {
            "global_margins": margins_C,
            "prototype_scale": np.array(scale),  # a client uses a prototype, and so a margin, times this
            **client_margins(uploaded),
            **(records or {}),
        }
        if self._keeps_prototypes(round, uploaded.vectors_NK.nbytes):
            recorded["client_prototypes"] = uploaded.vectors_NK.cpu().numpy()
            recorded["global_prototypes"] = down["prototypes"] * scale
            recorded["global_classes"] = ids_n
        return Step(down, (metrics or {}) | separation, recorded)

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
