"""FedKTL: a generator on the server teaches the clients by an image and a latent for each class (Zhang et al.,
CVPR 2024).

Client: a linear layer h takes the features into the space of an ETF classifier, which is fixed and the same for
everyone. Loss: ArcFace of the cosines (Eq. 1) + μ · L^M (Eq. 4), the squared error of h'(features of a generated
image) against the latent of that image; ArcFace alone in the first round. h' is a linear layer that starts from
the same weights on every client in every round and is then thrown away. After training the client uploads its
prototypes, the mean outputs of h. Prediction: largest cosine. (Classifier and loss: fedsim/equations/etf.py.)

Server: trains F to turn prototypes into valid latents (Eq. 2 and 3, in
fedsim/server_optimizers/feature_transformer.py), and generates an image from the mean latent of each class.

What travels: up one P-vector per class held (P is K in the paper), down an image and a latent for all C classes
always. The ETF and the weights of h' come from the common seed, so nothing is sent for them.

Deliberate choices
- Latent centroids are means of F(P), as in Eq. 2. In the published runs they are weights of their own that start
  from N(0, 1): `trainable_centroids=true`. A class that nobody has uploaded yet has a random valid latent.
- Prototypes are the plain means that are printed, of outputs brought to length one; the published runs bring the
  means to length one again: `renormalize_prototypes=true`.
- Cosines are kept off ±1, where the angle has no derivative. The ETF needs no more than C − 1 dimensions.
- Each step takes as many pairs as a batch has samples, from reshuffled passes over all C whose last batch may be
  shorter, as in the published runs; Eq. 4 takes all C. A batch's own samples pass the network before its pairs.
- μ, λ and η_S belong to the generator: the published ones for StyleGAN-XL (taken to be the conditional
  ones), StyleGAN3 and Stable Diffusion. The tiny one has μ = 1, ours: its latents have a mean square of one, so
  with 50 L^M outweighs all else and clients learn less than without it.
- Generated images are shrunk to cover the clients' size and cut to it around the centre; for clients with grey
  images they become grey (ITU-R 601).

Ablations of table 7 and appendix G: −L^M `transfer=none`, or `transfer_weight=0` to see the images all the same;
−L^MSE `mse_weight=0`; −L^MMD `mmd_weight=0`; −ETF `classifier=original`, where prototypes are features; −Q̄
`transfer=mix`, where the images are put among the client's own in random places; +CS `pairs_from=labels`, where
pairs are drawn and sent once, at set-up; *L^A `arcface_scale=1 arcface_margin=0`. Noise of table 10: NC
`noisy_prototypes=true`, NG `noisy_pairs=true`; noise is FedPCL's, x (1 − p) + N(0, s²).

Dimensions: B batch, C classes, K features, P prototype, H latent, n classes held.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, normalize

from fedsim import method
from fedsim.config import AboveZero, Count, Fraction, NonNegative, Positive, Section
from fedsim.contract import Arrays, Contract, Field, Payload, class_ids
from fedsim.data.inputs import described
from fedsim.equations.class_vectors import ClassVectors
from fedsim.equations.etf import arcface_loss, fit_images, simplex_etf, with_noise
from fedsim.errors import UserError
from fedsim.families.image_pairs import ImagePairs, pair_fields
from fedsim.families.uploads import class_means, pack, stack_uploads
from fedsim.learning.evaluation import count_correct
from fedsim.learning.training import endless_rows
from fedsim.method import (
    About,
    Batch,
    ClientContext,
    Metrics,
    Reported,
    ServerContext,
    Setting,
    Step,
    Task,
    Upload,
)
from fedsim.server_optimizers.feature_transformer import FeatureTransformer

if TYPE_CHECKING:
    from fedsim.generators import Generator

ABOUT = About(
    title="FedKTL",
    paper="Zhang et al., CVPR 2024",
    evaluation="largest cosine with the fixed classifier",
    needs=("images", "an image generator on the server"),
)


class Published(NamedTuple):
    """μ, λ and η_S, which were tuned for each kind of generator, and H."""

    mu: float
    mse_weight: float
    server_lr: float
    latent_dim: int


PUBLISHED = {
    "stylegan_xl": Published(50.0, 1.0, 0.01, 512),
    "stylegan": Published(50.0, 0.1, 0.01, 512),
    "stable_diffusion": Published(100.0, 0.01, 0.1, 16384),
    "tiny": Published(1.0, 1.0, 0.01, 128),
}


class Config(Section, frozen=True, kw_only=True):
    """FedKTL's options."""

    # The generator, and what clients do with what it makes
    generator: str = "tiny"
    """tiny (inside the package), a StyleGAN snapshot (.pkl), or the folder of a Stable Diffusion pipeline."""
    transfer: Literal["pairs", "mix", "none"] = "pairs"
    """What clients do with generated images. pairs: L^M. mix: train on them as samples of their classes (−Q̄).
    none: nothing, so nothing is generated and nothing travels (−L^M)."""
    transfer_weight: NonNegative | Literal["auto"] = "auto"
    """μ, the weight of L^M; auto: 50 with StyleGAN, 100 with Stable Diffusion, 1 with tiny."""
    pairs_from: Literal["prototypes", "labels"] = "prototypes"
    """labels: C random labels of a conditional generator, drawn once; clients upload nothing (+CS)."""
    # The clients' classifier and prototypes
    classifier: Literal["etf", "original"] = "etf"
    """original: the model's own head and cross-entropy; prototypes are features (−ETF)."""
    etf_dim: Count = 0
    """P, K in the paper, the size of a prototype; at least C − 1. 0: C."""
    arcface_scale: AboveZero = 64.0
    """s of Eq. 1."""
    arcface_margin: Annotated[float, Meta(ge=0, lt=math.pi)] = 0.5
    """m of Eq. 1, in radians."""
    renormalize_prototypes: bool = False
    """Give the mean of the ETF outputs length one again, as in the published runs."""
    # The server's feature transformer
    mmd_weight: NonNegative = 1.0
    """The weight of L^MMD; 0 is the ablation without it."""
    mse_weight: NonNegative | Literal["auto"] = "auto"
    """λ, the weight of L^MSE; auto: 1, with StyleGAN2 and 3 0.1, with Stable Diffusion 0.01."""
    trainable_centroids: bool = False
    """Latent centroids are weights trained beside F, as in the published runs, not means of F(P)."""
    server_epochs: Positive = 100
    """E_S, epochs over all uploaded prototypes in each round."""
    server_batch_size: Annotated[int, Meta(ge=2)] = 100
    """B_S, prototypes per mini-batch on the server; one alone has no variance to normalise by."""
    server_lr: AboveZero | Literal["auto"] = "auto"
    """η_S, the learning rate of Adam on the server; auto: 0.01, with Stable Diffusion 0.1."""
    # What travels, and noise on it
    clip_norm: NonNegative = 100.0
    """Largest gradient norm of each network, on clients and server; 0: any."""
    image_dtype: Literal["float32", "uint8"] = "float32"
    """How images travel; uint8 is a quarter of the bytes and 256 levels."""
    noisy_prototypes: bool = False
    """Clients add noise to what they upload (NC)."""
    noisy_pairs: bool = False
    """The server adds noise to images and latents (NG)."""
    vector_noise: AboveZero = 0.05
    """s, the standard deviation of noise on prototypes and latents."""
    image_noise: AboveZero = 0.2
    """s of noise on images, whose values lie in [−1, 1]."""
    noise_coefficient: Fraction = 0.2
    """p, the share by which noise fades what it is added to."""

    def __post_init__(self) -> None:
        if self.etf_dim and self.classifier == "original":
            raise UserError(
                f"method.etf_dim = {self.etf_dim} needs method.classifier = etf; leave one of them out."
            )

    @property
    def uploads(self) -> bool:
        """Whether the server learns from prototypes."""
        return self.transfer != "none" and self.pairs_from == "prototypes"

    @property
    def kind(self) -> str:
        """Of generator, as far as its name tells. Clients know no more of it."""
        if self.generator in ("", "tiny"):
            return "tiny"
        return "stylegan" if Path(self.generator).suffix == ".pkl" else "stable_diffusion"

    @property
    def mu(self) -> float:
        """μ as a number."""
        return PUBLISHED[self.kind].mu if self.transfer_weight == "auto" else self.transfer_weight

    def prototype_dim(self, task: Task) -> int:
        """P."""
        return task.feature_dim if self.classifier == "original" else self.etf_dim or task.num_classes


def contract(config: Config) -> Contract:
    if config.transfer == "none":
        return Contract()
    generated = pair_fields(config.image_dtype, with_latents=config.transfer == "pairs")
    note = "H is 128 for tiny, 512 for StyleGAN, 16384 for Stable Diffusion 1.5" if "latents" in generated else ""
    if not config.uploads:
        return Contract(setup_down=generated, note=note)
    size = "K" if config.classifier == "original" else config.etf_dim or "C"
    prototypes = Field(Payload.PROTOTYPES, f"n {size}")
    return Contract(up={"prototypes": prototypes, "class_ids": class_ids()}, down=generated, note=note)


def sizes(setting: Setting) -> dict[str, int]:
    """H, where it is certain. Other generators may have any, and clients, who are asked too, have none to look at:
    there it is a free letter of the contract."""
    return rehearsal_sizes(setting) if setting.config.kind == "tiny" else {}


def rehearsal_sizes(setting: Setting) -> dict[str, int]:
    """H of the published networks: a rehearsal needs no generator."""
    return {"H": PUBLISHED[setting.config.kind].latent_dim}


def check(setting: Setting) -> None:
    """All that can be wrong but for the generator, which the server opens before any client starts.

    Clients are forked from where this runs, so it must not load what they must not have.
    """
    config, task = setting.config, setting.task
    least = task.num_classes - 1
    if config.etf_dim and config.etf_dim < least:
        raise UserError(
            f"method.etf_dim = {config.etf_dim} is too small for {task.num_classes} classes; "
            f"give at least {least}, or 0 for {task.num_classes}."
        )
    sample = described(task.input_shape)
    if config.transfer != "none" and sample.kind != "image":
        raise UserError(
            f"fedktl needs images, but a sample of this data set is {sample}; choose another data set or method."
        )


class Client(method.Client):
    pairs: ImagePairs | None = None
    projection: nn.Linear | None = None
    """h', while pairs are trained on."""

    def __init__(self, context: ClientContext):
        super().__init__(context)
        self.config: Config = context.config
        task, self.dim = context.task, self.config.prototype_dim(context.task)
        self.prototypes = ClassVectors.empty(task.num_classes, self.dim, context.device)
        self.is_etf = self.config.classifier == "etf"
        if self.is_etf:
            self.etf_CP = simplex_etf(task.num_classes, self.dim, context.streams.torch("etf")).to(context.device)
            with context.streams.seeded("etf-projection"):
                self.model.head = nn.Linear(task.feature_dim, self.dim).to(context.device)  # h

    def receive_setup(self, down: Arrays) -> None:
        self.receive(0, down)

    def receive(self, round: int, down: Arrays) -> None:
        if down:
            self.pairs = ImagePairs.unpack(down, self.context.device)

    def evaluate(self) -> Metrics:
        """By the largest cosine, for which the length of an output does not matter."""
        if not self.is_etf:
            return super().evaluate()

        def predict(outputs_BP: Tensor) -> Tensor:
            return (outputs_BP @ self.etf_CP.T).argmax(dim=1)

        return count_correct(
            self.model, self.data.test, self.context.device, predict=predict, further=self.measures_further
        )

    def loss(self, batch: Batch) -> Tensor:
        """L^A + μ · L^M; L^A alone without pairs."""
        if self.pairs is None or self.projection is None:
            return self.classification_loss(batch)
        # Own samples pass the network first: running statistics of batch normalisation forget what came before.
        own = self.classification_loss(batch)
        return own + self.config.mu * self.transfer_loss(self.pairs, self.projection)

    def classification_loss(self, batch: Batch) -> Tensor:
        """L^A, Eq. 1."""
        config, outputs_BP = self.config, self.model(batch.inputs)
        if not self.is_etf:
            return cross_entropy(outputs_BP, batch.labels_B)
        cosines_BC = normalize(outputs_BP) @ self.etf_CP.T
        return arcface_loss(cosines_BC, batch.labels_B, scale=config.arcface_scale, margin=config.arcface_margin)

    def transfer_loss(self, pairs: ImagePairs, projection: nn.Linear) -> Tensor:
        """L^M, Eq. 4, of some pairs. Images pass the extractor alone: batch normalisation sees them apart."""
        rows_B = next(self.pair_rows)
        return mse_loss(projection(self.model.features(pairs.images[rows_B])), pairs.latents_CH[rows_B])

    def train(self, round: int) -> Reported:
        config, context, data = self.config, self.context, self.data.train
        if self.pairs and config.transfer == "mix":
            draw = context.streams.numpy("mixture", client=context.client, round=round)
            data = self.pairs.among(data, draw)
        elif self.pairs and config.mu > 0:
            self.pair_rows = self._pair_rows(round)
            self.projection = self._pair_projection(self.pairs.latents_CH.shape[1])
        modules = [module for module in (self.model, self.projection) if module is not None]
        mean_loss = self.train_locally(round, modules=modules, data=data, clip_norm=config.clip_norm)
        self.projection = None
        if config.uploads:
            self.prototypes = self._collect_prototypes(round)
        return {"loss": mean_loss}

    def upload(self) -> Arrays:
        return pack(self.prototypes) if self.config.uploads else {}

    def _pair_projection(self, latent_dim: int) -> nn.Linear:
        """h', the same for every client and round."""
        with self.context.streams.seeded("pair-projection"):
            layer = nn.Linear(self.context.task.feature_dim, latent_dim)
        return layer.to(self.context.device)

    def _pair_rows(self, round: int) -> Iterator[Tensor]:
        """Which pairs each step takes: as many as a batch has samples, or what a pass over all has left."""
        draw = self.context.streams.numpy("pair-order", client=self.context.client, round=round)
        size = self.context.experiment.train.batch_size
        return endless_rows(self.context.task.num_classes, size, draw, self.context.device)

    def _collect_prototypes(self, round: int) -> ClassVectors:
        """Mean outputs of the trained model, or features, with what is to be done to them before they travel."""
        context, config, model = self.context, self.config, self.model
        forward = (lambda inputs: normalize(model(inputs))) if self.is_etf else model.features
        means = class_means(context, forward, self.dim).means()
        vectors_CP = means.vectors_CK
        if config.renormalize_prototypes and self.is_etf:
            vectors_CP = normalize(vectors_CP)
        if config.noisy_prototypes:
            draw = context.streams.torch("prototype-noise", client=context.client, round=round)
            vectors_CP = with_noise(vectors_CP, config.vector_noise, config.noise_coefficient, draw)
        return ClassVectors(vectors_CP, means.present_C)


class Server(method.Server):
    def __init__(self, context: ServerContext):
        super().__init__(context)
        self.config: Config = context.config
        self.transformer: FeatureTransformer | None = None
        self.labelled_records: Arrays = {}
        if self.config.transfer == "none":
            return
        from fedsim import generators  # clients share this module, and must not load what only the server needs

        self.generator = self.make_generator(context)
        generators.require_fit(self.generator, context.task.input_shape)
        if self.config.uploads:
            self.transformer = self._new_transformer()
        else:  # +CS: one latent for each of C labels
            draw = context.streams.torch("labelled-latents")
            labels_C = generators.choose_labels(self.generator, context.task.num_classes, draw)
            self.labelled_CH = self.generator.draw_labelled(labels_C, draw)

    def make_generator(self, context: ServerContext) -> "Generator":
        """What an own method overrides that brings a generator of its own."""
        from fedsim import generators

        return generators.load(self.config.generator, context.device)

    def setup(self, uploads: list[Upload]) -> Arrays:
        if self.config.transfer == "none" or self.config.uploads:
            return {}
        down, self.labelled_records = self._pairs(None, self.labelled_CH)
        return down

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        if self.transformer is None:
            return Step(down={}, records=self.labelled_records)
        config, context = self.config, self.context
        # 1. F learns to turn the uploaded prototypes into valid latents (Eq. 2 and 3).
        dim, valid = config.prototype_dim(context.task), context.streams.torch("valid-latents", round=round)
        uploaded = stack_uploads(uploads, "prototypes", dim, context.task.num_classes, context.device)
        is_xl = config.kind == "stylegan" and self.generator.num_labels > 0
        published = PUBLISHED["stylegan_xl" if is_xl else config.kind]
        with context.stopwatch.part("feature transformer"):
            fit = self.transformer.fit(
                uploaded.vectors_NK,
                uploaded.labels_N,
                draw_valid=lambda num: self.generator.draw(num, valid),
                epochs=config.server_epochs,
                batch_size=config.server_batch_size,
                lr=published.server_lr if config.server_lr == "auto" else config.server_lr,
                mmd_weight=config.mmd_weight,
                mse_weight=published.mse_weight if config.mse_weight == "auto" else config.mse_weight,
                clip_norm=config.clip_norm,
                generator=context.streams.torch("server-order", round=round),
            )
        # 2. The mean latent of each class goes down with the image that is generated from it.
        down, records = self._pairs(round, self.transformer.centroids_CH.detach().clone())
        metrics = {"mmd_first": fit.mmd_first, "mse_first": fit.mse_first, "mmd": fit.mmd, "mse": fit.mse}
        return Step(down, metrics, records)

    def modules(self) -> dict[str, nn.Module]:
        return {} if self.transformer is None else {"transformer": self.transformer}

    def _new_transformer(self) -> FeatureTransformer:
        config, context = self.config, self.context
        num_classes, draw = context.task.num_classes, context.streams.torch("centroids")
        if config.trainable_centroids:
            centroids_CH = torch.randn(num_classes, self.generator.latent_dim, generator=draw)
        else:
            centroids_CH = self.generator.draw(num_classes, draw)
        dim, is_trainable = config.prototype_dim(context.task), config.trainable_centroids
        with context.streams.seeded("feature-transformer"):
            return FeatureTransformer(dim, centroids_CH, trainable_centroids=is_trainable, device=context.device)

    def _pairs(self, round: int | None, latents_CH: Tensor) -> tuple[Arrays, Arrays]:
        """What goes down, and the images for the record."""
        config, context = self.config, self.context
        with context.stopwatch.part("images"):
            images = fit_images(self.generator.images(latents_CH), context.task.input_shape) * 2 - 1
        pairs = ImagePairs(images, latents_CH if config.transfer == "pairs" else latents_CH[:, :0])
        if config.noisy_pairs:
            draw = context.streams.torch("pair-noise", round=round)
            pairs = pairs.noisy(config.image_noise, config.vector_noise, config.noise_coefficient, draw)
        return pairs.pack(config.image_dtype), {"images": pairs.pixels()}
