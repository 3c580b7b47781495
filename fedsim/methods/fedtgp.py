"""FedTGP: trainable global prototypes with an adaptive margin (Zhang et al., AAAI 2024).

Client: cross-entropy + λ · φ(feature, global prototype of its class), Eq. 11; cross-entropy alone in the
first round. Server: trains prototypes P̂ close to the uploaded ones of their class and far from all others
(Eq. 5 to 10, in fedsim/server_optimizers/tgp.py). Prediction: nearest global prototype.

What travels: up one K-vector per class held and no counts, down all C prototypes always.

Deliberate choices
- δ(t) = min(max_c min_{c'≠c} ‖Q_c − Q_c'‖, τ), with Q_c the unweighted mean of the uploads: the largest
  margin among class centres, as the text and all published runs have it. Eq. 9 prints min and max the other
  way round. Classes that nobody uploaded are left out; with a single class δ = τ.
- φ is the element-mean squared error with λ = 10 of the published runs (`distance=l2`: the printed pair).
- Prototypes come from the freshly trained model, as in Algorithm 1. The published runs upload those of the
  model before training: `stale_prototypes=true`.
- Distances on the server are kept above zero, where their gradient is not defined.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsim.config import AboveZero, Count, NonNegative, Positive
from fedsim.equations.class_vectors import ClassVectors
from fedsim.families.prototypes import PrototypeClient, PrototypeConfig, PrototypeServer, prototype_contract
from fedsim.families.uploads import Uploaded, many_steps, mean_per_class
from fedsim.method import About, Batch, ServerContext, Step, Upload
from fedsim.server_optimizers.tgp import TrainablePrototypes, adaptive_margin

ABOUT = About(title="FedTGP", paper="Zhang et al., AAAI 2024", evaluation="nearest global prototype")
contract = prototype_contract
notes = many_steps


class Config(PrototypeConfig, frozen=True, kw_only=True):
    """FedTGP's options."""

    margin: Literal["adaptive", "fixed", "none"] = "adaptive"
    """δ. adaptive: Eq. 9. fixed: always τ (ablation FM). none: 0, standard contrastive loss (SCL)."""
    tau: AboveZero = 100.0
    """τ, the largest margin."""
    use_transform: bool = True
    """Whether F processes the trainable vectors; false is the ablation without F."""
    server_epochs: Positive = 100
    """S, epochs over all uploaded prototypes in each round."""
    server_batch_size: Count = 0
    """Prototypes per mini-batch on the server; 0: the clients' batch size."""
    server_lr: NonNegative = 0.0
    """Learning rate of the server; 0: the clients' learning rate."""

    all_classes_down: ClassVar[bool] = True


class Client(PrototypeClient):
    def loss(self, batch: Batch) -> Tensor:
        """Eq. 11: cross-entropy + λ · φ(feature, global prototype of its class)."""
        features_BK = self.features(batch)
        own = cross_entropy(self.model.head(features_BK), batch.labels_B)
        return own + self.pull(features_BK, batch.labels_B)


class Server(PrototypeServer):
    def __init__(self, context: ServerContext):
        super().__init__(context)
        self.config: Config = context.config
        self.trainable = TrainablePrototypes(
            context.task.num_classes,
            context.task.feature_dim,
            generator=context.streams.torch("trainable-prototypes"),
            use_transform=self.config.use_transform,
            device=context.device,
        )

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        config, train = self.config, self.context.experiment.train
        uploaded = self.stack(uploads)
        with self.context.stopwatch.part("prototypes"):
            # 1. The margin δ that the round's class centres allow (Eq. 9).
            margin = self._margin(uploaded)
            # 2. P̂ is trained towards the uploaded prototypes of its class and away from all others (Eq. 10).
            fit = self.trainable.fit(
                uploaded.vectors_NK,
                uploaded.labels_N,
                margins_C=torch.full((self.context.task.num_classes,), margin, device=self.context.device),
                epochs=config.server_epochs,
                batch_size=config.server_batch_size or train.batch_size,
                lr=config.server_lr or train.lr,
                generator=self.context.streams.torch("server-order", round=round),
            )
            with torch.no_grad():
                prototypes = ClassVectors.of_all(self.trainable().clone())
        # 3. All C of them go down.
        metrics = {
            "margin_delta": margin,
            "server_loss_first": fit.first_loss,
            "server_loss": fit.loss,
            "server_loss_last_batch": fit.last_batch_loss,
        }
        return self.step(round, uploaded, prototypes, metrics)

    def modules(self) -> dict[str, torch.nn.Module]:
        return {"trainable": self.trainable}

    def _margin(self, uploaded: Uploaded) -> float:
        """δ(t)."""
        match self.config.margin:
            case "adaptive":
                centres = mean_per_class(uploaded, self.context.task.num_classes)
                return adaptive_margin(centres, self.config.tau)
            case "fixed":
                return self.config.tau
            case "none":
                return 0.0
