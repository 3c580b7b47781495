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
- Each step takes as many pairs as a batch has samples, from reshuffled passes over all C; Eq. 4 takes all C.
- μ, λ and η_S belong to the generator: the published ones for StyleGAN-XL (taken to be the conditional
  ones), StyleGAN3 and Stable Diffusion.
- Generated images are shrunk to cover the clients' size and cut to it around the centre; for clients with grey
  images they become grey (ITU-R 601).

Ablations of table 7 and appendix G: −L^M `transfer=none`, or `transfer_weight=0` to see the images all the same;
−L^MSE `mse_weight=0`; −L^MMD `mmd_weight=0`; −ETF `classifier=original`, where prototypes are features; −Q̄
`transfer=mix`, where the images are put among the client's own in random places; +CS `pairs_from=labels`, where
pairs are drawn and sent once, at set-up; *L^A `arcface_scale=1 arcface_margin=0`. Noise of table 10: NC
`noisy_prototypes=true`, NG `noisy_pairs=true`; noise is FedPCL's, x (1 − p) + N(0, s²).

Dimensions: B batch, C classes, K features, P prototype, H latent, n classes held.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, normalize

from fedsim import method
from fedsim.contract import Arrays
from fedsim.data import Dataset, Subset
from fedsim.equations.class_vectors import ClassMeans, ClassVectors
from fedsim.equations.etf import arcface_loss, fit_images, simplex_etf, to_bytes, with_noise
from fedsim.errors import UserError
from fedsim.families.prototypes import stack_uploads
from fedsim.learning.evaluation import count_correct, outputs
from fedsim.learning.training import Batch, run_epochs, samples_per_epoch, train_locally
from fedsim.method import About, ClientContext, Metrics, ServerContext, Setting, Step, Task, Upload
from fedsim.methods._fedktl_options import PUBLISHED, Config, contract, rehearsal_sizes, sizes
from fedsim.server_optimizers.feature_transformer import FeatureTransformer

if TYPE_CHECKING:  # clients share this module, and must not load what only the server needs
    from fedsim.generators import Generator

ABOUT = About(
    title="FedKTL",
    paper="Zhang et al., CVPR 2024",
    evaluation="largest cosine with the fixed classifier",
    needs=("images", "an image generator on the server"),
)
__all__ = ["ABOUT", "Client", "Config", "Server", "check", "contract", "rehearsal_sizes", "sizes"]


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
    if config.transfer != "none" and len(task.input_shape) != 3:
        raise UserError(
            f"fedktl needs images, but a sample of this data set is {task.input_shape[0]} numbers; "
            "choose another data set or method."
        )


# ------------------------------------------------------------------------------------------------ client


class Client(method.Client):
    def __init__(self, context: ClientContext):
        super().__init__(context)
        self.config: Config = context.config
        task = context.task
        dim = self.config.prototype_dim(task)
        self.prototypes = ClassVectors.empty(task.num_classes, dim, context.device)
        self.images: Tensor | None = None  # (C, ch, h, w) in [−1, 1]
        self.latents_CH: Tensor | None = None
        if self.config.classifier == "etf":
            self.etf_CP = simplex_etf(task.num_classes, dim, context.streams.torch("etf")).to(context.device)
            with context.streams.seeded("etf-projection"):
                self.model.head = nn.Linear(task.feature_dim, dim).to(context.device)  # h

    def receive_setup(self, down: Arrays) -> None:
        self._keep(down)

    def receive(self, round: int, down: Arrays) -> None:
        self._keep(down)

    def evaluate(self) -> Metrics:
        predict = self._nearest_class if self.config.classifier == "etf" else None
        return count_correct(self.model, self.data.test, self.context.device, predict=predict)

    def train(self, round: int) -> Metrics:
        if self.config.transfer == "mix" and self.images is not None:
            mean_loss = self._train_on_mixture(round, self.images)
        elif self.config.mu > 0 and self.images is not None and self.latents_CH is not None:
            mean_loss = self._train_with_pairs(round, self.images, self.latents_CH)
        else:
            mean_loss = train_locally(self.context, round, self._own_loss, clip_norm=self.config.clip_norm)
        if self.config.uploads:
            self.prototypes = self._collect_prototypes(round)
        return {"loss": mean_loss}

    def upload(self) -> Arrays:
        if not self.config.uploads:
            return {}
        rows_nP, ids_n = self.prototypes.rows()
        return {"prototypes": rows_nP, "class_ids": ids_n}

    def _keep(self, down: Arrays) -> None:
        if "images" in down:
            images = torch.from_numpy(down["images"]).to(self.context.device)
            self.images = images.float() / 127.5 - 1 if images.dtype == torch.uint8 else images
        if "latents" in down:
            self.latents_CH = torch.from_numpy(down["latents"]).to(self.context.device)

    def _own_loss(self, batch: Batch) -> Tensor:
        """L^A."""
        made_BP = self.model(batch.inputs)
        if self.config.classifier == "original":
            return cross_entropy(made_BP, batch.labels_B)
        return arcface_loss(
            normalize(made_BP) @ self.etf_CP.T,
            batch.labels_B,
            scale=self.config.arcface_scale,
            margin=self.config.arcface_margin,
        )

    def _train_with_pairs(self, round: int, images: Tensor, latents_CH: Tensor) -> float:
        """L^A + μ L^M. Images pass through the extractor by themselves, so batch normalisation sees them apart."""
        rows = self._pair_rows(round)
        projection = self._pair_projection(latents_CH.shape[1])

        def loss(batch: Batch) -> Tensor:
            rows_B = next(rows)
            latents_BH = projection(self.model.features(images[rows_B]))
            transfer = mse_loss(latents_BH, latents_CH[rows_B])
            return self._own_loss(batch) + self.config.mu * transfer

        modules = [self.model, projection]
        return train_locally(self.context, round, loss, modules=modules, clip_norm=self.config.clip_norm)

    def _pair_projection(self, latent_dim: int) -> nn.Linear:
        """h', the same for every client and round."""
        with self.context.streams.seeded("pair-projection"):
            layer = nn.Linear(self.context.task.feature_dim, latent_dim)
        return layer.to(self.context.device)

    def _pair_rows(self, round: int) -> Iterator[Tensor]:
        """Which pairs each step takes: passes over all C in random order, cut into batches, for ever."""
        num = self.context.task.num_classes
        size = min(self.context.experiment.train.batch_size, num)
        draw = self.context.streams.numpy("pair-order", client=self.context.client, round=round)
        waiting = np.zeros(0, np.int64)
        while True:
            if len(waiting) < size:
                waiting = np.concatenate([waiting, draw.permutation(num)])
            yield torch.from_numpy(waiting[:size]).to(self.context.device)
            waiting = waiting[size:]

    def _train_on_mixture(self, round: int, images: Tensor) -> float:
        """L^A on the client's own samples and (I^c, c) for all classes, in a random order."""
        own, context = self.data.train, self.context
        made = images.cpu().numpy()
        if own.dataset.inputs.dtype == np.uint8:
            made = to_bytes(made).transpose(0, 2, 3, 1)
        inputs = np.concatenate([np.take(own.dataset.inputs, own.indices, axis=0), made])
        labels = np.concatenate([own.labels, np.arange(len(images))])
        order = context.streams.numpy("mixture", client=context.client, round=round).permutation(len(labels))
        mixture = Subset(Dataset("mixture", inputs, labels, len(images), len(labels)), order)
        return run_epochs(
            self._own_loss,
            [self.model],
            mixture,
            context.experiment.train,
            streams=context.streams,
            client=context.client,
            round=round,
            device=context.device,
            clip_norm=self.config.clip_norm,
        )

    def _collect_prototypes(self, round: int) -> ClassVectors:
        """Mean outputs of the samples that an epoch of training covers, in evaluation mode."""
        context, config = self.context, self.config
        etf = config.classifier == "etf"
        means = ClassMeans(context.task.num_classes, config.prototype_dim(context.task), context.device)
        num_samples = samples_per_epoch(len(self.data.train), context.experiment.train)
        forward = self.model if etf else self.model.features
        for made_BP, labels_B in outputs(
            self.model, self.data.train, context.device, forward=forward, num_samples=num_samples
        ):
            means.add(normalize(made_BP) if etf else made_BP, labels_B)
        prototypes = means.means()
        vectors_CP = prototypes.vectors_CK
        if config.renormalize_prototypes and etf:
            vectors_CP = normalize(vectors_CP)
        if config.noisy_prototypes:
            draw = context.streams.torch("prototype-noise", client=context.client, round=round)
            vectors_CP = with_noise(vectors_CP, config.vector_noise, config.noise_coefficient, draw)
        return ClassVectors(vectors_CP, prototypes.present_C)

    def _nearest_class(self, outputs_BP: Tensor) -> Tensor:
        """The largest cosine; the length of the output does not matter for it."""
        return (outputs_BP @ self.etf_CP.T).argmax(dim=1)


# ------------------------------------------------------------------------------------------------ server


class Server(method.Server):
    def __init__(self, context: ServerContext):
        super().__init__(context)
        self.config: Config = context.config
        self.transformer: FeatureTransformer | None = None
        self.labelled_records: Arrays = {}
        if self.config.transfer == "none":
            return
        self.generator = open_generator(self.config, context.task, context.device)
        if self.config.uploads:
            self.transformer = self._new_transformer()

    def setup(self, uploads: list[Upload]) -> Arrays:
        if self.config.transfer == "none" or self.config.uploads:
            return {}
        down, self.labelled_records = self._pairs(None, self._labelled_latents())
        return down

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        if self.transformer is None:
            return Step(down={}, records=self.labelled_records)
        config, task, streams = self.config, self.context.task, self.context.streams
        dim = config.prototype_dim(task)
        uploaded = stack_uploads(uploads, "prototypes", dim, task.num_classes, self.context.device)
        valid = streams.torch("valid-latents", round=round)
        is_xl = config.kind == "stylegan" and self.generator.num_labels > 0
        published = PUBLISHED["stylegan_xl" if is_xl else config.kind]
        with self.context.stopwatch.part("feature transformer"):
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
                generator=streams.torch("server-order", round=round),
            )
        down, records = self._pairs(round, self.transformer.centroids_CH.detach().clone())
        metrics = {"mmd_first": fit.mmd_first, "mse_first": fit.mse_first, "mmd": fit.mmd, "mse": fit.mse}
        return Step(down, metrics, records)

    def modules(self) -> dict[str, nn.Module]:
        return {} if self.transformer is None else {"transformer": self.transformer}

    def _new_transformer(self) -> FeatureTransformer:
        config, context = self.config, self.context
        if config.trainable_centroids:
            num, draw = context.task.num_classes, context.streams.torch("centroids")
            centroids_CH = torch.randn(num, self.generator.latent_dim, generator=draw)
        else:
            centroids_CH = self.generator.draw(context.task.num_classes, context.streams.torch("centroids"))
        with context.streams.seeded("feature-transformer"):
            return FeatureTransformer(
                config.prototype_dim(context.task),
                centroids_CH,
                trainable_centroids=config.trainable_centroids,
                device=context.device,
            )

    def _labelled_latents(self) -> Tensor:
        """+CS: one latent for each of C labels."""
        from fedsim import generators

        draw = self.context.streams.torch("labelled-latents")
        labels_C = generators.choose_labels(self.generator, self.context.task.num_classes, draw)
        return self.generator.draw_labelled(labels_C, draw)

    def _pairs(self, round: int | None, latents_CH: Tensor) -> tuple[Arrays, Arrays]:
        """What goes down, and the images for the record."""
        config = self.config
        with self.context.stopwatch.part("images"):
            images = fit_images(self.generator.images(latents_CH), self.context.task.input_shape) * 2 - 1
        if config.noisy_pairs:
            draw = self.context.streams.torch("pair-noise", round=round)
            images = with_noise(images, config.image_noise, config.noise_coefficient, draw)
            latents_CH = with_noise(latents_CH, config.vector_noise, config.noise_coefficient, draw)
        floats = images.cpu().numpy()
        pixels = to_bytes(floats)
        down = {"images": pixels if config.image_dtype == "uint8" else floats}
        if config.transfer == "pairs":
            down["latents"] = latents_CH.cpu().numpy()
        return down, {"images": pixels}


def open_generator(config: Config, task: Task, device: torch.device) -> Generator:
    """The server's generator, or the reason why its images are of no use to these clients."""
    from fedsim import generators

    source = generators.load(config.generator, device)
    (channels, height, width), (made_channels, made_height, made_width) = task.input_shape, source.image_shape
    if made_height < height or made_width < width:
        raise UserError(
            f"the generator {source.name} makes images of {made_height}x{made_width} pixels, but the clients' are "
            f"{height}x{width}; choose a larger one with method.generator."
        )
    if channels != made_channels and {channels, made_channels} != {1, 3}:
        raise UserError(
            f"the generator {source.name} makes images of {made_channels} channels, the clients' have {channels}; "
            "choose another with method.generator."
        )
    if config.pairs_from == "labels":
        generators.choose_labels(source, task.num_classes, torch.Generator())
    return source
