"""FedProtoKD: dual knowledge distillation with a prototype margin for each class (Hossen et al. 2025).

Client: cross-entropy + ε · MSE(feature, global prototype of its class), Eq. 17 to 19; cross-entropy alone
in the first round (Eq. 3). It sends its prototypes and its logits for all public samples. When the server's
logits arrive it learns them on the public samples, η · KL + (1 − η) · CE (Eq. 14 to 16), and then
evaluates. Prediction: largest logit.

Server: the clients' logits become one opinion per sample, weighted by their variance (Eq. 4), and its
largest entry the sample's pseudo-label (Eq. 8). Prototypes are trained as in FedTGP, with a margin ξ^c for
each class (ACTSP, Eq. 5 to 7, fedsim/server_optimizers/actsp.py). Samples whose features are near the
prototype of their pseudo-label count more (I, Eq. 9 and 10). The server's model learns Υ (KL + I · CE) + (1
− Υ) MSE to the prototypes (Eq. 11 to 13). It is tested on the global test set: `server_accuracy`.
(Equations: fedsim/equations/public_distillation.py; shared with FedPKD: fedsim/families/prototypes_and_logits.py.)

What travels: up N_p × C logits and one K-vector per class held, no counts; down N_p × C logits and all C
prototypes. Public samples are known to clients by number, or sent once at set-up (`public_data=sent`).

The paper's, as printed: Eq. 1, 3, 4, 8, 10 to 13, 15 to 19; Υ = ε = η = 0.5, ζ = 50, φ = 0.8, N_p = 2500,
100 epochs and batches of 32 for ACTSP, 10 epochs and batches of 32 for a ResNet34 on the server. Its runs
have 10 clients of the group FedProtoKD, B = 32, E = 5, 50 rounds; those are options of the experiment, not
of the method.

Ours, because the paper is silent or contradicts itself
- Eq. 6 takes the minimum over all pairs, the text a margin for each class: ξ^c is the distance to the
  nearest other class centre, at most ζ. FedProtoKD-ζ is `margin=max`, the largest of them for every class.
- Eq. 5 and 7 print e^(−Δ+ξ), which rewards the own class; here the margin makes it farther, −(Δ + ξ), as in
  FedTGP. `margin_sign=printed` is the printed one.
- d(x) needs features of public samples, which only the server has: those of its model at the start of the
  round.
- d̂ = 1 / (d + ε) is brought to [0, 1] over all public samples of the round. The steepness k and ε are not
  given: 10 and 1e-8. Eq. 9 as printed falls with closeness while the text wants far samples reduced; with φ
  = 0.8 and k < 16 their sum, I, rises all the same. `importance_sigmoid=rising` follows the text.
- I weighs the cross-entropy, and the mean is taken over samples, not over weights;
  `normalize_importance=true` divides by the mean weight. Without I: `importance=false`. (The paper's tables
  1 and 2 seem to have FedProtoKD-ζ without I, its table 9 with it.)
- Eq. 11 prints KL(teacher, student), Eq. 14 KL(student, teacher), as the arguments of the usual functions
  and the mathematical order are mixed up often: both are KL(teacher ‖ student) with T = 1 here, what
  distillation means as a rule. `kl=printed` takes them at their word. Sums over samples are means over
  batches.
- Optimizer and learning rates are not given: plain SGD with the experiment's, `optimizer=adam` with
  `adam_lr`. Clients distil for one epoch (`distill_epochs`). Public samples are shuffled.
- Prototypes (Eq. 1) are means over the samples that an epoch covers: with `train.drop_last`, the default of
  all methods here, those of a last batch that is not full are in neither training nor prototypes.
- A class that nobody uploaded in a round keeps the prototype that was sent last and is no neighbour in ξ.
  Its trainable vector goes on being pushed by the others, and is what it starts from when somebody uploads
  it again; `absent_classes=push` sends it, as FedTGP does.
- The global test set is the official test set; clients are tested on a quarter of their own samples, after
  they have learnt from the server, as Algorithm 1 ends. `evaluate_after=training` tests them before that, as
  FedProto and FedTGP do, which the paper's numbers suggest.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedsim.config import AboveZero, NonNegative, Positive
from fedsim.contract import Arrays
from fedsim.equations.class_vectors import ClassVectors
from fedsim.equations.public_distillation import (
    Lesson,
    aggregate_logits,
    client_loss,
    distances_to_class,
    importance,
)
from fedsim.families import public_samples
from fedsim.families.prototypes import PrototypeClient, PrototypeServer
from fedsim.families.prototypes_and_logits import DualConfig, Share, Student, after_the_lesson, dual_contract
from fedsim.families.public_samples import DEFAULTS, NEEDS, sizes, stacked
from fedsim.families.server_model import ServerModel, adam, adapt, check
from fedsim.families.uploads import Uploaded
from fedsim.method import About, Batch, ClientContext, Metrics, ServerContext, Step, Upload, filled
from fedsim.server_optimizers.actsp import ServerPrototypes

__all__ = ["ABOUT", "DEFAULTS", "Client", "Config", "Server", "adapt", "check", "contract", "sizes"]

ABOUT = About(
    title="FedProtoKD",
    paper="Hossen et al. 2025",
    evaluation="largest logit; server model on the global test set",
    needs=NEEDS,
)
contract = dual_contract


class Config(DualConfig, frozen=True, kw_only=True):
    """FedProtoKD's options."""

    # ACTSP
    margin: Literal["class", "max"] = "class"
    """class: ξ^c for each class, Eq. 6. max: the largest for all classes, FedProtoKD-ζ."""
    zeta: AboveZero = 50.0
    """ζ, the largest margin."""
    margin_sign: Literal["farther", "printed"] = "farther"
    """farther: exponents −(Δ + ξ), as in FedTGP. printed: −Δ + ξ, as in Eq. 5 and 7."""
    absent_classes: Literal["keep", "push"] = "keep"
    """What becomes of the prototype of a class that nobody uploaded this round."""
    prototype_epochs: Positive = 100
    """Epochs of ACTSP over all uploaded prototypes in each round."""
    prototype_batch_size: Positive = 32
    """Uploaded prototypes per mini-batch of ACTSP."""
    prototype_lr: NonNegative = 0.0
    """Learning rate of ACTSP; 0: the clients'."""
    # Importance
    importance: bool = True
    """I of Eq. 10; false is the ablation without I."""
    phi: Share = 0.8
    """φ of Eq. 10."""
    steepness: AboveZero = 10.0
    """k of Eq. 9."""
    importance_epsilon: AboveZero = 1e-8
    """ε in d̂ = 1 / (d + ε)."""
    importance_sigmoid: Literal["falling", "rising"] = "falling"
    """falling: Eq. 9 as printed. rising: as the text describes it."""
    normalize_importance: bool = False
    """Divide I by its mean over the public samples."""

    all_classes_down: ClassVar[bool] = True


class Client(PrototypeClient):
    """FedPKD's too."""

    config: DualConfig

    def __init__(self, context: ClientContext):
        super().__init__(context)
        self.student = Student(self)

    def loss(self, batch: Batch) -> Tensor:
        """Eq. 3, 17 to 19: cross-entropy + ε · MSE(feature, global prototype of its class)."""
        features_BK = self.features(batch)
        own = cross_entropy(self.model.head(features_BK), batch.labels_B)
        return own + self.pull(features_BK, batch.labels_B)

    def distillation_loss(self, logits_BC: Tensor, teacher_BC: Tensor) -> Tensor:
        """Eq. 14 to 16: η · KL + (1 − η) · CE with the server's pseudo-labels, of public samples."""
        config = self.config
        return client_loss(
            logits_BC, teacher_BC, eta=config.eta, direction=config.client_kl, temperature=config.temperature
        )

    def receive_setup(self, down: Arrays) -> None:
        self.student.public.receive(down)

    def receive(self, round: int, down: Arrays) -> None:
        super().receive(round, down)
        self.student.learn(round, down, self.distillation_loss, test=super().evaluate)

    def evaluate(self) -> Metrics:
        return self.student.before_and_after(super().evaluate())

    def upload(self) -> Arrays:
        return super().upload() | {"logits": self.student.public.logits()}

    def optimizer(self) -> torch.optim.Optimizer | None:
        return adam(self.model, self.config.adam)


class Server(PrototypeServer):
    def __init__(self, context: ServerContext):
        super().__init__(context)
        self.config: Config = context.config
        self.pupil = ServerModel(context, self.config.adam)
        self.prototypes = ServerPrototypes(
            context.task.num_classes,
            context.task.feature_dim,
            generator=context.streams.torch("trainable-prototypes"),
            device=context.device,
        )

    def setup(self, uploads: list[Upload]) -> Arrays:
        return public_samples.setup_arrays(self.config.public_data, self.config.public_dtype, self.pupil.public)

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        if not filled(uploads):
            return Step(down={})  # nobody who answered counts, and clients go on with what they have
        config = self.config
        # 1. ACTSP: all C prototypes are trained with a margin for each class (Eq. 5 to 7).
        uploaded = self.stack(uploads)
        prototypes, xi_metrics, xi_records = self._train_prototypes(round, uploaded)
        # 2. The clients' logits become one opinion on each public sample (Eq. 4), and that a pseudo-label (Eq. 8).
        opinions_PC = aggregate_logits(stacked(uploads, "logits", self.context.device), config.logit_weighting)
        labels_P = opinions_PC.argmax(dim=1)
        # 3. Samples that are near the prototype of their pseudo-label count more: I (Eq. 9 and 10).
        weights_P = self._importance(labels_P, prototypes)
        # 4. The server's model learns Υ (KL + I · CE) + (1 − Υ) MSE to the prototypes (Eq. 11 to 13).
        lesson = Lesson(
            opinions_PC, labels_P, weights_P, prototypes, config.upsilon, config.server_kl, config.temperature
        )
        mean_loss = self.pupil.learn(round, lesson.loss)
        # 5. Its logits go down beside the prototypes.
        logits_PC, metrics, records = after_the_lesson(self.pupil, mean_loss, labels_P)
        if config.importance:
            metrics |= {"importance_mean": float(weights_P.mean()), "importance_max": float(weights_P.max())}
            records["importance"] = weights_P.cpu().numpy()
        return self.step(round, uploaded, prototypes, xi_metrics, xi_records).plus(
            {"logits": logits_PC.cpu().numpy()}, metrics | self.test(round, self.pupil.model), records
        )

    def modules(self) -> dict[str, nn.Module]:
        return {"server_model": self.pupil.model, "prototypes": self.prototypes}

    def _train_prototypes(self, round: int, uploaded: Uploaded) -> tuple[ClassVectors, Metrics, Arrays]:
        config = self.config
        with self.context.stopwatch.part("prototypes"):
            margins_C, fit = self.prototypes.update(
                uploaded.vectors_NK,
                uploaded.labels_N,
                margin=config.margin,
                limit=config.zeta,
                printed_sign=config.margin_sign == "printed",
                keep_absent=config.absent_classes == "keep",
                epochs=config.prototype_epochs,
                batch_size=config.prototype_batch_size,
                lr=config.prototype_lr or self.context.experiment.train.lr,
                generator=self.context.streams.torch("server-order", round=round),
            )
        known = margins_C[~margins_C.isnan()]
        metrics = {
            "xi_mean": float(known.mean()) if len(known) else 0.0,
            "xi_max": float(known.max()) if len(known) else 0.0,
            "prototype_loss_first": fit.first_loss,
            "prototype_loss": fit.loss,
        }
        return ClassVectors.of_all(self.prototypes.latest_CK), metrics, {"class_margins": margins_C.cpu().numpy()}

    def _importance(self, labels_P: Tensor, prototypes: ClassVectors) -> Tensor:
        """I, (P,), by the features that the server's model has at the start of the round; 1 without it."""
        config = self.config
        if not config.importance:
            return torch.ones_like(labels_P, dtype=torch.float32)
        weights_P = importance(
            distances_to_class(self.pupil.features(), labels_P, prototypes),
            phi=config.phi,
            steepness=config.steepness,
            epsilon=config.importance_epsilon,
            sigmoid=config.importance_sigmoid,
        )
        return weights_P / weights_P.mean() if config.normalize_importance else weights_P
