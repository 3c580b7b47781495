"""Prototype alignment: ProtoNorm's server step (Lee et al. 2025, Eq. 8 to 14, Algorithm 1).

Prototypes are charged points on the unit sphere that push each other away until nothing moves any more:

    F_j = −∇_j E = Σ_{k≠j} (c_j − c_k) / ‖c_j − c_k‖²      (Eq. 11, for E = Σ_{j<k} log 1/‖c_j − c_k‖, Eq. 10)
    v_j ← μ v_j + η F_j                                     (Eq. 12)
    c_j ← (c_j + v_j) / ‖c_j + v_j‖                         (Eq. 13 and 14)

With s > 0 the energy is Riesz's Σ ‖c_j − c_k‖^−s (Eq. 8) itself instead of its logarithmic surrogate, and the
force s · Σ (c_j − c_k) / ‖c_j − c_k‖^(s+2).

All forces lie in the span of the points, so n points of K > n features are moved in n coordinates of that
span (by QR) and taken back at the end: the same motion, K/n times cheaper, hence affordable in double
precision. All pairs at once are Gram matrices: F = rowsum(W) · c − W c with W_jk = 1/‖c_j − c_k‖². The tests
compare it with `force_as_printed`.

Dimensions: n points, K features, r = min(n, K) coordinates.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SOFTENING = 1e-10
"""Added to squared distances, as published; two equal points exert no force on each other."""
COINCIDENT = 1e-6
"""Closer points than this would hardly ever part, so they are moved apart at random before the start."""

_WARM_UP = 10
"""The number of the first iteration whose force is compared with the next."""


@dataclass(frozen=True)
class Alignment:
    """The aligned unit vectors, and how they came about."""

    prototypes_nK: Tensor
    iterations: int
    converged: bool
    energy_before: float
    energy: float
    mean_force: float
    distances_T: Tensor
    """Mean distance over all pairs, before the first iteration and after each."""


def align(
    prototypes_nK: Tensor,
    *,
    s: float = 0.0,
    momentum: float = 0.9,
    lr: float = 0.1,
    decay: float = 0.95,
    decay_every: int = 10,
    max_iterations: int = 500,
    tolerance: float = 1e-4,
    patience: int = 10,
    generator: torch.Generator | None = None,
) -> Alignment:
    """Spread the directions of the given vectors as far apart as possible.

    η is multiplied by `decay` after every iteration whose number, from 0, is a multiple of `decay_every`. The mean
    force of an iteration is rounded to a multiple of `tolerance`. It ends when, after iteration 10, this was the
    same as in the iteration before `patience` times running; with a `tolerance` of 0 it goes on to the last.
    `generator` is used only to part coincident points.
    """
    start_nK = _part_coincident(unit(prototypes_nK.double()), generator)
    # c = coordinates · basis: an isometry, so that distances and forces are the same in both.
    basis_Kr, triangle_rn = torch.linalg.qr(start_nK.T)
    points_nr = triangle_rn.T.contiguous()
    velocity_nr = torch.zeros_like(points_nr)
    squares_nn = _squared_distances(points_nr)
    energy_before = _energy(squares_nn, s)
    distances = [_mean_distance(squares_nn)]
    rounded_before, num_still, iterations, mean_force = -1, 0, 0, 0.0
    for iteration in range(max_iterations if len(points_nr) > 1 else 0):
        force_nr = _force(points_nr, squares_nn, s)
        velocity_nr.mul_(momentum).add_(force_nr, alpha=lr)  # Eq. 12
        points_nr = unit(points_nr + velocity_nr)  # Eq. 13, 14
        squares_nn = _squared_distances(points_nr)
        distances.append(_mean_distance(squares_nn))
        if iteration % decay_every == 0:
            lr *= decay
        iterations = iteration + 1
        mean_force = float(force_nr.norm(dim=1).mean())
        if not tolerance:
            continue
        # Not the same as a small change: a slow drift passes from one rounded value to the next all the time.
        rounded = round(mean_force / tolerance)
        num_still = num_still + 1 if iteration > _WARM_UP and rounded == rounded_before else 0
        if num_still == patience:
            break
        rounded_before = rounded
    return Alignment(
        prototypes_nK=unit(points_nr @ basis_Kr.T).to(prototypes_nK.dtype),
        iterations=iterations,
        converged=num_still == patience,
        energy_before=energy_before,
        energy=_energy(squares_nn, s),
        mean_force=mean_force,
        distances_T=torch.tensor(distances),
    )


def hyperspherical_energy(prototypes_nK: Tensor, s: float = 0.0) -> float:
    """Eq. 8 of the vectors' directions: Σ_{j<k} ‖c_j − c_k‖^−s, or Σ_{j<k} log 1/‖c_j − c_k‖ for s = 0."""
    return _energy(_squared_distances(unit(prototypes_nK.double())), s)


def unit(vectors_nK: Tensor) -> Tensor:
    """Directions; a zero vector stays zero."""
    return torch.nn.functional.normalize(vectors_nK, dim=1)


def force_as_printed(points_nK: Tensor, s: float = 0.0) -> Tensor:
    """F_j = Σ_{k≠j} (c_j − c_k) / ‖c_j − c_k‖² (Eq. 11), or s · Σ (c_j − c_k) / ‖c_j − c_k‖^(s+2) for s > 0."""
    differences_nnK = points_nK[:, None] - points_nK
    lengths_nn = differences_nnK.norm(dim=2).fill_diagonal_(1.0)  # k = j adds 0 / 1
    return ((s or 1.0) * differences_nnK / lengths_nn[:, :, None] ** (s + 2)).sum(dim=1)


def _squared_distances(points_nr: Tensor) -> Tensor:
    gram_nn = points_nr @ points_nr.T
    squares_n = gram_nn.diagonal()
    return (squares_n[:, None] + squares_n[None] - 2 * gram_nn).clamp_min_(0.0)


def _force(points_nr: Tensor, squares_nn: Tensor, s: float) -> Tensor:
    """`force_as_printed` of all points at once, with softened distances."""
    softened_nn = squares_nn + SOFTENING
    weights_nn = softened_nn.reciprocal_() if s == 0 else s * softened_nn.pow_(-(s / 2 + 1))
    weights_nn.fill_diagonal_(0.0)
    return weights_nn.sum(dim=1, keepdim=True) * points_nr - weights_nn @ points_nr


def _energy(squares_nn: Tensor, s: float) -> float:
    num_points = len(squares_nn)
    rows, columns = torch.triu_indices(num_points, num_points, offset=1, device=squares_nn.device)
    pairs = squares_nn[rows, columns] + SOFTENING
    return float(-0.5 * pairs.log().sum() if s == 0 else pairs.pow(-s / 2).sum())


def _mean_distance(squares_nn: Tensor) -> float:
    num_pairs = len(squares_nn) * (len(squares_nn) - 1)  # each counted twice; the diagonal adds nothing
    return float(squares_nn.sqrt().sum()) / max(num_pairs, 1)


def _part_coincident(points_nK: Tensor, generator: torch.Generator | None) -> Tensor:
    squares_nn = _squared_distances(points_nK).fill_diagonal_(1.0)
    if len(points_nK) < 2 or float(squares_nn.min()) >= COINCIDENT**2:
        return points_nK
    generator = generator or torch.Generator().manual_seed(0)
    noise_nK = torch.randn(points_nK.shape, generator=generator, dtype=points_nK.dtype).to(points_nK.device)
    return unit(points_nK + 1e-3 * noise_nK)
