"""Trainable server prototypes with a margin for each class: FedProtoKD's ACTSP (Hossen et al. 2025, Eq. 5 to 7).

The trainable vectors, F and the loss are FedTGP's (fedsim/server_optimizers/tgp.py); the margin is not one number
but one for each class. With Q_c the mean of the prototypes that clients sent for class c,

    ξ^c(t) = min( min_{c'≠c} ‖Q_c − Q_c'‖₂ , ζ )                                                       (Eq. 6)

so a class whose neighbours are near is not pushed as far as one that stands alone.

Dimensions: C classes, K features, N uploaded prototypes.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedsim.equations.class_vectors import ClassMeans, ClassVectors, class_margins
from fedsim.server_optimizers.tgp import Fit, TrainablePrototypes, adaptive_margin

MarginKind = Literal["class", "max"]


def classwise_margins(centres: ClassVectors, limit: float, kind: MarginKind = "class") -> Tensor:
    """ξ^c(t), (C,); NaN for classes without a centre, which do not count as neighbours either.

    class: Eq. 6. max: the largest of them for every class, which is FedTGP's margin and FedProtoKD-ζ. A class that
    is alone has no neighbour that could limit its margin, so it is ζ (`limit`).
    """
    present_C = centres.present_C
    if kind == "max":
        margin = adaptive_margin(centres, limit)
        return torch.where(present_C, margin, torch.nan)
    # Only a single class is present and without a margin; NaN stays for the absent ones.
    margins_C = class_margins(centres).nan_to_num(nan=limit).clamp_max(limit)
    return torch.where(present_C, margins_C, torch.nan)


class Update(NamedTuple):
    """What one round did: the margins in force, and how the fit went."""

    margins_C: Tensor
    fit: Fit


class ServerPrototypes(nn.Module):
    """The prototypes that the server sends, and what they are trained from. `latest_CK` is (C, K)."""

    latest_CK: Tensor

    def __init__(
        self, num_classes: int, feature_dim: int, *, generator: torch.Generator, device: torch.device | None = None
    ):
        super().__init__()
        self.trainable = TrainablePrototypes(num_classes, feature_dim, generator=generator, device=device)
        self.register_buffer("latest_CK", self.trainable().detach().clone())

    def loss_as_printed(self, uploaded_NK: Tensor, labels_N: Tensor, exponents_C: Tensor) -> Tensor:
        """Eq. 7, its sum over uploads a mean: −log of e^(−Δ+ξ) of the own class over that and all others' e^−Δ.

        `exponents_C` is what is added to −Δ of the own class: ξ as printed, −ξ to make it farther as in FedTGP.
        """
        deltas_NC = (uploaded_NK[:, None] - self.trainable()).norm(dim=2)
        own_NC = nn.functional.one_hot(labels_N, len(exponents_C))
        return -(exponents_C * own_NC - deltas_NC).log_softmax(dim=1)[own_NC.bool()].mean()

    def update(
        self,
        uploaded_NK: Tensor,
        labels_N: Tensor,
        *,
        margin: MarginKind,
        limit: float,
        printed_sign: bool,
        keep_absent: bool,
        epochs: int,
        batch_size: int,
        lr: float,
        generator: torch.Generator,
    ) -> Update:
        """Train on one round's uploads.

        `printed_sign`: exponents −Δ + ξ as in Eq. 5 and 7, which bring the own class nearer, in place of FedTGP's
        −(Δ + ξ). `keep_absent`: classes that nobody uploaded keep the prototype they had; otherwise they move as
        the others push them, as in FedTGP.
        """
        num_classes, feature_dim = self.latest_CK.shape
        means = ClassMeans(num_classes, feature_dim, uploaded_NK.device)
        means.add(uploaded_NK, labels_N)
        centres = means.means()
        margins_C = classwise_margins(centres, limit, margin)
        in_force_C = margins_C.nan_to_num(nan=0.0)  # no upload has the label of an absent class
        fit = self.trainable.fit(
            uploaded_NK,
            labels_N,
            margins_C=-in_force_C if printed_sign else in_force_C,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            generator=generator,
        )
        with torch.no_grad():
            kept_C = ~centres.present_C if keep_absent else torch.zeros_like(centres.present_C)
            self.latest_CK = torch.where(kept_C[:, None], self.latest_CK, self.trainable())
        return Update(margins_C, fit)
