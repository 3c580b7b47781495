"""Distilling through public samples: the equations that FedProtoKD, FedPKD and Fed2PKD share. Pure tensor work.

Equation numbers are those of FedProtoKD (Hossen et al. 2025). A sample without a label is judged by the logits of
all clients: their weighted mean is what the server's model learns (Eq. 4, 11), its largest entry is the sample's
pseudo-label (Eq. 8), and the distance of the sample to the prototype of that class says how far it can be trusted
(Eq. 9, 10 in FedProtoKD; kept or not in FedPKD).

Dimensions: B batch, C classes, K features, M clients, P public samples.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsim.equations.class_vectors import ClassVectors, prototype_loss
from fedsim.equations.distillation import KLDirection, divergence

SAME_DISTANCE = 1e-6
"""Relative: distances are single precision, and rounding alone must not become the whole range from 0 to 1."""


def aggregate_logits(logits_MPC: Tensor, weighting: Literal["variance", "equal"] = "variance") -> Tensor:
    """L̂ of Eq. 4, (P, C): each client weighs by the variance over classes of its logits for that very sample.

    Whether it is divided by C or by C − 1 does not matter, since weights are shares. Where no client has an
    opinion, because all its logits are equal, every client weighs the same.
    """
    if weighting == "equal":
        return logits_MPC.mean(dim=0)
    variances_MP = logits_MPC.var(dim=2, correction=0)
    totals_P = variances_MP.sum(dim=0)
    equal_share = 1.0 / len(logits_MPC)
    shares_MP = torch.where(totals_P > 0, variances_MP / totals_P.where(totals_P > 0, 1.0), equal_share)
    return (shares_MP[:, :, None] * logits_MPC).sum(dim=0)


def distances_to_class(features_PK: Tensor, labels_P: Tensor, prototypes: ClassVectors) -> Tensor:
    """d(x): ‖feature − prototype of the pseudo-label‖₂, (P,); infinite where the class has no prototype."""
    distances_P = (features_PK - prototypes.vectors_CK[labels_P]).norm(dim=1)
    return distances_P.where(prototypes.present_C[labels_P], torch.inf)


def importance(
    distances_P: Tensor,
    *,
    phi: float,
    steepness: float,
    epsilon: float = 1e-8,
    sigmoid: Literal["falling", "rising"] = "falling",
) -> Tensor:
    """I of Eq. 10, (P,): how much each public sample counts.

    d̂ = 1 / (d + ε), brought to [0, 1] over all samples of the round, is 1 for the nearest; all are 0 where all
    distances are equal but for rounding. E is Eq. 9, a sigmoid around the median c_d; as printed it falls with
    closeness. In double precision, because ε may be smaller than what a float adds to a distance.
    """
    closeness_P = 1.0 / (distances_P.double() + epsilon)
    low, high = closeness_P.min(), closeness_P.max()
    is_spread = high - low > SAME_DISTANCE * high
    closeness_P = (closeness_P - low) / (high - low) if is_spread else torch.zeros_like(closeness_P)
    # numpy's median: the mean of the two in the middle where the number is even, as statistics has it.
    centre = closeness_P.quantile(0.5)
    towards = steepness * (closeness_P - centre)
    factors_P = torch.sigmoid(-towards if sigmoid == "falling" else towards)  # 1 − σ(x) = σ(−x)
    return (phi * (1 + closeness_P) + (1 - phi) * factors_P).to(distances_P.dtype)


def nearest_share(distances_P: Tensor, labels_P: Tensor, share: float, num_classes: int) -> Tensor:
    """Rows of the `share` of samples nearest to the prototype of their pseudo-label, class by class, ascending.

    The numbers kept per class are rounded so that they add up to `num_kept` (by the largest remainders, the lower
    class first), so that the size of what is sent down is known beforehand.
    """
    counts_C = torch.bincount(labels_P, minlength=num_classes).cpu()
    shares_C = share * counts_C.double()
    kept_C = shares_C.floor().long()
    missing = num_kept(len(labels_P), share) - int(kept_C.sum())
    by_remainder_C = (shares_C - kept_C).argsort(descending=True, stable=True)
    kept_C[by_remainder_C[:missing]] += 1
    # Sorted by class and, within it, by distance: the rank within the class decides.
    by_distance_P = distances_P.argsort(stable=True)
    order_P = by_distance_P[labels_P[by_distance_P].argsort(stable=True)]
    starts_C = counts_C.cumsum(0) - counts_C
    labels_in_order_P = labels_P[order_P].cpu()
    ranks_P = torch.arange(len(labels_P)) - starts_C[labels_in_order_P]
    kept_P = (ranks_P < kept_C[labels_in_order_P]).to(order_P.device)
    return order_P[kept_P].sort().values


def num_kept(num_samples: int, share: float) -> int:
    """How many samples `nearest_share` keeps: the nearest whole number, at least one."""
    return max(1, round(share * num_samples))


@dataclass(frozen=True)
class Lesson:
    """What the server's model is taught of the public samples, one row for each."""

    opinions_PC: Tensor
    """L̂, what all clients together say of it."""
    labels_P: Tensor
    """Its pseudo-label."""
    weights_P: Tensor
    """I, how much the pseudo-label counts."""
    prototypes: ClassVectors
    upsilon: float
    direction: KLDirection = "forward"
    temperature: float = 1.0

    def loss(self, logits_BC: Tensor, features_BK: Tensor, rows_B: Tensor) -> Tensor:
        """Υ · L_kd + (1 − Υ) · L_pl, Eq. 11 to 13, of the samples in these rows."""
        labels_B = self.labels_P[rows_B]
        kl = divergence(logits_BC, self.opinions_PC[rows_B], self.direction, self.temperature)
        own_B = cross_entropy(logits_BC, labels_B, reduction="none")
        distilled = kl + (own_B * self.weights_P[rows_B]).mean()
        pull = prototype_loss(features_BK, labels_B, self.prototypes, "mse")
        return self.upsilon * distilled + (1 - self.upsilon) * pull


def client_loss(
    logits_BC: Tensor,
    teacher_BC: Tensor,
    *,
    eta: float,
    direction: KLDirection = "forward",
    temperature: float = 1.0,
) -> Tensor:
    """η · KL + (1 − η) · CE with the server's pseudo-labels, Eq. 14 to 16."""
    distilled = divergence(logits_BC, teacher_BC, direction, temperature)
    return eta * distilled + (1 - eta) * cross_entropy(logits_BC, teacher_BC.argmax(dim=1))
