"""The feature transformer: FedKTL's server step (Zhang et al., CVPR 2024, section 3.3.3).

F = Linear, BatchNorm, ReLU, Linear turns the uploaded prototypes P into latents Q of an image generator. Adam
trains it on mini-batches of prototypes so that the latents look like valid ones W (Eq. 3) and those of a class
lie close together (Eq. 2):

    loss = mmd_weight · MMD²(F(P), W) + mse_weight · mean (F(P) − centroid of its class)²

The centroid of a class is the mean of F over all of its prototypes, taken anew in each step with the statistics of
all prototypes, and differentiated as well. A mini-batch is normalised by its own statistics, so F differs a little
from the centroid even for the only prototype of a class; a step that held the centroid fixed would close that gap
by making F larger, and with it the centroid, without end. In a batch of all prototypes the derivative through the
mean is zero and is left out. F ends in a linear layer, so the mean is taken before that layer, of P numbers and
not of H.

The gradients are written out by hand: half the time of autograd, which keeps a trace of every exponential and
differentiates κ(W, W), a constant. `loss_as_printed` is what they are the gradients of; the tests compare the two.

Dimensions: B batch, C classes, P prototype, H latent, N uploaded prototypes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, mse_loss, relu

from fedsim.equations.class_vectors import ClassMeans, ClassVectors
from fedsim.server_optimizers.threads import one_thread

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

    def loss_as_printed(
        self,
        prototypes_NP: Tensor,
        labels_N: Tensor,
        rows_B: Tensor,
        valid_BH: Tensor,
        mmd_weight: float = 1.0,
        mse_weight: float = 1.0,
    ) -> Tensor:
        """Eq. 2 and 3 of the mini-batch in these rows, for autograd; `fit` computes their gradient by hand."""
        latents_BH, targets_CH = self(prototypes_NP[rows_B]), self.centroids_CH
        if not self.trainable_centroids:
            scale, shift = self.norm.weight, self.norm.bias
            normal_NP = batch_norm(self.hidden(prototypes_NP), None, None, scale, shift, training=True)
            sums_CH = torch.zeros_like(targets_CH).index_add(0, labels_N, self.output(relu(normal_NP)))
            targets_CH = sums_CH / _counts(labels_N, len(targets_CH))
        together = mse_loss(latents_BH, targets_CH[labels_N[rows_B]])
        return mmd_weight * squared_mmd(latents_BH, valid_BH) + mse_weight * together

    @torch.no_grad()
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
        step = _Step(
            self, prototypes_NP, labels_N, lr=lr, mmd_weight=mmd_weight, mse_weight=mse_weight, clip_norm=clip_norm
        )
        reported = {0: torch.zeros(2), epochs - 1: torch.zeros(2)}
        self.train()
        with one_thread(batch_size * self.output.out_features < LARGE_BATCH):
            for epoch in range(epochs if len(labels_N) > 1 else 0):
                order_N = torch.randperm(len(labels_N), generator=generator).to(labels_N.device)
                # One draw an epoch: a mapping network is as quick for many as for a batch.
                valid_NH = draw_valid(len(labels_N))
                batches = zip(order_N.split(batch_size), valid_NH.split(batch_size), strict=True)
                usable = [batch for batch in batches if len(batch[0]) > 1]
                self.norm.num_batches_tracked += len(usable)
                if epoch in reported:
                    sizes = torch.tensor([len(rows_B) for rows_B, _ in usable]).to(valid_NH)
                    losses = torch.stack([step(*batch, wants_losses=True) for batch in usable])
                    reported[epoch] = sizes @ losses / sizes.sum()
                else:
                    for batch in usable:
                        step(*batch)
        self.eval()
        if not self.trainable_centroids:
            self._keep_means(prototypes_NP, labels_N)
        return Fit(*reported[0].cpu().tolist(), *reported[epochs - 1].cpu().tolist())

    def _keep_means(self, prototypes_NP: Tensor, labels_N: Tensor) -> None:
        """The centroids in evaluation mode. Classes without a prototype keep theirs."""
        means = self._class_means(relu(self.norm(self.hidden(prototypes_NP))), labels_N)
        self.centroids_CH[means.present_C] = self.output(means.vectors_CK[means.present_C])

    def _class_means(self, hidden_NP: Tensor, labels_N: Tensor) -> ClassVectors:
        means = ClassMeans(len(self.centroids_CH), hidden_NP.shape[1], hidden_NP.device)
        means.add(hidden_NP, labels_N)
        return means.means()


class _Step:
    """One step of Adam on a mini-batch. Called without gradients being recorded."""

    def __init__(
        self,
        model: FeatureTransformer,
        prototypes_NP: Tensor,
        labels_N: Tensor,
        *,
        lr: float,
        mmd_weight: float,
        mse_weight: float,
        clip_norm: float,
    ):
        self.model, self.prototypes_NP, self.labels_N = model, prototypes_NP, labels_N
        self.counts_C1 = _counts(labels_N, len(model.centroids_CH))
        self.mmd_weight, self.mse_weight, self.clip_norm = mmd_weight, mse_weight, clip_norm
        networks = [[model.hidden.weight, model.norm.weight, model.norm.bias, *model.output.parameters()]]
        if model.trainable_centroids:
            networks.append([model.centroids_CH])
        self.networks = [_as_one_weight(network) for network in networks]
        self.optimizer = torch.optim.Adam(self.networks, lr=lr)

    def __call__(self, rows_B: Tensor, valid_BH: Tensor, wants_losses: bool = False) -> Tensor | None:
        """Returns (MMD², MSE) from before the step if wanted, (2,)."""
        model, labels_B = self.model, self.labels_N[rows_B]
        hidden, norm, output = model.hidden, model.norm, model.output
        linear_NP = self.prototypes_NP @ hidden.weight.T
        linear_BP = linear_NP[rows_B]
        normal_BP, means_P, inverse_stds_P = torch.native_batch_norm(
            linear_BP, norm.weight, norm.bias, norm.running_mean, norm.running_var, True, norm.momentum, norm.eps
        )
        active_BP = normal_BP.relu_()
        latents_BH = output(active_BP)
        means = None if model.trainable_centroids else _Means(self, linear_NP)
        targets_CH = model.centroids_CH if means is None else means.centroids_CH
        differences_BH = latents_BH - targets_CH[labels_B]
        losses_2 = None
        if wants_losses:
            losses_2 = torch.stack([squared_mmd(latents_BH, valid_BH), differences_BH.square().mean()])

        grad_BH = differences_BH.mul_(2 * self.mse_weight / differences_BH.numel())
        grad_CH = torch.zeros_like(targets_CH).index_add_(0, labels_B, grad_BH, alpha=-1)
        _add_mmd_gradient(grad_BH, latents_BH, valid_BH, self.mmd_weight)
        torch.mm(grad_BH.T, active_BP, out=output.weight.grad)
        torch.sum(grad_BH, 0, out=output.bias.grad)
        # ReLU leaves nothing negative, so its sign says where it let through.
        grad_BP = torch.mm(grad_BH, output.weight).mul_(active_BP.sign())
        grad_BP, grad_scale_P, grad_shift_P = torch.ops.aten.native_batch_norm_backward(
            *(grad_BP, linear_BP, norm.weight, None, None, means_P, inverse_stds_P),
            *(True, norm.eps, (True, True, True)),
        )
        norm.weight.grad.copy_(grad_scale_P)
        norm.bias.grad.copy_(grad_shift_P)
        torch.mm(grad_BP.T, self.prototypes_NP[rows_B], out=hidden.weight.grad)
        if means is None:
            model.centroids_CH.grad.copy_(grad_CH)
        elif len(rows_B) < len(self.labels_N):
            means.add_gradients(grad_CH)
        if self.clip_norm:
            for network in self.networks:
                network.grad.mul_((self.clip_norm / (network.grad.norm() + 1e-6)).clamp_max_(1.0))
        self.optimizer.step()
        return losses_2


class _Means:
    """The mean of F in each class, normalised as F is while it trains, but over all prototypes. Leaves no trace in
    its statistics."""

    def __init__(self, step: _Step, linear_NP: Tensor):
        model = step.model
        self.step, self.linear_NP, norm = step, linear_NP, model.norm
        normal_NP, self.means_P, self.inverse_stds_P = torch.native_batch_norm(
            linear_NP, norm.weight, norm.bias, None, None, True, 0.0, norm.eps
        )
        self.active_NP = normal_NP.relu_()
        self.hidden_CP = model._class_means(self.active_NP, step.labels_N).vectors_CK
        self.centroids_CH = model.output(self.hidden_CP)

    def add_gradients(self, grad_CH: Tensor) -> None:
        """To those of all weights, what these gradients of the centroids make of them."""
        step, model = self.step, self.step.model
        norm = model.norm
        model.output.weight.grad.addmm_(grad_CH.T, self.hidden_CP)
        model.output.bias.grad.add_(grad_CH.sum(0))
        grad_CP = torch.mm(grad_CH, model.output.weight).div_(step.counts_C1)
        grad_NP, grad_scale_P, grad_shift_P = torch.ops.aten.native_batch_norm_backward(
            *(grad_CP[step.labels_N].mul_(self.active_NP.sign()), self.linear_NP, norm.weight, None, None),
            *(self.means_P, self.inverse_stds_P, True, norm.eps, (True, True, True)),
        )
        norm.weight.grad.add_(grad_scale_P)
        norm.bias.grad.add_(grad_shift_P)
        model.hidden.weight.grad.addmm_(grad_NP.T, step.prototypes_NP)


def _counts(labels_N: Tensor, num_classes: int) -> Tensor:
    """Prototypes of each class, at least one, (C, 1)."""
    return torch.bincount(labels_N, minlength=num_classes).clamp_min_(1)[:, None]


def _add_mmd_gradient(grad_BH: Tensor, latents_BH: Tensor, valid_BH: Tensor, weight: float) -> None:
    """Adds weight · ∂MMD²/∂x of every latent x.

    With κ' = ∂κ/∂‖x − y‖², negative for the y of W: 4/B² Σ_y κ'(x, y) (x − y), y over the latents and W.
    """
    num = len(latents_BH)
    both_2BH = torch.cat([latents_BH, valid_BH])
    squares_2B = torch.linalg.vecdot(both_2BH, both_2BH)
    distances_B2B = torch.addmm(squares_2B, latents_BH, both_2BH.T, alpha=-2)
    distances_B2B.add_(squares_2B[:num, None]).clamp_min_(0)
    slopes_B2B = torch.zeros_like(distances_B2B)
    for variance in KERNEL_VARIANCES:
        slopes_B2B.add_((distances_B2B * (-0.5 / variance)).exp_(), alpha=-0.5 / variance)
    slopes_B2B[:, num:].neg_()
    factor = 4 * weight / num**2
    grad_BH.addcmul_(latents_BH, slopes_B2B.sum(dim=1, keepdim=True), value=factor)
    grad_BH.addmm_(slopes_B2B, both_2BH, alpha=-factor)


def _as_one_weight(weights: list[nn.Parameter]) -> nn.Parameter:
    """One vector, of which all weights of a network become parts, and their gradients parts of its gradient: Adam
    and clipping then have one thing to do and not five small ones."""
    whole = nn.Parameter(torch.cat([weight.detach().reshape(-1) for weight in weights]))
    whole.grad = torch.zeros_like(whole)
    sizes = [weight.numel() for weight in weights]
    parts = zip(whole.detach().split(sizes), whole.grad.split(sizes), strict=True)
    for weight, (values, gradient) in zip(weights, parts, strict=True):
        weight.data, weight.grad = values.view_as(weight), gradient.view_as(weight)
    return whole
