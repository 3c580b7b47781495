"""Means, losses, margins and nearest prototypes against values worked out by hand or by plain loops."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsim.equations.class_vectors import (
    ClassMeans,
    ClassVectors,
    class_margins,
    margins,
    nearest_prototype,
    prototype_loss,
)


def vectors(rows: list[list[float]], ids: list[int], num_classes: int) -> ClassVectors:
    return ClassVectors.from_rows(np.array(rows, np.float32).reshape(len(ids), -1), np.array(ids), num_classes)


def test_rows_come_back_in_class_order_as_they_travel():
    some = vectors([[5, 6], [1, 2]], [3, 0], 4)
    rows, ids = some.rows()
    assert rows.tolist() == [[1, 2], [5, 6]]
    assert ids.tolist() == [0, 3]
    assert (rows.dtype, ids.dtype) == (np.float32, np.int32)
    assert some.any
    none = ClassVectors.empty(4, 2)
    assert not none.any
    assert [array.shape for array in none.rows()] == [(0, 2), (0,)]


def test_means_over_several_batches_equal_a_loop_over_samples():
    draw = np.random.default_rng(0)
    features = draw.normal(size=(50, 7)).astype(np.float32)
    labels = draw.choice([0, 2, 5], size=50)
    means = ClassMeans(6, 7)
    for start in range(0, 50, 8):
        means.add(torch.from_numpy(features[start : start + 8]), torch.from_numpy(labels[start : start + 8]))
    result = means.means()
    assert result.present_C.tolist() == [True, False, True, False, False, True]
    for label in (0, 2, 5):
        expected = features[labels == label].mean(axis=0)
        np.testing.assert_allclose(result.vectors_CK[label].numpy(), expected, rtol=1e-5, atol=1e-6)
        assert means.weights_C[label] == (labels == label).sum()
    assert not result.vectors_CK[[1, 3, 4]].any()


def test_weighted_mean():
    means = ClassMeans(2, 1)
    means.add(torch.tensor([[1.0], [5.0]]), torch.tensor([0, 0]), torch.tensor([3.0, 1.0]))
    assert means.means().vectors_CK.tolist() == [[2.0], [0.0]]  # (3·1 + 1·5) / 4


def test_weights_below_one_still_give_a_mean():
    means = ClassMeans(1, 1)
    means.add(torch.tensor([[2.0], [4.0]]), torch.tensor([0, 0]), torch.tensor([0.25, 0.25]))
    assert means.means().vectors_CK.tolist() == [[3.0]]


def test_collecting_does_not_keep_the_graph():
    features = torch.ones(1, 2, requires_grad=True) * 2
    means = ClassMeans(1, 2)
    means.add(features, torch.tensor([0]))
    assert not means.sums_CK.requires_grad


def test_prototype_loss_by_hand():
    targets = vectors([[0, 0], [1, 1]], [0, 1], 3)
    features = torch.tensor([[3.0, 4.0], [1.0, 3.0], [9.0, 9.0]])
    labels = torch.tensor([0, 1, 2])  # class 2 has no prototype: it adds 0 but is counted in the mean
    mse = (25 / 2 + 4 / 2 + 0) / 3
    assert prototype_loss(features, labels, targets, "mse").item() == pytest.approx(mse)
    assert prototype_loss(features, labels, targets, "l2").item() == pytest.approx((5 + 2 + 0) / 3)


@pytest.mark.parametrize("distance", ["mse", "l2"])
def test_prototype_loss_gradient_by_finite_differences(distance):
    draw = torch.Generator().manual_seed(0)
    targets = ClassVectors(
        torch.randn(3, 4, generator=draw, dtype=torch.float64), torch.tensor([True, False, True])
    )
    features = torch.randn(5, 4, generator=draw, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 2, 0])
    assert torch.autograd.gradcheck(lambda f: prototype_loss(f, labels, targets, distance), features)


@pytest.mark.parametrize("distance", ["mse", "l2"])
def test_prototype_loss_at_zero_distance_has_no_nan(distance):
    targets = vectors([[1, 2]], [0], 2)
    features = torch.tensor([[1.0, 2.0], [0.0, 0.0]], requires_grad=True)
    loss = prototype_loss(features, torch.tensor([0, 1]), targets, distance)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
    assert features.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_margins_by_hand():
    points = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 5.0]])
    assert margins(points).tolist() == pytest.approx([5.0, 1.0, 1.0])
    assert margins(points[:1]).isnan().tolist() == [True]
    assert margins(points[:0]).shape == (0,)


def test_margins_of_nearly_equal_prototypes_far_from_the_origin():
    points = torch.full((2, 512), 1000.0)
    points[1, 0] += 0.125
    assert margins(points).tolist() == [0.125, 0.125]


def test_class_margins_are_nan_for_absent_classes():
    result = class_margins(vectors([[0, 0], [6, 8]], [1, 3], 5)).numpy()
    np.testing.assert_array_equal(result, [np.nan, 10, np.nan, 10, np.nan])


@given(seed=st.integers(0, 10**6), num_classes=st.integers(1, 12), offset=st.sampled_from([0.0, 50.0]))
def test_nearest_prototype_equals_a_loop(seed, num_classes, offset):
    draw = np.random.default_rng(seed)
    present = draw.random(num_classes) < 0.7
    present[draw.integers(num_classes)] = True
    rows = (draw.normal(size=(num_classes, 5)) + offset).astype(np.float32)
    features = (draw.normal(size=(20, 5)) + offset).astype(np.float32)
    ids = np.flatnonzero(present)
    predict = nearest_prototype(ClassVectors.from_rows(rows[ids], ids, num_classes))
    predicted = predict(torch.from_numpy(features)).numpy()
    for feature, label in zip(features.astype(np.float64), predicted, strict=True):
        distances = np.linalg.norm(rows[ids].astype(np.float64) - feature, axis=1)
        chosen = np.linalg.norm(rows[label].astype(np.float64) - feature)
        assert label in ids
        assert chosen <= distances.min() + 1e-4  # equal but for ties within rounding


def test_nearest_prototype_among_allowed_classes():
    prototypes = vectors([[0, 0], [1, 0], [9, 0]], [0, 1, 2], 4)
    features = torch.tensor([[0.1, 0.0]])
    allowed = torch.tensor([False, True, True, True])
    assert nearest_prototype(prototypes)(features).tolist() == [0]
    assert nearest_prototype(prototypes, allowed)(features).tolist() == [1]
    assert nearest_prototype(prototypes, torch.tensor([False, False, False, True])) is None
    assert nearest_prototype(ClassVectors.empty(4, 2)) is None


def test_nearest_of_two_hundred_equal_length_prototypes_does_not_depend_on_their_scale():
    draw = torch.Generator().manual_seed(3)
    rows = torch.nn.functional.normalize(torch.randn(200, 64, generator=draw), dim=1)
    features = torch.randn(100, 64, generator=draw)
    everything = torch.ones(200, dtype=torch.bool)
    small = nearest_prototype(ClassVectors(rows, everything))(features)
    large = nearest_prototype(ClassVectors(400 * rows, everything))(features)
    assert small.tolist() == large.tolist() == (features @ rows.T).argmax(dim=1).tolist()
