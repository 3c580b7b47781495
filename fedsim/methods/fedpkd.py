"""FedPKD: prototype-based ensemble distillation with filtered public samples (Lyu et al., ICDCS 2023).

No code was published, and this follows the description in FedProtoKD's paper (Hossen et al. 2025), which
compares with it under the same settings; equation numbers are that paper's.

Client: as in FedProtoKD (Eq. 3 and 14 to 19), but it also sends how many samples of each class it has.
Server: the clients' logits weighted by their variance (Eq. 4) and their prototypes weighted by those
numbers (Eq. 2). Of the samples of each pseudo-class it keeps the share θ whose features, by its model at
the start of the round, are nearest to the prototype; the model learns Υ (KL + CE) + (1 − Υ) MSE to the
prototypes from these alone, and clients are sent its logits for these alone. Prediction: largest logit.
`server_accuracy`: the model on the global test set.

What travels: up N_p × C logits, one K-vector and a count per class held; down the logits of the kept
samples, their numbers, and one K-vector per class that any client sent this round.

Ours: the further factor 1/|N_c| of Eq. 2 is left out, since it would shrink every prototype. The numbers
kept per class are rounded so that θ · N_p samples are kept in all. A sample whose pseudo-class has no
prototype is the farthest of all and is not pulled anywhere. All that FedProtoKD's page says of KL,
optimizer and epochs holds here too.
"""

import torch
from torch import Tensor

from fedsim.config import Fraction
from fedsim.contract import Contract, Field, Payload, sample_ids
from fedsim.equations.class_vectors import ClassVectors
from fedsim.equations.public_distillation import distances_to_class, nearest_share, num_kept
from fedsim.families.prototypes import Combined, Uploaded, mean_per_class
from fedsim.families.prototypes_and_logits import (
    DualClient,
    DualConfig,
    DualServer,
    Judged,
    check,
    dual_contract,
)
from fedsim.families.public_samples import DEFAULTS
from fedsim.families.public_samples import sizes as public_sizes
from fedsim.method import About, Setting, Step, Upload

__all__ = ["ABOUT", "DEFAULTS", "Client", "Config", "Server", "check", "contract", "sizes"]

ABOUT = About(
    title="FedPKD",
    paper="Lyu et al., ICDCS 2023",
    evaluation="largest logit; server model on the global test set",
    needs=("public samples", "equal or projected feature sizes"),
)


class Config(DualConfig, frozen=True, kw_only=True):
    """FedPKD's options."""

    theta: Fraction = 0.8
    """θ, the share of the public samples of each pseudo-class that is kept."""


def contract(config: Config) -> Contract:
    base = dual_contract(config, with_counts=True)
    kept = {"logits": Field(Payload.LOGITS, "kept C"), "sample_ids": sample_ids("kept")}
    return Contract(up=base.up, down={**base.down, **kept}, setup_down=base.setup_down)


def sizes(setting: Setting) -> dict[str, int]:
    own = public_sizes(setting)
    return own | {"kept": num_kept(own["Np"], setting.config.theta)}


class Client(DualClient):
    sends_counts = True


class Server(DualServer):
    config: Config

    def combine(self, round: int, uploaded: Uploaded) -> Combined:
        """Eq. 2."""
        return Combined(mean_per_class(uploaded, self.context.task.num_classes))

    def judge(self, features_PK: Tensor, labels_P: Tensor, prototypes: ClassVectors) -> Judged:
        """The nearest of each pseudo-class, which count alike."""
        distances_P = distances_to_class(features_PK, labels_P, prototypes)
        rows_k = nearest_share(distances_P, labels_P, self.config.theta, self.context.task.num_classes)
        kept = rows_k.to(torch.int32).cpu().numpy()
        return Judged(rows_k, torch.ones_like(distances_P), records={"sample_ids": kept})

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        step = super().aggregate(round, uploads)
        return Step(step.down | {"sample_ids": step.records["sample_ids"]}, step.metrics, step.records)
