"""FedProx: FedAvg whose clients do not stray far from the global model (Li et al., MLSys 2020).

Client: cross-entropy + μ/2 · ‖w − w_global‖², Eq. 2 of its paper, where w_global is the model that the local
training starts from. Server and prediction: as FedAvg.

What travels: up and down all weights.

Deliberate choices
- μ = 0.01, one of the values that the paper tunes over. Public versions have 0, which is FedAvg, or 1.
- The distance is taken over parameters, not over running statistics of batch normalisation.
- All else, the choice of evaluation too, is as in FedAvg.
"""

import torch
from torch import Tensor
from torch.linalg import vector_norm

from fedsim.config import NonNegative
from fedsim.families.whole_model import (
    SharingClient,
    SharingConfig,
    SharingServer,
    check_sharing,
    sharing_contract,
    sharing_sizes,
)
from fedsim.learning.training import Batch, LossOfBatch
from fedsim.method import About

ABOUT = About(
    title="FedProx",
    paper="Li et al., MLSys 2020",
    needs=("equal models",),
    evaluation="largest logit of the global model",
)

contract, sizes, check = sharing_contract, sharing_sizes, check_sharing


class Config(SharingConfig, frozen=True, kw_only=True):
    """FedProx's options."""

    proximal_weight: NonNegative = 0.01
    """μ; 0 is FedAvg."""


class Client(SharingClient):
    def round_loss(self) -> LossOfBatch:
        plain_loss, weight = super().round_loss(), self.config.proximal_weight
        if not weight:
            return plain_loss
        parameters = list(self.model.parameters())
        anchors = [parameter.detach().clone() for parameter in parameters]

        def loss(batch: Batch) -> Tensor:
            # A norm leaves no squares behind for its gradient: a third of the time of the sum of squares.
            distances = [vector_norm(w - anchor) for w, anchor in zip(parameters, anchors, strict=True)]
            return plain_loss(batch) + weight / 2 * torch.stack(distances).square().sum()

        return loss


class Server(SharingServer):
    """A server that averages models, as it is."""
