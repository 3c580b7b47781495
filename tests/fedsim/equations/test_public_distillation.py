"""Eq. 4 and 8 to 16 of FedProtoKD against transcriptions in numpy, with all that can degenerate."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsim.equations.class_vectors import ClassVectors
from fedsim.equations.distillation import divergence
from fedsim.equations.public_distillation import (
    Lesson,
    aggregate_logits,
    client_loss,
    distances_to_class,
    importance,
    nearest_share,
    num_kept,
)


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


# ------------------------------------------------------------------------------------------------ Eq. 4


def aggregate_by_loops(logits: np.ndarray) -> np.ndarray:
    num_clients, num_samples, num_classes = logits.shape
    result = np.zeros((num_samples, num_classes))
    for i in range(num_samples):
        variances = [np.var(logits[c, i].astype(np.float64)) for c in range(num_clients)]
        for c in range(num_clients):
            result[i] += variances[c] / sum(variances) * logits[c, i]
    return result


@pytest.mark.parametrize("num_clients", [1, 2, 7])
def test_logits_are_weighted_by_their_variance(num_clients):
    logits = draw(num_clients, 11, 5) * np.arange(1, num_clients + 1, dtype=np.float32)[:, None, None]
    ours = aggregate_logits(torch.from_numpy(logits)).numpy()
    np.testing.assert_allclose(ours, aggregate_by_loops(logits), rtol=1e-4, atol=1e-5)


def test_one_client_is_its_own_opinion():
    logits = draw(1, 6, 4)
    np.testing.assert_allclose(aggregate_logits(torch.from_numpy(logits)).numpy(), logits[0], rtol=1e-6)


def test_equal_variances_are_the_plain_mean():
    row = draw(6, 4)
    logits = np.stack([row, row[:, ::-1], np.roll(row, 1, axis=1)])  # the same numbers in other places
    expected = logits.mean(axis=0)
    np.testing.assert_allclose(aggregate_logits(torch.from_numpy(logits)).numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        aggregate_logits(torch.from_numpy(draw(3, 6, 4)), "equal"), draw(3, 6, 4).mean(axis=0)
    )


def test_clients_without_an_opinion():
    flat, clear = np.full((4, 3), 7.0, np.float32), draw(4, 3)
    with_one = aggregate_logits(torch.from_numpy(np.stack([flat, clear])))
    np.testing.assert_allclose(with_one.numpy(), clear, rtol=1e-6)  # the flat one has no weight
    none = aggregate_logits(torch.from_numpy(np.stack([flat, flat + 2])))
    np.testing.assert_array_equal(none.numpy(), flat + 1)


# ------------------------------------------------------------------------------------------- Eq. 8 to 10


def importance_by_numpy(distances, phi, k, epsilon=1e-8):
    closeness = 1 / (distances.astype(np.float64) + epsilon)
    closeness = (closeness - closeness.min()) / (closeness.max() - closeness.min())
    factor = 1 - 1 / (1 + np.exp(-k * (closeness - np.median(closeness))))
    return phi * (1 + closeness) + (1 - phi) * factor


@pytest.mark.parametrize(("phi", "k"), [(0.8, 10.0), (0.4, 3.0), (1.0, 10.0), (0.0, 25.0)])
@pytest.mark.parametrize("num", [2, 9, 10])
def test_importance_is_equation_10(phi, k, num):
    distances = np.abs(draw(num, seed=num)) + 0.2
    ours = importance(torch.from_numpy(distances), phi=phi, steepness=k).numpy()
    np.testing.assert_allclose(ours, importance_by_numpy(distances, phi, k), rtol=1e-4)


def test_importance_when_all_samples_are_at_the_same_distance():
    """d̂ = 0 = its median, so E = 1/2 and I = φ + (1 − φ) / 2."""
    for distance in (0.0, 3.0, math.inf):
        ours = importance(torch.full((5,), distance), phi=0.8, steepness=10.0)
        np.testing.assert_allclose(ours.numpy(), 0.9, rtol=1e-6)


def test_distances_that_differ_by_rounding_are_the_same():
    distances = torch.tensor([3.0, 3.0, 3.0, 3.0000002])
    assert distances[3] != distances[0]
    np.testing.assert_allclose(importance(distances, phi=0.8, steepness=10.0), 0.9, rtol=1e-5)


def test_importance_with_an_epsilon_that_is_nothing_to_a_float():
    distances = np.array([0.0, 1.0, 2.0], np.float32)
    ours = importance(torch.from_numpy(distances), phi=0.8, steepness=10.0, epsilon=1e-60).numpy()
    np.testing.assert_allclose(ours, importance_by_numpy(distances, 0.8, 10.0, 1e-60), rtol=1e-5)


def test_importance_rises_with_closeness_unless_the_sigmoid_is_too_steep():
    distances = torch.linspace(10.0, 0.5, 200)  # nearer and nearer
    gentle = importance(distances, phi=0.8, steepness=15.9)
    assert (gentle.diff() > 0).all()
    steep = importance(distances, phi=0.8, steepness=60.0)
    assert (steep.diff() < 0).any()
    as_told = importance(distances, phi=0.8, steepness=60.0, sigmoid="rising")
    assert (as_told.diff() > 0).all()


def test_a_sample_without_a_prototype_is_the_farthest():
    prototypes = ClassVectors.from_rows(np.array([[0.0, 0.0], [3.0, 4.0]], np.float32), np.array([0, 2]), 3)
    features = torch.tensor([[0.0, 2.0], [3.0, 5.0], [1.0, 1.0]])
    distances = distances_to_class(features, torch.tensor([0, 2, 1]), prototypes)
    assert distances.tolist() == [2.0, 1.0, math.inf]
    weights = importance(distances, phi=0.8, steepness=10.0)
    assert weights.isfinite().all() and weights.argmin() == 2


# ------------------------------------------------------------------------------------------ FedPKD's filter


def kept_by_loops(distances, labels, share, num_classes):
    """Largest remainders, then the nearest of each class."""
    counts = [int((labels == c).sum()) for c in range(num_classes)]
    wanted = [share * count for count in counts]
    kept = [math.floor(number) for number in wanted]
    order = sorted(range(num_classes), key=lambda c: (-(wanted[c] - kept[c]), c))
    for c in order[: max(1, round(share * len(labels))) - sum(kept)]:
        kept[c] += 1
    rows = []
    for c in range(num_classes):
        own = sorted(np.flatnonzero(labels == c), key=lambda row: (distances[row], row))
        rows += own[: kept[c]]
    return sorted(int(row) for row in rows)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=40), st.floats(0.01, 1.0))
def test_the_nearest_of_each_class_are_kept(samples, share):
    labels = np.array([label for label, _ in samples])
    distances = np.array([float(distance) for _, distance in samples], np.float32)
    ours = nearest_share(torch.from_numpy(distances), torch.from_numpy(labels), share, 5)
    assert ours.tolist() == kept_by_loops(distances, labels, share, 5)
    assert len(ours) == num_kept(len(labels), share)


def test_the_filter_by_hand():
    """Three of class 0, two of class 2, none of class 1: 80 % of five are four, 2.4 and 1.6 become 2 and 2."""
    distances = torch.tensor([5.0, 1.0, 3.0, 9.0, math.inf])
    labels = torch.tensor([0, 2, 0, 0, 2])
    assert nearest_share(distances, labels, 0.8, 3).tolist() == [0, 1, 2, 4]
    assert nearest_share(distances, labels, 1.0, 3).tolist() == [0, 1, 2, 3, 4]


# ------------------------------------------------------------------------------------------ Eq. 11 to 16


def kl_by_numpy(first: np.ndarray, second: np.ndarray, temperature: float = 1.0) -> float:
    p, q = softmax(first.astype(np.float64) / temperature), softmax(second.astype(np.float64) / temperature)
    return float((p * np.log(p / q)).sum(axis=1).mean()) * temperature**2


def ce_by_numpy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return -np.log(softmax(logits.astype(np.float64))[np.arange(len(labels)), labels])


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_divergence_in_both_directions(temperature):
    student, teacher = draw(8, 5), draw(8, 5, seed=1)
    both = torch.from_numpy(student), torch.from_numpy(teacher)
    forward = divergence(*both, "forward", temperature).item()
    assert forward == pytest.approx(kl_by_numpy(teacher, student, temperature), rel=1e-4)
    reverse = divergence(*both, "reverse", temperature).item()
    assert reverse == pytest.approx(kl_by_numpy(student, teacher, temperature), rel=1e-4)
    assert divergence(both[0], both[0]).item() == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("upsilon", [0.0, 0.5, 1.0])
def test_server_loss_is_equations_11_to_13(upsilon):
    logits, features, teacher = draw(6, 4), draw(6, 3, seed=1), draw(6, 4, seed=2)
    labels, weights = teacher.argmax(axis=1), np.linspace(0.8, 1.6, 6, dtype=np.float32)
    rows = draw(4, 3, seed=3)
    prototypes = ClassVectors.from_rows(rows, np.arange(4), 4)
    kd = kl_by_numpy(teacher, logits) + float((ce_by_numpy(logits, labels) * weights).mean())
    pl = float(np.mean([((features[i] - rows[labels[i]]) ** 2).mean() for i in range(6)]))
    # The batch is some of more samples, in another order.
    order = np.array([4, 0, 7, 2, 5, 3])
    taught = [np.full((8, *array.shape[1:]), 9, array.dtype) for array in (teacher, labels, weights)]
    for everything, batch in zip(taught, (teacher, labels, weights), strict=True):
        everything[order] = batch
    lesson = Lesson(*map(torch.from_numpy, taught), prototypes, upsilon)
    ours = lesson.loss(*map(torch.from_numpy, (logits, features, order))).item()
    assert ours == pytest.approx(upsilon * kd + (1 - upsilon) * pl, rel=1e-4)


def test_a_class_without_a_prototype_pulls_nowhere():
    features = torch.zeros(2, 3)
    prototypes = ClassVectors.from_rows(np.full((1, 3), 2.0, np.float32), np.array([0]), 2)
    logits, labels = torch.zeros(2, 2), torch.tensor([0, 1])
    lesson = Lesson(logits, labels, torch.ones(2), prototypes, upsilon=0.0)
    loss = lesson.loss(logits, features, torch.arange(2))
    assert loss.item() == pytest.approx(4.0 / 2)  # one of two samples is at a mean squared distance of 4


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_client_loss_is_equations_14_to_16(eta):
    logits, teacher = draw(7, 5), draw(7, 5, seed=4)
    expected = eta * kl_by_numpy(teacher, logits) + (1 - eta) * ce_by_numpy(logits, teacher.argmax(axis=1)).mean()
    ours = client_loss(torch.from_numpy(logits), torch.from_numpy(teacher), eta=eta).item()
    assert ours == pytest.approx(expected, rel=1e-4)
