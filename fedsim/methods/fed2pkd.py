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

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, log_softmax, normalize

from fedsim import method
from fedsim.config import AboveZero, NonNegative, Positive, Section
from fedsim.contract import Arrays, Contract, Field, Payload, sample_ids
from fedsim.equations.class_vectors import ClassVectors
from fedsim.equations.public_distillation import Lesson, aggregate_logits
from fedsim.errors import UserError
from fedsim.families import public_samples
from fedsim.families.public_samples import DEFAULTS, NEEDS, PublicSamples, features_and_logits, stacked
from fedsim.families.server_model import ServerModel
from fedsim.families.server_model import check as check_models
from fedsim.families.uploads import COUNTS, PROTOTYPES, class_means, mean_per_class, pack, stack_uploads
from fedsim.learning.evaluation import count_correct
from fedsim.method import (
    About,
    Batch,
    ClientContext,
    Instead,
    Metrics,
    Reported,
    ServerContext,
    Setting,
    State,
    Step,
    Upload,
    filled,
)
from fedsim.seeds import Streams

__all__ = ["ABOUT", "DEFAULTS", "Client", "Config", "Server", "adapt", "check", "contract", "sizes"]

_RECEIVED = "received."
"""Before the names of what came down, in a client's state."""

ABOUT = About(
    title="Fed2PKD",
    paper="Xie et al., IEEE CLOUD 2024",
    evaluation="largest logit; on the global test set the clients by nearest prototype",
    needs=NEEDS,
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
    public_dtype: Literal["float32", "uint8", "int32"] = "float32"
    """How public samples travel if they do: images as floats or bytes, texts as int32."""
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
    features = {"features": Field(Payload.FEATURES, "Nb K")}
    up = {**PROTOTYPES, **features, "batch_logits": Field(Payload.LOGITS, "Nb C")}
    if config.aggregation == "weighted":
        up["counts"] = COUNTS
    if config.server_model:
        up["logits"] = Field(Payload.LOGITS, "Np C")
    return Contract(
        up=up,
        down={**PROTOTYPES, **features, "sample_ids": sample_ids("Nb")},
        setup_down=public_samples.setup_fields(config.public_data, config.public_dtype),
    )


def sizes(setting: Setting) -> dict[str, int]:
    return public_samples.sizes(setting) | {"Nb": setting.config.batch}


def adapt(setting: Setting) -> Iterator[Instead]:
    yield from public_samples.adapt(setting)
    if public_samples.is_small(setting):
        few = min(setting.config.batch, setting.federation.num_train // public_samples.SMALL_SHARE)
        yield Instead("method", "batch", few, "there are not more public samples")


def check(setting: Setting) -> None:
    config: Config = setting.config
    check_models(setting)
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
        self.public = PublicSamples(context)
        self.global_prototypes = ClassVectors.empty(task.num_classes, task.feature_dim, context.device)
        self.is_guided = False
        self.targets_bK = torch.zeros(0, task.feature_dim, device=context.device)
        self.batch_inputs = torch.zeros(0, device=context.device)
        self.round = 0
        self.received: Arrays = {}
        """What came down last. It may stay in force: after a round in which all dropped, nothing comes."""

    def receive_setup(self, down: Arrays) -> None:
        self.public.receive(down)

    def receive(self, round: int, down: Arrays) -> None:
        if not down:
            return
        self.received, device = down, self.context.device
        self.global_prototypes = ClassVectors.from_rows(
            down["prototypes"], down["class_ids"], self.context.task.num_classes, device
        )
        self.is_guided = self.global_prototypes.any
        self.targets_bK = torch.from_numpy(down["features"]).to(device)

    def evaluate(self) -> Metrics:
        own, everyone = super().evaluate(), self.context.global_test
        if everyone is None or not self.config.evaluate_globally or not self.is_guided:
            return own
        # The largest similarity is the largest cosine, whatever τ is.
        nearest = count_correct(
            self.model,
            everyone,
            self.context.device,
            forward=self.model.features,
            predict=lambda features_BK: similarities(features_BK, self.global_prototypes, 1.0).argmax(dim=1),
        )
        return own | {"global_correct": nearest["correct"], "global_tested": nearest["tested"]}

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy + 0.9 · L_ckd + 0.9 · L_gkd; cross-entropy alone in the first round."""
        config = self.config
        features_BK = self.model.features(batch.inputs)
        total = cross_entropy(self.model.head(features_BK), batch.labels_B)
        if self.is_guided:
            contrast = contrast_loss(features_BK, batch.labels_B, self.global_prototypes, config.tau)
            distilled = feature_loss(self.model.features(self.batch_inputs), self.targets_bK)
            total = total + config.contrast_weight * contrast + config.feature_weight * distilled
        return total

    def train(self, round: int) -> Reported:
        self.round = round
        if self.received:
            batch = self.public.subset(self.received["sample_ids"])
            self.batch_inputs, _ = next(batch.batches(len(self.targets_bK), device=self.context.device))
        return super().train(round)

    def upload(self) -> Arrays:
        config, context = self.config, self.context
        means = class_means(context)
        arrays = pack(means.means(), means.weights_C if config.aggregation == "weighted" else None)
        num_public = len(self.public.subset())
        batch = self.public.subset(batch_of_round(context.streams, self.round, num_public, config.batch))
        features_bK, logits_bC = features_and_logits(self.model, batch, context.device)
        arrays |= {"features": features_bK.cpu().numpy(), "batch_logits": logits_bC.cpu().numpy()}
        return arrays | ({"logits": self.public.logits()} if config.server_model else {})

    def state(self) -> State:
        return super().state() | {f"{_RECEIVED}{name}": array for name, array in self.received.items()}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        kept = {name.removeprefix(_RECEIVED): array for name, array in state.items() if name.startswith(_RECEIVED)}
        self.receive(0, kept)


class Server(method.Server):
    def __init__(self, context: ServerContext):
        super().__init__(context)
        self.config: Config = context.config
        self.pupil = ServerModel(context) if self.config.server_model else None

    def setup(self, uploads: list[Upload]) -> Arrays:
        public = self.context.federation.public
        return public_samples.setup_arrays(self.config.public_data, self.config.public_dtype, public)

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        if not filled(uploads):
            return Step(down={})  # nobody who answered counts, and clients go on with what they have
        config, task, device = self.config, self.context.task, self.context.device
        # 1. The mean prototype of each class.
        uploaded = stack_uploads(uploads, "prototypes", task.feature_dim, task.num_classes, device)
        prototypes = mean_per_class(uploaded, task.num_classes)
        # 2. g: the mean feature of each sample of the batch, by the clients whose classifiers agree with these.
        features_bK = global_features(
            stacked(uploads, "features", device),
            stacked(uploads, "batch_logits", device),
            prototypes,
            config.tau,
            config.feature_weights,
        )
        # 3. Both go down, with the numbers of the samples.
        num_public = len(self.context.federation.public)
        rows_b = batch_of_round(self.context.streams, round, num_public, config.batch)
        packed = pack(prototypes)
        down = packed | {"features": features_bK.cpu().numpy(), "sample_ids": rows_b.astype(np.int32)}
        # 4. The server's model, if there is one, learns what all clients say of all public samples.
        metrics = {} if self.pupil is None else self._teach(round, self.pupil, uploads, prototypes)
        return Step(down, metrics, {"global_prototypes": packed["prototypes"]})

    def modules(self) -> dict[str, nn.Module]:
        return {} if self.pupil is None else {"server_model": self.pupil.model}

    def _teach(self, round: int, pupil: ServerModel, uploads: list[Upload], prototypes: ClassVectors) -> Metrics:
        opinions_PC = aggregate_logits(stacked(uploads, "logits", self.context.device))
        labels_P, weights_P = opinions_PC.argmax(dim=1), torch.ones_like(opinions_PC[:, 0])
        lesson = Lesson(opinions_PC, labels_P, weights_P, prototypes, self.config.upsilon)
        mean_loss = pupil.learn(round, lesson.loss)
        return {"server_model_loss": mean_loss, **self.test(round, pupil.model)}
