"""FedUV: FedAvg with two regularisers that imitate training on IID data (Son et al., CVPR 2024).

Client: cross-entropy + λ_V · L_V + λ_U · L_U, each over the samples of a batch.
- L_V = mean over classes of max(0, 1/√C − std of the class's probability): the classifier is to vary as much as
  one that sees every class equally often and is always sure, whose outputs are the C rows of an identity.
- L_U = mean over pairs of samples of exp(−‖z − z'‖² / σ), z being features and σ the median of all squared
  distances but 0: features are to spread evenly.
Server and prediction: as FedAvg.

What travels: up and down all weights, and the running statistics of batch normalisation.

Deliberate choices
- λ_V = 2.5 and λ_U = 0.5, as published. Sources swap the letters λ and μ, but agree on these values.
- The gradient goes through σ too, as published, so that L_U does not change when all features grow.
- A batch of one sample has neither term, and one whose features all coincide has no L_U; public code gives NaN.
- Published with momentum 0.9, weight decay 1e-5 and 10 local epochs of batches of 128 in random order, and with
  `lr_schedule=cosine`; none of it is set here: the section `train` holds for all methods alike.
- The paper tests the global model. ProtoNorm's table 3 has numbers for FedUV that, on such heterogeneous data,
  seem possible only for `evaluation=personalised`.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedsim.config import NonNegative
from fedsim.families.whole_model import SharingClient, SharingConfig, SharingServer, adapt, check, contract, sizes
from fedsim.method import About, Batch

__all__ = ["ABOUT", "Client", "Config", "Server", "adapt", "check", "contract", "sizes"]

ABOUT = About(
    title="FedUV",
    paper="Son et al., CVPR 2024",
    needs=("equal models",),
    evaluation="largest logit of the global model",
)


class Config(SharingConfig, frozen=True, kw_only=True):
    """FedUV's options."""

    buffers: Literal["local", "averaged"] = "averaged"
    """The running statistics of batch normalisation; published as averaged."""
    variance_weight: NonNegative = 2.5
    """λ_V, the weight of the classifier's variance."""
    uniformity_weight: NonNegative = 0.5
    """λ_U, the weight of the features' uniformity."""


def variance_loss(logits_BC: Tensor) -> Tensor:
    """L_V, 0 for a single sample. An identity of C rows has columns of (unbiased) standard deviation 1/√C."""
    batch_size, num_classes = logits_BC.shape
    if batch_size == 1:
        return logits_BC.new_zeros(())
    deviations_C = logits_BC.softmax(dim=1).std(dim=0)
    return (num_classes**-0.5 - deviations_C).relu().mean()


def uniformity_loss(features_BK: Tensor) -> Tensor:
    """L_U, 0 where no two samples differ."""
    squares = torch.pdist(features_BK).square()  # one for each of the B(B − 1)/2 pairs
    apart = squares[squares != 0]
    if not len(apart):
        return features_BK.new_zeros(())
    return (-squares / apart.median()).exp().mean()


class Client(SharingClient):
    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy + λ_V · L_V + λ_U · L_U."""
        features_BK = self.model.features(batch.inputs)
        logits_BC = self.model.head(features_BK)
        variance, uniformity = variance_loss(logits_BC), uniformity_loss(features_BK)
        plain = cross_entropy(logits_BC, batch.labels_B)
        return plain + self.config.variance_weight * variance + self.config.uniformity_weight * uniformity


class Server(SharingServer):
    """As FedAvg's."""
