"""Trainable global prototypes: FedTGP's server step (Zhang et al., AAAI 2024, Eq. 5 to 10).

Each class has a trainable vector, drawn from N(0, 1), and a small network F turns it into the prototype
P̂_c = F(vector_c), F = Linear, ReLU, Linear. Both are trained by plain SGD on mini-batches of the uploaded
prototypes p with labels y (Eq. 10):

    loss = mean over the batch of −log softmax_y( −‖p − P̂_c‖₂ − margin_y · 1[c = y] )

With a margin of 0 this is Eq. 6; with a fixed one, Eq. 7.

Every mini-batch sends all C vectors through F, so a step costs six C×K×K matrix products and almost nothing
else. The gradients are written out by hand: products go into buffers made once, and each weight's gradient
and its SGD update are one product (`addmm_`). `loss_as_printed` is what they are the gradients of; the tests
compare the two.

Dimensions: B batch, C classes, K features, N uploaded prototypes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from fedsim.equations.class_vectors import ClassVectors, class_margins
from fedsim.server_optimizers.threads import one_thread

LARGE_PRODUCT = 1 << 24
"""C·K·K from which a second thread is worth while: 100 classes of 512 features, not 10."""

SMALLEST_DISTANCE = 1e-6
"""Below this a distance has no usable direction, and so no gradient."""


def adaptive_margin(centres: ClassVectors, tau: float) -> float:
    """δ(t) of Eq. 9: the largest distance of a class centre to its nearest neighbour, at most τ.

    Absent classes have no centre and do not count; where there are fewer than two, the margin is τ.
    """
    margins_C = class_margins(centres)
    known = margins_C[~margins_C.isnan()]
    return min(float(known.max()), tau) if len(known) else tau


@dataclass(frozen=True)
class Fit:
    """How a fit ended: mean loss of the first and of the last epoch, and the loss of the very last batch."""

    first_loss: float
    loss: float
    last_batch_loss: float


class TrainablePrototypes(nn.Module):
    """The trainable vectors and F. `forward()` gives the prototypes (C, K)."""

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        *,
        generator: torch.Generator,
        use_transform: bool = True,
        device: torch.device | None = None,
    ):
        super().__init__()
        self.use_transform = use_transform
        self.vectors = nn.Parameter(torch.randn(num_classes, feature_dim, generator=generator))
        if use_transform:
            self.hidden = _linear(feature_dim, generator)
            self.output = _linear(feature_dim, generator)
        self.to(device)

    def forward(self) -> Tensor:
        if not self.use_transform:
            return self.vectors
        return self.output(relu(self.hidden(self.vectors)))

    def loss_as_printed(self, prototypes_BK: Tensor, labels_B: Tensor, margins_C: Tensor) -> Tensor:
        """Eq. 10 of a mini-batch, for autograd; `fit` computes the same and its gradient by hand."""
        differences_BCK = prototypes_BK[:, None] - self.forward()[None]
        distances_BC = differences_BCK.square().sum(dim=2).clamp_min(SMALLEST_DISTANCE**2).sqrt()
        margins_BC = nn.functional.one_hot(labels_B, len(margins_C)) * margins_C
        return nn.functional.cross_entropy(-(distances_BC + margins_BC), labels_B)

    @torch.inference_mode()
    def fit(
        self,
        prototypes_NK: Tensor,
        labels_N: Tensor,
        *,
        margins_C: Tensor,
        epochs: int,
        batch_size: int,
        lr: float,
        generator: torch.Generator,
    ) -> Fit:
        """SGD over shuffled mini-batches. `generator` (on the CPU) draws the order of every epoch."""
        num_prototypes = len(labels_N)
        if not num_prototypes:
            return Fit(0.0, 0.0, 0.0)
        own_NC = nn.functional.one_hot(labels_N, len(margins_C)).to(prototypes_NK.dtype)
        squares_N1 = prototypes_NK.square().sum(dim=1, keepdim=True)
        uploaded = (prototypes_NK, squares_N1, labels_N[:, None], own_NC, -margins_C * own_NC)
        step = _Step(self, lr)
        epoch_losses = []
        with one_thread(self.vectors.numel() * self.vectors.shape[1] < LARGE_PRODUCT):
            for epoch in range(epochs):
                order_N = torch.randperm(num_prototypes, generator=generator).to(labels_N.device)
                # Split beforehand: slicing each array in each step would cost as much as the step's small sums.
                shuffled = (array.index_select(0, order_N).split(batch_size) for array in uploaded)
                batches = zip(*shuffled, strict=True)
                if epoch in (0, epochs - 1):
                    losses = torch.stack([step(*batch, wants_loss=True) for batch in batches])
                    sizes = torch.tensor([len(labels_B) for labels_B in order_N.split(batch_size)]).to(losses)
                    epoch_losses.append((losses @ sizes / num_prototypes, losses[-1]))
                else:
                    for batch in batches:
                        step(*batch)
        self.vectors.copy_(step.vectors_CK)
        (first_loss, _), (last_loss, last_batch_loss) = epoch_losses[0], epoch_losses[-1]
        return Fit(float(first_loss), float(last_loss), float(last_batch_loss))


class _Step:
    """One SGD step on one mini-batch, with all large buffers made beforehand."""

    def __init__(self, model: TrainablePrototypes, lr: float):
        self.lr = lr
        self.has_transform = model.use_transform
        self.vectors_CK = model.vectors.clone()
        self.next_vectors_CK, self.hidden_CK, self.output_CK, self.grad_output_CK, self.grad_hidden_CK = (
            torch.empty_like(self.vectors_CK) for _ in range(5)
        )
        self.ones_C = torch.ones_like(self.vectors_CK[:, 0])
        # Transposed views, made once because even these take time when there are few classes.
        self.output_KC, self.grad_output_KC = self.output_CK.T, self.grad_output_CK.T
        self.grad_hidden_KC = self.grad_hidden_CK.T
        if self.has_transform:
            # Plain views of the parameters: the updates below train the module itself.
            self.weight1_KK, self.bias1_K = model.hidden.weight.detach(), model.hidden.bias.detach()
            self.weight2_KK, self.bias2_K = model.output.weight.detach(), model.output.bias.detach()
            self.weight1_T, self.weight2_T = self.weight1_KK.T, self.weight2_KK.T

    def __call__(
        self,
        targets_BK: Tensor,
        squares_B1: Tensor,
        labels_B1: Tensor,
        own_BC: Tensor,
        minus_margins_BC: Tensor,
        wants_loss: bool = False,
    ) -> Tensor | None:
        """`squares_B1` is ‖target‖², `own_BC` the one-hot labels, `minus_margins_BC` −margin where they are 1.

        Returns the loss if wanted.
        """
        if self.has_transform:
            torch.addmm(self.bias1_K, self.vectors_CK, self.weight1_T, out=self.hidden_CK)
            torch.relu_(self.hidden_CK)
            torch.addmm(self.bias2_K, self.hidden_CK, self.weight2_T, out=self.output_CK)
        else:
            self.output_CK.copy_(self.vectors_CK)
        distances_BC = self._distances(targets_BK, squares_B1, labels_B1)
        logits_BC = torch.sub(minus_margins_BC, distances_BC)
        # ∂loss/∂distance = (1[c = y] − softmax) / B, and ∂distance/∂P̂ = (P̂ − p) / distance, which is 0 where
        # the distance is too small (1.5: the root of the clamped square may round to just above the limit).
        # The division by B is left to the step size.
        divisors_BC = torch.threshold(distances_BC, 1.5 * SMALLEST_DISTANCE, torch.inf)
        pull_BC = torch.sub(own_BC, logits_BC.softmax(dim=1)).div_(divisors_BC)
        torch.mul(self.output_CK, pull_BC.sum(dim=0)[:, None], out=self.grad_output_CK)
        self.grad_output_CK.addmm_(pull_BC.T, targets_BK, alpha=-1)
        self._update(-self.lr / len(targets_BK))
        return nn.functional.cross_entropy(logits_BC, labels_B1[:, 0]) if wants_loss else None

    def _distances(self, targets_BK: Tensor, squares_B1: Tensor, labels_B1: Tensor) -> Tensor:
        """‖target − output‖, at least SMALLEST_DISTANCE: by expanded squares, that is one matrix product.

        Expanded squares lose small distances to rounding. A prototype comes close to the targets of its own
        class only, so those distances alone are taken from differences.
        """
        output_squares_C = torch.linalg.vecdot(self.output_CK, self.output_CK)
        squares_BC = torch.addmm(output_squares_C, targets_BK, self.output_KC, alpha=-2).add_(squares_B1)
        differences_BK = targets_BK - self.output_CK.index_select(0, labels_B1[:, 0])
        own_squares_B = torch.linalg.vecdot(differences_BK, differences_BK)
        squares_BC.scatter_(1, labels_B1, own_squares_B[:, None])
        return squares_BC.clamp_min_(SMALLEST_DISTANCE**2).sqrt_()

    def _update(self, rate: float) -> None:
        """Back through F; every gradient uses the weights from before the step. `rate` is negative."""
        if not self.has_transform:
            self.vectors_CK.add_(self.grad_output_CK, alpha=rate)
            return
        torch.mm(self.grad_output_CK, self.weight2_KK, out=self.grad_hidden_CK)
        self.weight2_KK.addmm_(self.grad_output_KC, self.hidden_CK, alpha=rate)
        self.bias2_K.addmv_(self.grad_output_KC, self.ones_C, alpha=rate)
        # ReLU leaves nothing negative, so its own sign says where it let through.
        self.grad_hidden_CK.mul_(self.hidden_CK.sign_())
        torch.addmm(self.vectors_CK, self.grad_hidden_CK, self.weight1_KK, alpha=rate, out=self.next_vectors_CK)
        self.weight1_KK.addmm_(self.grad_hidden_KC, self.vectors_CK, alpha=rate)
        self.bias1_K.addmv_(self.grad_hidden_KC, self.ones_C, alpha=rate)
        self.vectors_CK, self.next_vectors_CK = self.next_vectors_CK, self.vectors_CK


def _linear(dim: int, generator: torch.Generator) -> nn.Linear:
    """A square layer with torch's usual initialisation, U(±1/√dim), drawn from `generator`."""
    layer = nn.utils.skip_init(nn.Linear, dim, dim)
    bound = 1 / math.sqrt(dim)
    with torch.no_grad():
        for tensor in (layer.weight, layer.bias):
            tensor.uniform_(-bound, bound, generator=generator)
    return layer
