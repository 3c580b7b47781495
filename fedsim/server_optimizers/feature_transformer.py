"""The feature transformer: FedKTL's server step (Zhang et al., CVPR 2024, section 3.3.3).

F = Linear, BatchNorm, ReLU, Linear turns the uploaded prototypes P into latents Q of an image generator. Adam
trains it on mini-batches of prototypes so that the latents look like valid ones W (Eq. 3) and those of a class
lie close together (Eq. 2):

    loss = mmd_weight · MMD²(F(P), W) + mse_weight · mean (F(P) − centroid of its class)²

The centroid of a class is the mean of F over all of its prototypes. It is taken anew in each step and not
differentiated: over all prototypes the derivative through the mean is zero. F ends in a linear layer, so the mean
is taken before that layer, of P numbers and not of H.

Dimensions: B batch, C classes, P prototype, H latent, N uploaded prototypes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, mse_loss, relu

from fedsim.class_vectors import ClassMeans, ClassVectors
from fedsim.threads import one_thread

KERNEL_VARIANCES = (10.0, 15.0, 20.0, 50.0)
"""Of the four Gaussian kernels whose sum is κ."""

LARGE_BATCH = 1 << 19
"""Numbers in a batch of latents from which a second thread is worth while: Stable Diffusion's, not StyleGAN's."""


def squared_mmd(ours_BH: Tensor, valid_BH: Tensor) -> Tensor:
    """Maximum mean discrepancy of two samples of the same size (Eq. 3): mean of κ(x, x') + κ(y, y') − 2 κ(x, y).

    The biased estimate, with each κ(x, x) = 4 counted, as published: two draws from one distribution have a
    positive discrepancy of the order of 1/B.
    """
    ours, valid, both = kernel(ours_BH, ours_BH), kernel(valid_BH, valid_BH), kernel(ours_BH, valid_BH)
    return ours.mean() + valid.mean() - 2 * both.mean()


def kernel(first_NH: Tensor, second_MH: Tensor) -> Tensor:
    """κ of all pairs, (N, M)."""
    products_NM = first_NH @ second_MH.T
    squares_N1, squares_M = first_NH.square().sum(dim=1, keepdim=True), second_MH.square().sum(dim=1)
    distances_NM = (squares_N1 + squares_M - 2 * products_NM).clamp_min(0)
    return sum((distances_NM * (-0.5 / variance)).exp() for variance in KERNEL_VARIANCES)


@dataclass(frozen=True)
class Fit:
    """Mean losses of the first and of the last epoch, before they are weighted."""

    mmd_first: float = 0.0
    mse_first: float = 0.0
    mmd: float = 0.0
    mse: float = 0.0


class FeatureTransformer(nn.Module):
    """F and the centroids. Its weights are drawn from torch's global generator, so seed that before."""

    def __init__(
        self,
        prototype_dim: int,
        centroids_CH: Tensor,
        *,
        trainable_centroids: bool = False,
        device: torch.device | None = None,
    ):
        """`centroids_CH` are the initial ones, which classes keep until somebody uploads a prototype of theirs.

        `trainable_centroids`: they are weights beside those of F, trained by the same loss, not means of F(P).
        """
        super().__init__()
        # No bias: normalisation takes it out again, and Adam makes steps of the rounding in a gradient of zero.
        self.hidden = nn.Linear(prototype_dim, prototype_dim, bias=False)
        self.norm = nn.BatchNorm1d(prototype_dim)
        self.output = nn.Linear(prototype_dim, centroids_CH.shape[1])
        self.trainable_centroids = trainable_centroids
        if trainable_centroids:
            self.centroids_CH = nn.Parameter(centroids_CH.clone())
        else:
            self.register_buffer("centroids_CH", centroids_CH.clone())
        self.to(device)

    def forward(self, prototypes_NP: Tensor) -> Tensor:
        return self.output(relu(self.norm(self.hidden(prototypes_NP))))

    def fit(
        self,
        prototypes_NP: Tensor,
        labels_N: Tensor,
        *,
        draw_valid: Callable[[int], Tensor],
        epochs: int,
        batch_size: int,
        lr: float,
        mmd_weight: float = 1.0,
        mse_weight: float = 1.0,
        clip_norm: float = 0.0,
        generator: torch.Generator,
    ) -> Fit:
        """Train F and bring the centroids up to date. `draw_valid(n)` gives n valid latents (n, H).

        `generator` (on the CPU) draws the order of every epoch. Adam is made anew, so it has no memory of earlier
        fits. A batch of one has no variance to normalise by and is left out.
        """
        groups = [[*self.hidden.parameters(), *self.norm.parameters(), *self.output.parameters()]]
        if self.trainable_centroids:
            groups.append([self.centroids_CH])
        optimizer = torch.optim.Adam([weight for group in groups for weight in group], lr=lr)

        def step(rows_B: Tensor, valid_BH: Tensor) -> Tensor:
            targets_CH = self._targets(prototypes_NP, labels_N)
            latents_BH = self(prototypes_NP[rows_B])
            mmd = squared_mmd(latents_BH, valid_BH)
            mse = mse_loss(latents_BH, targets_CH[labels_N[rows_B]])
            optimizer.zero_grad(set_to_none=True)
            (mmd_weight * mmd + mse_weight * mse).backward()
            if clip_norm:
                for group in groups:
                    nn.utils.clip_grad_norm_(group, clip_norm)
            optimizer.step()
            return torch.stack([mmd.detach(), mse.detach()])

        def epoch() -> Tensor:
            """The mean losses, (2,)."""
            order_N = torch.randperm(len(labels_N), generator=generator).to(labels_N.device)
            # One draw an epoch: a mapping network is as quick for many as for a batch.
            valid_NH = draw_valid(len(labels_N))
            batches = zip(order_N.split(batch_size), valid_NH.split(batch_size), strict=True)
            usable = [batch for batch in batches if len(batch[0]) > 1]
            sizes = valid_NH.new_tensor([len(rows_B) for rows_B, _ in usable])
            return sizes @ torch.stack([step(*batch) for batch in usable]) / sizes.sum()

        first = last = torch.zeros(2)
        self.train()
        with one_thread(batch_size * self.output.out_features < LARGE_BATCH):
            for number in range(epochs if len(labels_N) > 1 else 0):
                last = epoch()
                first = last if number == 0 else first
        self.eval()
        if not self.trainable_centroids:
            self._keep_means(prototypes_NP, labels_N)
        return Fit(*first.tolist(), *last.tolist())

    def _targets(self, prototypes_NP: Tensor, labels_N: Tensor) -> Tensor:
        """What Eq. 2 pulls the latents of each class to, (C, H)."""
        if self.trainable_centroids:
            return self.centroids_CH
        with torch.no_grad():
            # Normalised as F is while it trains, but over all prototypes and without a trace in its statistics.
            hidden_NP = batch_norm(
                self.hidden(prototypes_NP), None, None, self.norm.weight, self.norm.bias, training=True
            )
            return self.output(self._class_means(relu(hidden_NP), labels_N).vectors_CK)

    @torch.no_grad()
    def _keep_means(self, prototypes_NP: Tensor, labels_N: Tensor) -> None:
        """The centroids in evaluation mode. Classes without a prototype keep theirs."""
        means = self._class_means(relu(self.norm(self.hidden(prototypes_NP))), labels_N)
        self.centroids_CH[means.present_C] = self.output(means.vectors_CK[means.present_C])

    def _class_means(self, hidden_NP: Tensor, labels_N: Tensor) -> ClassVectors:
        means = ClassMeans(len(self.centroids_CH), hidden_NP.shape[1], hidden_NP.device)
        means.add(hidden_NP, labels_N)
        return means.means()
