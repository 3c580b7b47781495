"""ProtoNorm: prototypes aligned on the unit sphere and scaled up (Lee et al. 2025).

Server: mean of the uploaded prototypes (Eq. 7), then prototype alignment (PA; Eq. 8 to 14, in
fedsim/server_optimizers/prototype_alignment.py), which sends unit vectors spread as far apart as they go.
Client: cross-entropy + λ · φ(feature, γ · prototype of its class), prototype upscaling (PU; Eq. 4 and 15).
Prediction: nearest global prototype.

What travels: up one K-vector per class held, down one unit vector per class that any client sent this round.

Deliberate choices
- λ = 10 on the element-mean squared error, as in the published runs; the paper prints 1.
- γ is 20, which networks without batch normalisation and small batches can follow. The paper found 100 for
  CIFAR-10, 200 for CIFAR-100 and Flowers-102 and 400 for Tiny ImageNet, with batches of 32 and networks that
  mostly have it; its presets have these. On CNNs of HtCNN8 with batches of 10, γ = 100 lies beyond the edge of
  stability: a step is longer than the curvature allows, and learning sticks. A warning is given where features
  stay far shorter than γ.
- Eq. 6 predicts by the nearest local prototype, the published runs by the nearest global one, which is the
  default; `evaluate_by=local_prototype` is Eq. 6. With PA the scale γ does not alter a prediction, because
  all global prototypes have the same length.
- The paper stops PA when F_j hardly changes for 10 iterations. As in the published runs it is the mean ‖F_j‖,
  rounded to four decimals, that must stay the same.
- Classes that nobody uploaded are left out of PA; coincident prototypes are parted at random before it.
- Prototypes come from the freshly trained model, as in Algorithm 2. The published runs upload those of the
  model before training: `stale_prototypes=true`.
- Without PA the server sends FedProto's mean, or its direction with `normalize=true`.
"""

from dataclasses import replace
from typing import Annotated

from msgspec import Meta
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsim.config import AboveZero, Fraction, NonNegative, Positive
from fedsim.contract import Arrays
from fedsim.equations.class_vectors import ClassVectors
from fedsim.families.prototypes import PrototypeClient, PrototypeConfig, PrototypeServer, prototype_contract
from fedsim.families.uploads import Uploaded, mean_per_class
from fedsim.method import About, Batch, Metrics, Step, Upload
from fedsim.server_optimizers.prototype_alignment import align, hyperspherical_energy, unit

ABOUT = About(title="ProtoNorm", paper="Lee et al., 2025", evaluation="nearest global prototype")
contract = prototype_contract

JUDGED_ROUND, FAR_SHORTER = 10, 0.2
"""When the lengths of features are judged, and which share of γ is too little."""


class Config(PrototypeConfig, frozen=True, kw_only=True):
    """ProtoNorm's options."""

    prototype_scale: AboveZero = 20.0
    """γ: clients multiply the global prototypes by this before they use them (Eq. 15); the paper: 100 to 400."""
    upscaling: bool = True
    """PU on or off; off is γ = 1."""
    alignment: bool = True
    """PA on or off."""
    normalize: bool = False
    """Without PA: send unit vectors all the same."""
    kernel_s: NonNegative = 0.0
    """s of the Riesz energy that PA minimises (Eq. 8); 0: the logarithmic surrogate of the paper (Eq. 10)."""
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """μ of Eq. 12."""
    alignment_lr: AboveZero = 0.1
    """η of Eq. 12."""
    lr_decay: Fraction = 0.95
    """Factor on η every 10 iterations."""
    max_iterations: Positive = 500
    """T of Algorithm 1."""
    tolerance: NonNegative = 1e-4
    """ε: PA stops when the mean force, rounded to a multiple of it, was the same ten times in a row; 0: never."""

    @property
    def scale(self) -> float:
        return self.prototype_scale if self.upscaling else 1.0


class Client(PrototypeClient):
    def loss(self, batch: Batch) -> Tensor:
        """Eq. 4 and 15: cross-entropy + λ · φ(feature, γ · global prototype of its class)."""
        features_BK = self.features(batch)
        own = cross_entropy(self.model.head(features_BK), batch.labels_B)
        return own + self.pull(features_BK, batch.labels_B)


class Server(PrototypeServer):
    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        # 1. The mean over the clients that hold a class (Eq. 7).
        uploaded = self.stack(uploads)
        with self.context.stopwatch.part("prototypes"):
            means = mean_per_class(uploaded, self.context.task.num_classes)
            # 2. PA: their directions, spread as far apart as they go (Eq. 8 to 14).
            made = self._aligned(round, means) if self.context.config.alignment else self._unaligned(means)
        # 3. They go down, and clients scale them up (PU).
        return replace(self.step(round, uploaded, *made), warning=self._warning(round, uploaded))

    def _warning(self, round: int, uploaded: Uploaded) -> str:
        """Said once, when features have had the time to grow. After ReLU they reach about 0.7 γ at most, because a
        prototype has negative elements too."""
        length, scale = float(uploaded.vectors_NK.norm(dim=1).mean()), self.context.config.scale
        if round != JUDGED_ROUND or not length < FAR_SHORTER * scale:
            return ""
        return (
            f"prototypes of clients are {length:.3g} long, far shorter than method.prototype_scale = {scale:g} "
            "wants them; if the accuracy sticks, lower method.prototype_scale or train.lr."
        )

    def _aligned(self, round: int, means: ClassVectors) -> tuple[ClassVectors, Metrics, Arrays]:
        config: Config = self.context.config
        aligned = align(
            means.vectors_CK[means.present_C],
            s=config.kernel_s,
            momentum=config.momentum,
            lr=config.alignment_lr,
            decay=config.lr_decay,
            max_iterations=config.max_iterations,
            tolerance=config.tolerance,
            generator=self.context.streams.torch("coincident-prototypes", round=round),
        )
        vectors_CK = means.vectors_CK.clone()
        vectors_CK[means.present_C] = aligned.prototypes_nK
        metrics = {
            "alignment_iterations": aligned.iterations,
            "energy_before": aligned.energy_before,
            "energy": aligned.energy,
            "mean_force": aligned.mean_force,
        }
        records = {"alignment_distances": aligned.distances_T.numpy()}
        return ClassVectors(vectors_CK, means.present_C), metrics, records

    def _unaligned(self, means: ClassVectors) -> tuple[ClassVectors, Metrics, Arrays]:
        config: Config = self.context.config
        energy = hyperspherical_energy(means.vectors_CK[means.present_C], config.kernel_s)
        vectors_CK = unit(means.vectors_CK) if config.normalize else means.vectors_CK
        return ClassVectors(vectors_CK, means.present_C), {"energy": energy}, {}
