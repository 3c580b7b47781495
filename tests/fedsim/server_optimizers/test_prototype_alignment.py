"""ProtoNorm's alignment: known optimal arrangements, and Eq. 8 to 14 transcribed as loops."""

import math

import numpy as np
import pytest
import torch

from fedsim.server_optimizers.prototype_alignment import (
    _force,
    _squared_distances,
    align,
    force_as_printed,
    hyperspherical_energy,
    unit,
)


def points(num: int, dim: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cosines(vectors: torch.Tensor) -> torch.Tensor:
    """All pairs, each once."""
    rows, columns = torch.triu_indices(len(vectors), len(vectors), offset=1)
    return (vectors @ vectors.T)[rows, columns]


def force_by_loops(c: np.ndarray, s: float) -> np.ndarray:
    """Eq. 11 for s = 0; minus the derivative of Σ ‖c_j − c_k‖^−s otherwise."""
    force = np.zeros_like(c)
    for j in range(len(c)):
        for k in range(len(c)):
            if j != k:
                difference = c[j] - c[k]
                distance = np.linalg.norm(difference)
                force[j] += difference / distance**2 if s == 0 else s * difference / distance ** (s + 2)
    return force


def align_by_loops(start: np.ndarray, iterations: int, s: float = 0.0) -> tuple[np.ndarray, float]:
    """Algorithm 1 with μ = 0.9, η = 0.1 and its decay, in all K features; also the mean force at the end."""
    c = start / np.linalg.norm(start, axis=1, keepdims=True)
    velocity, lr = np.zeros_like(c), 0.1
    for iteration in range(iterations):
        force = force_by_loops(c, s)
        velocity = 0.9 * velocity + lr * force  # Eq. 12
        c = c + velocity  # Eq. 13
        c /= np.linalg.norm(c, axis=1, keepdims=True)  # Eq. 14
        if iteration % 10 == 0:
            lr *= 0.95
    return c, np.linalg.norm(force, axis=1).mean()


@pytest.mark.parametrize("s", [0.0, 1.0])
@pytest.mark.parametrize(("num", "dim"), [(4, 9), (6, 2), (5, 5)])
def test_equals_algorithm_1_as_loops(num, dim, s):
    start = points(num, dim)
    result = align(start, s=s, max_iterations=25, tolerance=0.0)
    expected, mean_force = align_by_loops(start.numpy(), 25, s)
    np.testing.assert_allclose(result.prototypes_nK.numpy(), expected, atol=1e-6)
    assert result.iterations == 25
    assert not result.converged
    assert result.mean_force == pytest.approx(mean_force, rel=1e-6)


@pytest.mark.parametrize("s", [0.0, 1.0, 2.5])
def test_the_force_on_all_points_at_once_is_equation_11(s):
    c = unit(points(6, 4))
    printed = force_as_printed(c, s)
    torch.testing.assert_close(_force(c, _squared_distances(c), s), printed, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(printed.numpy(), force_by_loops(c.numpy(), s), rtol=1e-12)


def test_force_is_minus_the_gradient_of_the_energy():
    """Eq. 10 and 11, and their Riesz counterparts, by finite differences of an energy written out here."""

    def energy(c: np.ndarray, s: float) -> float:
        pairs = [np.linalg.norm(c[j] - c[k]) for j in range(len(c)) for k in range(j + 1, len(c))]
        return sum(-math.log(d) if s == 0 else d**-s for d in pairs)

    c = points(4, 3).numpy()
    for s in (0.0, 1.0, 2.5):
        force = force_by_loops(c, s)
        for j, axis in [(0, 0), (2, 1), (3, 2)]:
            moved = [c.copy(), c.copy()]
            moved[0][j, axis] += 1e-6
            moved[1][j, axis] -= 1e-6
            slope = (energy(moved[0], s) - energy(moved[1], s)) / 2e-6
            assert force[j, axis] == pytest.approx(-slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize(
    ("s", "expected"), [(0.0, -math.log(2) - 2 * math.log(math.sqrt(2))), (1.0, 0.5 + 2 / math.sqrt(2))]
)
def test_energy_by_hand(s, expected):
    # Three points on a circle at 0°, 90° and 180°, of any length: distances √2, √2 and 2.
    three = torch.tensor([[3.0, 0.0], [0.0, 0.1], [-7.0, 0.0]])
    assert hyperspherical_energy(three, s) == pytest.approx(expected, abs=1e-8)


def test_two_points_in_the_plane_end_opposite():
    result = align(torch.tensor([[1.0, 0.2], [1.0, -0.1]]))
    assert cosines(result.prototypes_nK).item() == pytest.approx(-1, abs=1e-6)
    assert result.converged
    assert result.energy == pytest.approx(-math.log(2), abs=1e-6)
    assert result.energy < result.energy_before


def test_four_points_in_space_end_as_a_tetrahedron():
    result = align(points(4, 3), max_iterations=2000, tolerance=0.0)
    np.testing.assert_allclose(cosines(result.prototypes_nK).numpy(), -1 / 3, atol=1e-6)


@pytest.mark.parametrize(("num", "dim"), [(2, 7), (3, 2), (5, 4), (10, 512), (10, 9)])
def test_up_to_k_plus_one_points_end_as_a_simplex(num, dim):
    result = align(points(num, dim), max_iterations=3000, tolerance=0.0, decay=0.999)
    np.testing.assert_allclose(cosines(result.prototypes_nK).numpy(), -1 / (num - 1), atol=1e-5)


def test_six_points_in_the_plane_end_as_a_hexagon():
    result = align(points(6, 2), max_iterations=3000, tolerance=0.0, decay=0.999)
    angles = np.sort(np.arctan2(*result.prototypes_nK.T.numpy()))
    gaps = np.diff(np.append(angles, angles[0] + 2 * math.pi))
    np.testing.assert_allclose(gaps, math.pi / 3, atol=1e-4)


def test_a_hundred_classes_come_near_the_distance_of_orthogonal_vectors():
    crowded = points(100, 512) * 0.3 + 1.0  # features after ReLU all point into one corner
    result = align(crowded.float())
    assert result.prototypes_nK.dtype == torch.float32
    assert result.distances_T[0] < 0.5
    assert result.distances_T[-1] == pytest.approx(math.sqrt(2), rel=0.02)
    assert len(result.distances_T) == result.iterations + 1
    torch.testing.assert_close(result.prototypes_nK.norm(dim=1), torch.ones(100))


def published_stop(start: np.ndarray, max_iterations: int = 500) -> tuple[np.ndarray, int]:
    """Algorithm 1 in all K features with the stopping rule of the published runs; also the iterations made.

    The mean norm of the forces of iteration i (from 0), rounded to four decimals, is f_i. f_10 is kept; for i > 10
    a counter grows where f_i equals f_(i-1) and is 0 again otherwise; at 10 it is over.
    """
    c = start / np.linalg.norm(start, axis=1, keepdims=True)
    velocity, lr, last, count = np.zeros_like(c), 0.1, None, 0
    for i in range(max_iterations):
        differences = c[:, None] - c[None]
        squares = (differences**2).sum(axis=2) + 1e-10
        force = (differences / squares[:, :, None]).sum(axis=1)
        velocity = 0.9 * velocity + lr * force
        c = c + velocity
        c /= np.linalg.norm(c, axis=1, keepdims=True)
        if i % 10 == 0:
            lr *= 0.95
        f = round(float(np.linalg.norm(force, axis=1).mean()), 4)
        if i == 10:
            last = f
        elif i > 10:
            count = count + 1 if f == last else 0
            last = f
            if count >= 10:
                return c, i + 1
    return c, max_iterations


@pytest.mark.parametrize(
    ("num", "dim", "seed"), [(100, 64, 0), (40, 16, 1), (40, 64, 2), (10, 64, 3), (12, 4, 4), (5, 3, 5)]
)
def test_stops_where_the_published_rule_does(num, dim, seed):
    start = points(num, dim, seed)
    result = align(start)
    expected, iterations = published_stop(start.numpy())
    assert result.iterations == iterations
    np.testing.assert_allclose(result.prototypes_nK.numpy(), expected, atol=1e-6)


def test_a_slow_drift_is_no_rest():
    """With as many classes as here the force changes by less than half a unit each time, and yet goes on."""
    result = align(points(100, 64))
    assert result.iterations > 60
    assert torch.pdist(result.prototypes_nK).min() > 1.1


def test_stops_after_ten_equal_forces_and_not_before_iteration_twenty():
    simplex = unit(torch.eye(4, dtype=torch.float64) - 0.25)  # already at rest
    result = align(simplex)
    assert (result.iterations, result.converged) == (21, True)
    # At rest the force is radial: Σ_k (1 − cos)/(2 − 2 cos) = (n − 1)/2 along the point itself.
    assert result.mean_force == pytest.approx(1.5, rel=1e-6)
    assert not align(points(30, 64), max_iterations=5).converged


def test_momentum_and_decay_matter_as_written():
    start = points(5, 4)
    without = align(start, max_iterations=1, momentum=0.0, tolerance=0.0)
    c = unit(start).numpy()
    moved = c + 0.1 * force_by_loops(c, 0.0)  # the first step uses η itself, with or without momentum
    moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    np.testing.assert_allclose(without.prototypes_nK.numpy(), moved, atol=1e-8)
    force = force_by_loops(moved, 0.0)
    twice = moved + 0.095 * force  # decayed once, after iteration 0
    twice /= np.linalg.norm(twice, axis=1, keepdims=True)
    second = align(start, max_iterations=2, momentum=0.0, tolerance=0.0)
    np.testing.assert_allclose(second.prototypes_nK.numpy(), twice, atol=1e-8)


@pytest.mark.parametrize("num", [0, 1])
def test_nothing_to_spread(num):
    result = align(3 * torch.ones(num, 4))
    assert result.iterations == 0
    assert result.energy == 0
    np.testing.assert_allclose(result.prototypes_nK.numpy(), np.full((num, 4), 0.5), rtol=1e-6)


@pytest.mark.parametrize("vector", [[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
def test_equal_or_zero_prototypes_part_without_nan(vector):
    result = align(torch.tensor([vector] * 3))
    assert result.prototypes_nK.isfinite().all()
    assert cosines(result.prototypes_nK).max() < 0
    again = align(torch.tensor([vector] * 3))
    assert torch.equal(result.prototypes_nK, again.prototypes_nK)


def test_two_hundred_classes_in_few_features_stay_finite():
    result = align(points(200, 16), max_iterations=50)
    assert result.prototypes_nK.isfinite().all()
    assert result.energy < result.energy_before
