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
from fedsim.families.whole_model import SharingClient, SharingConfig, SharingServer, adapt, check, contract, sizes
from fedsim.method import About, Batch, Reported

__all__ = ["ABOUT", "Client", "Config", "Server", "adapt", "check", "contract", "sizes"]

ABOUT = About(
    title="FedProx",
    paper="Li et al., MLSys 2020",
    needs=("equal models",),
    evaluation="largest logit of the global model",
)


class Config(SharingConfig, frozen=True, kw_only=True):
    """FedProx's options."""

    proximal_weight: NonNegative = 0.01
    """μ; 0 is FedAvg."""


class Client(SharingClient):
    anchors: tuple[Tensor, ...] = ()

    def train(self, round: int) -> Reported:
        self.adopt()
        self.anchors = tuple(parameter.detach().clone() for parameter in self.model.parameters())  # w_global
        metrics = super().train(round)
        self.anchors = ()  # as large as the model, and a client waits most of the time
        return metrics

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy + μ/2 · ‖w − w_global‖²."""
        weight = self.config.proximal_weight
        if not weight:
            return super().loss(batch)
        # A norm leaves no squares behind for its gradient: a third of the time of the sum of squares.
        pairs = zip(self.model.parameters(), self.anchors, strict=True)
        distances = torch.stack([vector_norm(parameter - anchor) for parameter, anchor in pairs])
        return super().loss(batch) + weight / 2 * distances.square().sum()


class Server(SharingServer):
    """As FedAvg's."""
