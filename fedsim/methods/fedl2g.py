"""FedL2G: guiding vectors that are learnt so that following them helps (Zhang et al. 2024).

The server has a guiding vector for each class, in feature space (C × K) or in logit space (C × C). Client: of its
training samples the first ones are kept apart as a quiz. It trains on the rest with

    L(θ, G) = CE + MSE(feature or logits, guiding vector of the class).

Then it studies: one step of SGD on L with a study batch, θ' = θ − η ∇_θ L(θ, G), after which the cross-entropy
of θ' on the quiz is a function of G, and its gradient with respect to G goes up, a row for each class of the
study batch. That is a derivative of a derivative. The own model does not take the step. Server: mean of each row
over the clients that sent it, a step of SGD, and all vectors go down. In the first rounds, the warm-up, clients
study without training. Prediction: largest logit.

What travels: up one row for each class in the study batch, down the rows of all C classes. The first vectors come
from the common seed.

Deliberate choices
- `guide=features` and `guide=logits` are the two published forms.
- The warm-up of 50 rounds is shortened to a tenth of the run where that is less; `warm_up_rounds=50` is published.
- The study leaves running statistics of batch normalisation as they are.
- A client with fewer samples than the quiz and one batch takes no part in learning the vectors, and trains on all.

Dimensions: B batch, C classes, D numbers of a guiding vector (K or C).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, mse_loss

from fedsim import method
from fedsim.config import AboveZero, Count, Experiment, NonNegative, Positive, Section
from fedsim.contract import Arrays, Contract, Field, Payload, class_ids
from fedsim.data import Subset
from fedsim.errors import UserError
from fedsim.families.uploads import mean_per_class, stack_uploads
from fedsim.method import About, Batch, ClientContext, Reported, ServerContext, Setting, State, Step, Task, Upload
from fedsim.models import SplitModel

ABOUT = About(title="FedL2G", paper="Zhang et al., 2024", evaluation="largest logit")

PUBLISHED_WARM_UP = 50


class Config(Section, frozen=True, kw_only=True):
    """FedL2G's options."""

    guide: Literal["features", "logits"] = "features"
    """What guiding vectors are compared with."""
    quiz_batches: Positive = 1
    """So many batches of a client's training samples are kept apart as its quiz."""
    study_batches: Positive = 1
    """So many batches are studied in a round."""
    warm_up_rounds: Count | Literal["auto"] = "auto"
    """Rounds without training; auto: 50, or a tenth of the run where that is less."""
    server_lr: AboveZero = 0.01
    """Learning rate of the guiding vectors."""
    clip_norm: NonNegative = 100.0
    """Largest gradient norm, of clients' models and of the guiding vectors; 0: any."""

    def warm_up(self, experiment: Experiment) -> int:
        if self.warm_up_rounds == "auto":
            return min(PUBLISHED_WARM_UP, experiment.run.rounds // 10)
        return self.warm_up_rounds

    def dim(self, task: Task) -> int:
        """D"""
        return task.feature_dim if self.guide == "features" else task.num_classes


def contract(config: Config) -> Contract:
    width = "K" if config.guide == "features" else "C"
    return Contract(
        up={"gradients": Field(Payload.GUIDES, f"seen {width}"), "class_ids": class_ids("seen")},
        down={"guides": Field(Payload.GUIDES, f"C {width}")},
        note="seen is the number of classes in a study batch; the number is the mean over clients' first batches",
    )


def rehearsal_sizes(setting: Setting) -> dict[str, int]:
    seen = []
    for client in range(setting.task.num_clients):
        halves = Halves.of(setting.federation.client(client).train, setting.experiment, setting.config)
        if halves:
            seen.append(len(np.unique(halves.study.labels[: halves.study_size])))
    return {"seen": round(sum(seen) / len(seen)) if seen else 0}


def check(setting: Setting) -> None:
    config: Config = setting.config
    if config.warm_up(setting.experiment) >= setting.experiment.run.rounds:
        raise UserError(
            f"method.warm_up_rounds = {config.warm_up_rounds} leaves nothing of run.rounds = "
            f"{setting.experiment.run.rounds} to train in; lower it or raise run.rounds."
        )


class Halves:
    """A client's training samples: those of the quiz, and the others, that it trains on and studies."""

    def __init__(self, data: Subset, quiz_size: int, study_size: int):
        self.quiz = Subset(data.dataset, data.indices[:quiz_size])
        self.study = Subset(data.dataset, data.indices[quiz_size:])
        self.study_size = study_size

    @classmethod
    def of(cls, data: Subset, experiment: Experiment, config: Config) -> Halves | None:
        """None where there is too little for both."""
        batch_size = experiment.train.batch_size
        quiz_size = config.quiz_batches * batch_size
        if len(data) < quiz_size + batch_size:
            return None
        return cls(data, quiz_size, min(config.study_batches * batch_size, len(data) - quiz_size))


def guided_loss(logits_BC: Tensor, features_BK: Tensor, labels_B: Tensor, guides_CD: Tensor, guide: str) -> Tensor:
    """L: cross-entropy + MSE(feature or logits, guiding vector of the class)."""
    compared = features_BK if guide == "features" else logits_BC
    return cross_entropy(logits_BC, labels_B) + mse_loss(compared, guides_CD[labels_B])


def guide_gradient(
    model: SplitModel,
    study: tuple[Tensor, Tensor],
    quiz: tuple[Tensor, Tensor],
    guides_CD: Tensor,
    lr: float,
    guide: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """(C, D): the gradient of the quiz's cross-entropy after one step on the study batch; then L before the step,
    and that cross-entropy. Nothing of the model changes."""
    weights = {name: weight.detach().requires_grad_() for name, weight in model.named_parameters()}
    guides = guides_CD.detach().requires_grad_()

    def outputs(weights: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        # Statistics that a pass in training mode would change are copies.
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        return functional_call(
            _Both(model), {f"model.{name}": own for name, own in (weights | buffers).items()}, inputs
        )

    with _twice_differentiable():
        features_BK, logits_BC = outputs(weights, study[0])
        loss = guided_loss(logits_BC, features_BK, study[1], guides, guide)
        gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True, allow_unused=True)
        stepped = {
            name: weight if gradient is None else weight - lr * gradient
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }
        _, quiz_BC = outputs(stepped, quiz[0])
        quiz_loss = cross_entropy(quiz_BC, quiz[1])
        (gradient_CD,) = torch.autograd.grad(quiz_loss, guides)
    return gradient_CD, loss.detach(), quiz_loss.detach()


class _Both(nn.Module):
    """Features and logits in one call, which `functional_call` wants."""

    def __init__(self, model: SplitModel):
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features_BK = self.model.features(inputs)
        return features_BK, self.model.head(features_BK)


@contextmanager
def _twice_differentiable() -> Iterator[None]:
    """Fused kernels of attention and recurrent layers have no second derivative; plain ones do."""
    with torch.backends.cudnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
        yield


def initial_guides(context: ClientContext | ServerContext) -> Tensor:
    """(C, D) of a standard normal distribution, everywhere the same."""
    task, random = context.task, context.streams.torch("guiding-vectors")
    return torch.randn(task.num_classes, context.config.dim(task), generator=random).to(context.device)


class Client(method.Client):
    def __init__(self, context: ClientContext):
        super().__init__(context)
        self.config: Config = context.config
        self.halves = Halves.of(self.data.train, context.experiment, self.config)
        self.guides_CD = initial_guides(context)  # they come with every round, so they need not be saved
        self.gradients: Arrays = {}

    def receive(self, round: int, down: Arrays) -> None:
        if down:
            self.guides_CD = torch.from_numpy(down["guides"]).to(self.context.device)

    def loss(self, batch: Batch) -> Tensor:
        features_BK = self.model.features(batch.inputs)
        logits_BC = self.model.head(features_BK)
        return guided_loss(logits_BC, features_BK, batch.labels_B, self.guides_CD, self.config.guide)

    def train(self, round: int) -> Reported:
        metrics: Reported = {}
        if round >= self.config.warm_up(self.context.experiment):
            data = self.halves.study if self.halves else None
            metrics["loss"] = self.train_locally(round, data=data, clip_norm=self.config.clip_norm)
        self.gradients = {}
        if self.halves:
            loss, metrics["quiz_loss"] = self._study(round, self.halves)
            metrics.setdefault("loss", loss)  # of the study, in a warm-up without training
        return metrics

    def _study(self, round: int, halves: Halves) -> tuple[float, float]:
        context = self.context
        self.model.train()
        where = {"client": context.client, "round": round}
        order = context.streams.numpy("study-order", **where).permutation(len(halves.study))[: halves.study_size]
        drawn = Subset(halves.study.dataset, halves.study.indices[order])
        study, quiz = (next(data.batches(len(data), device=context.device)) for data in (drawn, halves.quiz))
        with context.streams.seeded("study", **where):
            gradient_CD, loss, quiz_loss = guide_gradient(
                self.model, study, quiz, self.guides_CD, context.experiment.train.lr, self.config.guide
            )
        ids_n = np.unique(drawn.labels).astype(np.int32)
        self.gradients = {"gradients": gradient_CD.cpu().numpy()[ids_n], "class_ids": ids_n}
        return float(loss), float(quiz_loss)

    def upload(self) -> Arrays:
        return self.gradients


class Server(method.Server):
    def __init__(self, context: ServerContext):
        super().__init__(context)
        self.guides_CD = initial_guides(context)

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        config: Config = self.context.config
        task = self.context.task
        uploaded = stack_uploads(uploads, "gradients", config.dim(task), task.num_classes, self.context.device)
        means = mean_per_class(uploaded, task.num_classes)
        gradient_CD = torch.where(means.present_C[:, None], means.vectors_CK, 0.0)
        norm = float(gradient_CD.norm())
        if config.clip_norm and norm > config.clip_norm:
            gradient_CD = gradient_CD * (config.clip_norm / norm)
        self.guides_CD = self.guides_CD - config.server_lr * gradient_CD
        return Step({"guides": self.guides_CD.cpu().numpy()}, {"guide_gradient_norm": norm})

    def state(self) -> State:
        return super().state() | {"guides": self.guides_CD.cpu().numpy()}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.guides_CD = torch.from_numpy(state["guides"].copy()).to(self.context.device)
