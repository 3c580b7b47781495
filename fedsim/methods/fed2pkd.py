"""Fed2PKD: prototypical contrastive distillation and global feature distillation (Xie et al., IEEE CLOUD
2024).

Client: cross-entropy + 0.9 · L_ckd + 0.9 · L_gkd; cross-entropy alone in the first round. L_ckd is the
cross-entropy of similarities to all global prototypes, ((cos + 1) / 2) / τ. L_gkd is the mean of (1 − cos)
/ 2 between the client's features of a batch of public samples and the global features g of the same
samples. After training it sends its prototypes, and features and logits of the next batch. Prediction:
largest logit.

Server: the mean prototype of each class, and g = Σ wᵢ fᵢ / Σ wᵢ for each sample of the batch, where client
i weighs wᵢ = exp(−KL(softmax of the similarities of fᵢ to the global prototypes ‖ softmax of its logits)):
a client whose classifier says the same as the prototypes is believed more.

What travels: up features and logits of 50 public samples and one K-vector per class held; down the global
features of these samples, their numbers, and one K-vector per class that any client sent this round.

The server has no model, so `server_accuracy` does not exist. In its place `global_accuracy` is that of all
clients on the global test set by the nearest global prototype (largest cosine), as the published code has
it. With `server_model` the server trains one as in FedPKD, without the filter; clients then also send their
logits for all public samples.

Deliberate choices
- Each round's batch is drawn from the public samples (`data.public_samples`), which no client trains on;
  the published code draws it from the training set.
- The published code gives KL probabilities where it expects their logarithms: `feature_weights=published`.
- Prototypes are plain means over clients. In the published code a slip makes them weighted by class counts:
  `aggregation=weighted`, for which the counts travel.
- A class without a global prototype is left out of all softmaxes; the published code needs every class
  everywhere.
- The published runs have batches of 32, one local epoch and a momentum of 0.5: options of the experiment
  (`train.momentum`), not of the method, so that methods are compared under the same ones.

Dimensions: B batch, C classes, K features, M clients, b public samples of a round.
"""

from typing import Annotated, Literal

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, log_softmax, normalize

from fedsim import method
from fedsim.config import AboveZero, NonNegative, Positive, Section
from fedsim.contract import Arrays, Contract, Field, Payload, class_ids, sample_ids
from fedsim.data import Subset
from fedsim.equations.class_vectors import ClassVectors
from fedsim.equations.public_distillation import aggregate_logits, server_loss
from fedsim.errors import UserError
from fedsim.families import public_samples
from fedsim.families.prototypes import eval_pass, mean_per_class, stack_uploads
from fedsim.families.public_samples import DEFAULTS, ServerModel, ServerTraining, stacked
from fedsim.learning.evaluation import count_correct
from fedsim.learning.training import Batch, train_locally
from fedsim.method import About, ClientContext, Metrics, ServerContext, Setting, Step, Upload
from fedsim.seeds import Streams

__all__ = ["ABOUT", "DEFAULTS", "Client", "Config", "Server", "check", "contract", "sizes"]

ABOUT = About(
    title="Fed2PKD",
    paper="Xie et al., IEEE CLOUD 2024",
    evaluation="largest logit; on the global test set the clients by nearest prototype",
    needs=("public samples", "equal or projected feature sizes"),
)


class Config(Section, frozen=True, kw_only=True):
    """Fed2PKD's options."""

    contrast_weight: NonNegative = 0.9
    """Of L_ckd."""
    feature_weight: NonNegative = 0.9
    """Of L_gkd."""
    tau: AboveZero = 0.07
    """τ, the temperature of the similarities to prototypes, on clients and server."""
    batch: Positive = 50
    """Public samples that are looked at in a round."""
    feature_weights: Literal["kl", "published", "equal"] = "kl"
    """How the server weighs clients' features. published: KL as the published code has it. equal: all alike."""
    aggregation: Literal["mean", "weighted"] = "mean"
    """mean: every client's prototype counts alike. weighted: by its samples of the class; their counts travel."""
    public_data: Literal["known", "sent"] = "known"
    """known: clients own the data set and know the public samples by number. sent: once, at set-up."""
    public_dtype: Literal["float32", "uint8"] = "float32"
    """How public images travel if they do."""
    evaluate_globally: bool = True
    """Let every client also be tested on the global test set: `global_accuracy`."""
    server_model: str = ""
    """A model for the server, trained as FedPKD's; none by default."""
    server_epochs: Positive = 10
    """Epochs of the server's model in each round."""
    server_batch_size: Positive = 32
    """Public samples per mini-batch on the server."""
    server_lr: NonNegative = 0.0
    """Learning rate of the server's model; 0: the clients'."""
    upsilon: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Υ: share of distillation in the loss of the server's model."""


def contract(config: Config) -> Contract:
    prototypes = {"prototypes": Field(Payload.PROTOTYPES, "n K"), "class_ids": class_ids("n")}
    features = {"features": Field(Payload.FEATURES, "Nb K")}
    up = {**prototypes, **features, "batch_logits": Field(Payload.LOGITS, "Nb C")}
    if config.aggregation == "weighted":
        up["counts"] = Field(Payload.COUNTS, "n", "int32")
    if config.server_model:
        up["logits"] = Field(Payload.LOGITS, "Np C")
    return Contract(
        up=up,
        down={**prototypes, **features, "sample_ids": sample_ids("Nb")},
        setup_down=public_samples.setup_fields(config.public_data, config.public_dtype),
    )


def sizes(setting: Setting) -> dict[str, int]:
    return public_samples.sizes(setting) | {"Nb": setting.config.batch}


def check(setting: Setting) -> None:
    config: Config = setting.config
    public_samples.check(
        setting, source=config.public_data, dtype=config.public_dtype, server_model=config.server_model
    )
    num_public = setting.experiment.data.public_samples
    if config.batch > num_public:
        raise UserError(
            f"method.batch = {config.batch} is more than data.public_samples = {num_public}; lower it."
        )


# ------------------------------------------------------------------------------------------------ equations


def similarities(features_BK: Tensor, prototypes: ClassVectors, tau: float) -> Tensor:
    """((cos + 1) / 2) / τ, (B, C), to be taken the softmax of; −∞ for classes without a prototype."""
    cosines_BC = normalize(features_BK) @ normalize(prototypes.vectors_CK).T
    return ((cosines_BC + 1) / (2 * tau)).masked_fill(~prototypes.present_C, -torch.inf)


def contrast_loss(features_BK: Tensor, labels_B: Tensor, prototypes: ClassVectors, tau: float) -> Tensor:
    """L_ckd, the mean over the batch; a sample whose class has no prototype counts as 0."""
    present_B = prototypes.present_C[labels_B]
    labels_B = labels_B.where(present_B, -100)  # which cross_entropy gives a loss of 0
    losses_B = cross_entropy(similarities(features_BK, prototypes, tau), labels_B, reduction="none")
    return losses_B.mean()


def feature_loss(features_bK: Tensor, targets_bK: Tensor) -> Tensor:
    """L_gkd."""
    return ((1 - cosine_similarity(features_bK, targets_bK)) / 2).mean()


def global_features(
    features_MbK: Tensor,
    logits_MbC: Tensor,
    prototypes: ClassVectors,
    tau: float,
    kind: Literal["kl", "published", "equal"] = "kl",
) -> Tensor:
    """g, (b, K). Shares wᵢ / Σ w are the softmax of −KL over clients, which cannot underflow."""
    if kind == "equal" or not prototypes.any:
        return features_MbK.mean(dim=0)
    present_C = prototypes.present_C
    ours_Mbn = log_softmax(similarities(features_MbK.flatten(0, 1), prototypes, tau)[:, present_C], dim=1)
    theirs_Mbn = log_softmax(logits_MbC.flatten(0, 1)[:, present_C], dim=1)
    if kind == "published":
        theirs_Mbn = theirs_Mbn.exp()
    divergences_Mb = (ours_Mbn.exp() * (ours_Mbn - theirs_Mbn)).sum(dim=1).view(features_MbK.shape[:2])
    return ((-divergences_Mb).softmax(dim=0)[:, :, None] * features_MbK).sum(dim=0)


def batch_of_round(streams: Streams, round: int, num_public: int, size: int) -> np.ndarray:
    """Which public samples are looked at at the end of this round: the same for everyone, so nobody is told."""
    return np.sort(streams.numpy("public-batch", round=round).choice(num_public, size, replace=False))


# ------------------------------------------------------------------------------------------------ halves


class Client(method.Client):
    def __init__(self, context: ClientContext):
        super().__init__(context)
        self.config: Config = context.config
        task = context.task
        self.public: Subset | None = None
        if self.config.public_data == "known":
            self.public = public_samples.known(context)
        self.global_prototypes = ClassVectors.empty(task.num_classes, task.feature_dim, context.device)
        self.targets_bK = torch.zeros(0, task.feature_dim, device=context.device)
        self.batch_inputs = torch.zeros(0, device=context.device)
        self.round = 0

    def receive_setup(self, down: Arrays) -> None:
        self.public = public_samples.received(down["public"], self.context.task)

    def receive(self, round: int, down: Arrays) -> None:
        if not down:
            return
        device = self.context.device
        self.global_prototypes = ClassVectors.from_rows(
            down["prototypes"], down["class_ids"], self.context.task.num_classes, device
        )
        self.targets_bK = torch.from_numpy(down["features"]).to(device)
        self.batch_inputs, _ = next(self._samples(down["sample_ids"]).batches(len(self.targets_bK), device=device))

    def evaluate(self) -> Metrics:
        device, everyone = self.context.device, self.context.global_test
        own = count_correct(self.model, self.data.test, device)
        if everyone is None or not self.config.evaluate_globally or not self.global_prototypes.any:
            return own
        # The largest similarity is the largest cosine, whatever τ is.
        nearest = count_correct(
            self.model,
            everyone,
            device,
            forward=self.model.features,
            predict=lambda features_BK: similarities(features_BK, self.global_prototypes, 1.0).argmax(dim=1),
        )
        return own | {"global_correct": nearest["correct"], "global_tested": nearest["tested"]}

    def train(self, round: int) -> Metrics:
        config, prototypes = self.config, self.global_prototypes

        def loss(batch: Batch) -> Tensor:
            features_BK = self.model.features(batch.inputs)
            total = cross_entropy(self.model.head(features_BK), batch.labels_B)
            if prototypes.any:
                contrast = contrast_loss(features_BK, batch.labels_B, prototypes, config.tau)
                distilled = feature_loss(self.model.features(self.batch_inputs), self.targets_bK)
                total = total + config.contrast_weight * contrast + config.feature_weight * distilled
            return total

        self.round = round
        return {"loss": train_locally(self.context, round, loss)}

    def upload(self) -> Arrays:
        device, config = self.context.device, self.config
        means = eval_pass(self.context)
        rows_nK, ids_n = means.means().rows()
        num_public = len(self._samples())
        batch = self._samples(batch_of_round(self.context.streams, self.round, num_public, config.batch))
        features_bK, logits_bC = public_samples.features_and_logits(self.model, batch, device)
        arrays = {
            "prototypes": rows_nK,
            "class_ids": ids_n,
            "features": features_bK.cpu().numpy(),
            "batch_logits": logits_bC.cpu().numpy(),
        }
        if config.aggregation == "weighted":
            arrays["counts"] = means.weights_C.cpu().numpy()[ids_n].astype(np.int32)
        if config.server_model:
            arrays["logits"] = public_samples.public_logits(self.model, self._samples(), device).cpu().numpy()
        return arrays

    def _samples(self, rows: np.ndarray | None = None) -> Subset:
        """All public samples, or some of them."""
        assert self.public is not None, "the set-up comes before the first round"
        if rows is None:
            return self.public
        return Subset(self.public.dataset, self.public.indices[rows], labelled=False)


class Server(method.Server):
    def __init__(self, context: ServerContext):
        super().__init__(context)
        self.config: Config = context.config
        config = self.config
        self.pupil: ServerModel | None = None
        if config.server_model:
            lr = config.server_lr or context.experiment.train.lr
            training = ServerTraining(config.server_epochs, config.server_batch_size, lr)
            self.pupil = ServerModel(context, config.server_model, training)

    def setup(self, uploads: list[Upload]) -> Arrays:
        public = self.context.federation.public
        return public_samples.setup_arrays(self.config.public_data, self.config.public_dtype, public)

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        config, task, streams = self.config, self.context.task, self.context.streams
        uploaded = stack_uploads(uploads, "prototypes", task.feature_dim, task.num_classes, self.context.device)
        prototypes = mean_per_class(uploaded, task.num_classes)
        features_bK = global_features(
            stacked(uploads, "features", self.context.device),
            stacked(uploads, "batch_logits", self.context.device),
            prototypes,
            config.tau,
            config.feature_weights,
        )
        rows_nK, ids_n = prototypes.rows()
        num_public = len(self.context.federation.public)
        down = {
            "prototypes": rows_nK,
            "class_ids": ids_n,
            "features": features_bK.cpu().numpy(),
            "sample_ids": batch_of_round(streams, round, num_public, config.batch).astype(np.int32),
        }
        records = {"global_prototypes": rows_nK}
        if self.pupil is None:
            return Step(down, records=records)
        mean_loss = self._teach(round, self.pupil, uploads, prototypes)
        return Step(down, {"server_model_loss": mean_loss, **self.pupil.accuracy(round)}, records)

    def modules(self) -> dict[str, nn.Module]:
        return {} if self.pupil is None else {"server_model": self.pupil.model}

    def _teach(self, round: int, pupil: ServerModel, uploads: list[Upload], prototypes: ClassVectors) -> float:
        opinions_PC = aggregate_logits(stacked(uploads, "logits", self.context.device))
        labels_P = opinions_PC.argmax(dim=1)
        weights_P = torch.ones_like(opinions_PC[:, 0])

        def loss(logits_BC: Tensor, features_BK: Tensor, rows_B: Tensor) -> Tensor:
            return server_loss(
                logits_BC,
                features_BK,
                opinions_PC[rows_B],
                labels_P[rows_B],
                weights_P[rows_B],
                prototypes,
                upsilon=self.config.upsilon,
            )

        return pupil.learn(round, loss, torch.arange(len(labels_P), device=labels_P.device))
