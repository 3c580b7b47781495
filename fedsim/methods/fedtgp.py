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

from typing import Literal

import torch

from fedsim.config import AboveZero, Count, NonNegative, Positive
from fedsim.contract import Contract
from fedsim.equations.class_vectors import ClassVectors
from fedsim.families.prototypes import (
    Combined,
    PrototypeClient,
    PrototypeConfig,
    PrototypeServer,
    Uploaded,
    mean_per_class,
    prototype_contract,
)
from fedsim.method import About, ServerContext
from fedsim.server_optimizers.tgp import TrainablePrototypes, adaptive_margin

ABOUT = About(title="FedTGP", paper="Zhang et al., AAAI 2024", evaluation="nearest global prototype")


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


def contract(config: Config) -> Contract:
    return prototype_contract(config, all_classes_down=True)


class Client(PrototypeClient):
    """A prototype client as it is."""


class Server(PrototypeServer):
    sends_all_classes = True

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

    def combine(self, round: int, uploaded: Uploaded) -> Combined:
        config, task, train = self.config, self.context.task, self.context.experiment.train
        match config.margin:
            case "adaptive":
                margin = adaptive_margin(mean_per_class(uploaded, task.num_classes), config.tau)
            case "fixed":
                margin = config.tau
            case "none":
                margin = 0.0
        fit = self.trainable.fit(
            uploaded.vectors_NK,
            uploaded.labels_N,
            margins_C=torch.full((task.num_classes,), margin, device=self.context.device),
            epochs=config.server_epochs,
            batch_size=config.server_batch_size or train.batch_size,
            lr=config.server_lr or train.lr,
            generator=self.context.streams.torch("server-order", round=round),
        )
        with torch.no_grad():
            prototypes_CK = self.trainable().clone()
        everything_C = torch.ones(task.num_classes, dtype=torch.bool, device=self.context.device)
        metrics = {
            "margin_delta": margin,
            "server_loss_first": fit.first_loss,
            "server_loss": fit.loss,
            "server_loss_last_batch": fit.last_batch_loss,
        }
        return Combined(ClassVectors(prototypes_CK, everything_C), metrics)

    def modules(self) -> dict[str, torch.nn.Module]:
        return {"trainable": self.trainable}
