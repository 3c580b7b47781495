"""FedKTL's options, and what follows from them for what travels. The method itself is in fedktl.py."""

import math
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from fedsim.config import AboveZero, Count, Fraction, NonNegative, Positive, Section
from fedsim.contract import Contract, Field, Payload, class_ids
from fedsim.errors import UserError
from fedsim.method import Setting, Task


class Published(NamedTuple):
    """The weights tuned for one kind of generator, and the size of its latents."""

    transfer_weight: float
    """μ."""
    mse_weight: float
    """λ."""
    server_lr: float
    """η_S."""
    latent_dim: int
    """H."""


PUBLISHED = {
    "stylegan_xl": Published(50.0, 1.0, 0.01, 512),
    "stylegan": Published(50.0, 0.1, 0.01, 512),
    "stable_diffusion": Published(100.0, 0.01, 0.1, 16384),
    "tiny": Published(50.0, 1.0, 0.01, 128),
}


class Config(Section, frozen=True, kw_only=True):
    """FedKTL's options."""

    generator: str = "tiny"
    """tiny (inside the package), a StyleGAN snapshot (.pkl), or the folder of a Stable Diffusion pipeline."""
    transfer: Literal["pairs", "mix", "none"] = "pairs"
    """What clients do with generated images. pairs: L^M. mix: train on them as samples of their classes (−Q̄).
    none: nothing, so nothing is generated and nothing travels (−L^M)."""
    transfer_weight: NonNegative | Literal["auto"] = "auto"
    """μ, the weight of L^M; auto: 50, with Stable Diffusion 100."""
    pairs_from: Literal["prototypes", "labels"] = "prototypes"
    """labels: C random labels of a conditional generator, drawn once; clients upload nothing (+CS)."""
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
        return PUBLISHED[self.kind].transfer_weight if self.transfer_weight == "auto" else self.transfer_weight

    def prototype_dim(self, task: Task) -> int:
        """P."""
        return task.feature_dim if self.classifier == "original" else self.etf_dim or task.num_classes


def contract(config: Config) -> Contract:
    if config.transfer == "none":
        return Contract()
    generated, note = {"images": Field(Payload.IMAGES, "C ch h w", config.image_dtype)}, ""
    if config.transfer == "pairs":
        generated["latents"] = Field(Payload.LATENTS, "C H")
        note = "H is 128 for tiny, 512 for StyleGAN, 16384 for Stable Diffusion 1.5"
    if not config.uploads:
        return Contract(setup_down=generated, note=note)
    size = "K" if config.classifier == "original" else config.etf_dim or "C"
    up = {"prototypes": Field(Payload.PROTOTYPES, f"n {size}"), "class_ids": class_ids("n")}
    return Contract(up=up, down=generated, note=note)


def sizes(setting: Setting) -> dict[str, int]:
    """H, where it is certain. Other generators may have any, and clients, who are asked too, have none to look at:
    there it is a free letter of the contract."""
    return rehearsal_sizes(setting) if setting.config.kind == "tiny" else {}


def rehearsal_sizes(setting: Setting) -> dict[str, int]:
    """H of the published networks: a rehearsal needs no generator."""
    return {"H": PUBLISHED[setting.config.kind].latent_dim}
