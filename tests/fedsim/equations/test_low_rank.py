"""Low-rank factors: what they keep, how many numbers they are, what is sent as it is, what is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from fedsim.equations.low_rank import RAW, LowRankCodec, cut, rank_for

SHAPES = [(40, 30), (30, 40), (24, 3, 5, 5), (200, 7)]


def decaying(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """A weight whose singular values fall by 0.7 each, as a matrix of its first dimension by all others."""
    rows, columns = shape[0], int(np.prod(shape[1:]))
    draw, small = np.random.default_rng(seed), min(rows, columns)
    left, _ = np.linalg.qr(draw.normal(size=(rows, small)))
    right, _ = np.linalg.qr(draw.normal(size=(columns, small)))
    return (left * 0.7 ** np.arange(small) @ right.T).reshape(shape).astype(np.float32)


def lowest_rank(weight: np.ndarray, energy: float) -> int:
    """By counting up, from numpy's own decomposition."""
    squares = np.linalg.svd(weight.reshape(len(weight), -1).astype(np.float64), compute_uv=False) ** 2
    return next(t for t in range(1, len(squares) + 1) if squares[:t].sum() >= energy * squares.sum() * (1 - 1e-12))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("energy", [0.3, 0.9, 0.95, 0.98])
def test_the_lowest_rank_that_keeps_the_energy_and_the_error_that_it_leaves(shape, energy):
    weight, codec = decaying(shape), LowRankCodec((shape,))
    factors, ranks = codec.encode(weight.reshape(-1), energy)
    rank, rows = lowest_rank(weight, energy), shape[0]
    columns = weight.size // rows
    assert ranks.dtype == np.int32 and factors.dtype == np.float32
    assert ranks.tolist() == [rank]
    assert len(factors) == rank * (rows + columns + 1) < weight.size
    decoded = codec.decode(factors, ranks).reshape(shape)
    lost = np.square(decoded - weight, dtype=np.float64).sum() / np.square(weight, dtype=np.float64).sum()
    assert lost <= (1 - energy) + 1e-6
    # Eckart and Young: no other matrix of this rank is nearer than the cut decomposition.
    squares = np.linalg.svd(weight.reshape(rows, -1).astype(np.float64), compute_uv=False) ** 2
    assert lost == pytest.approx(squares[rank:].sum() / squares.sum(), abs=1e-6)


@pytest.mark.parametrize("shape", [(40, 30), (30, 40)])
def test_the_factors_are_those_of_a_singular_value_decomposition(shape):
    weight = decaying(shape)
    left, sigma, right = (factor.numpy() for factor in cut(torch.from_numpy(weight), 0.98))
    np.testing.assert_allclose(left.T @ left, np.eye(len(sigma)), atol=1e-6)
    np.testing.assert_allclose(right @ right.T, np.eye(len(sigma)), atol=1e-6)
    np.testing.assert_allclose(sigma, 0.7 ** np.arange(len(sigma)), rtol=1e-5)
    np.testing.assert_allclose(left * sigma @ right, left @ (left.T @ weight), atol=1e-6)


def test_a_matrix_of_low_rank_comes_back_whole_even_at_full_energy():
    draw = np.random.default_rng(1)
    weight = (draw.normal(size=(50, 2)) @ draw.normal(size=(2, 60))).astype(np.float32)
    codec = LowRankCodec((weight.shape,))
    factors, ranks = codec.encode(weight.reshape(-1), 0.999999)
    assert ranks.tolist() == [2]
    np.testing.assert_allclose(codec.decode(factors, ranks), weight.reshape(-1), atol=1e-5)


def test_no_rank_is_0_and_none_is_above_the_number_of_singular_values():
    assert rank_for(torch.ones(4, dtype=torch.float64), 0.95) == 4  # needs them all: the published code says 0
    assert rank_for(torch.ones(4, dtype=torch.float64), 1.0) == 4
    assert rank_for(torch.ones(4, dtype=torch.float64), 0.75) == 3
    assert rank_for(torch.ones(4, dtype=torch.float64), 1e-9) == 1
    assert rank_for(torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64), 1.0) == 2
    assert rank_for(torch.zeros(4, dtype=torch.float64), 0.95) == 1


@pytest.mark.parametrize(
    "weight",
    [
        np.random.default_rng(0).normal(size=(2, 512)).astype(np.float32),  # two classes
        np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32),  # as before training
        np.random.default_rng(0).normal(size=(1, 9)).astype(np.float32),
    ],
)
def test_what_factors_would_not_make_smaller_travels_to_the_bit(weight):
    codec = LowRankCodec((weight.shape,))
    factors, ranks = codec.encode(weight.reshape(-1), 0.95)
    assert ranks.tolist() == [RAW]
    np.testing.assert_array_equal(factors, weight.reshape(-1))
    np.testing.assert_array_equal(codec.decode(factors, ranks), weight.reshape(-1))


def test_factors_that_are_as_many_numbers_as_the_matrix_are_not_sent():
    # Rank 1 of 2×3 is 6 numbers, of 3×3 it is 7 for 9.
    for shape, rank in (((2, 3), RAW), ((3, 3), 1)):
        _, ranks = LowRankCodec((shape,)).encode(np.ones(shape, np.float32).reshape(-1), 0.95)
        assert ranks.tolist() == [rank]


def test_zeros_have_rank_1_and_stay_zeros():
    codec = LowRankCodec(((20, 30),))
    factors, ranks = codec.encode(np.zeros(600, np.float32), 0.95)
    assert ranks.tolist() == [1]
    assert not codec.decode(factors, ranks).any()


def test_a_matrix_with_a_hole_travels_as_it_is_for_the_border_to_find():
    weight = decaying((20, 30))
    weight[3, 4] = np.nan
    factors, ranks = LowRankCodec(((20, 30),)).encode(weight.reshape(-1), 0.5)
    assert ranks.tolist() == [RAW]
    np.testing.assert_array_equal(factors, weight.reshape(-1))


def test_a_whole_model_in_the_order_of_its_parameters():
    model = nn.Sequential(nn.Conv2d(3, 24, 5), nn.BatchNorm2d(24), nn.Flatten(), nn.Linear(30, 40))
    weights = [
        decaying((24, 3, 5, 5)),
        *np.random.default_rng(2).normal(size=(3, 24)),
        decaying((40, 30)),
        np.ones(40),
    ]
    vector = np.concatenate([weight.reshape(-1) for weight in weights]).astype(np.float32)
    codec = LowRankCodec.of(model)
    assert codec.num_matrices == 2
    factors, ranks = codec.encode(vector, 0.9)
    first, second = lowest_rank(weights[0], 0.9), lowest_rank(weights[4], 0.9)
    assert ranks.tolist() == [first, second]
    assert len(factors) == first * (24 + 75 + 1) + 3 * 24 + second * (40 + 30 + 1) + 40
    decoded = codec.decode(factors, ranks)
    assert decoded.shape == vector.shape and decoded.dtype == np.float32
    np.testing.assert_array_equal(decoded[1800 : 1800 + 72], vector[1800 : 1800 + 72])  # bias and normalisation
    np.testing.assert_array_equal(decoded[-40:], 1)
    assert np.square(decoded - vector).sum() <= 0.1001 * sum(np.square(weights[i]).sum() for i in (0, 4))


@pytest.mark.parametrize(
    ("num_numbers", "ranks", "reason"),
    [
        (71 * 3, [31], "gives rank 31 to a weight of shape"),
        (71 * 3, [-1], "gives rank -1 to a weight of shape"),
        (71 * 3 - 1, [3], "has 212 numbers, but 'ranks' stands for 213"),
        (71 * 3, [RAW], "has 213 numbers, but 'ranks' stands for 1200"),
    ],
)
def test_ranks_that_do_not_fit_are_refused(num_numbers, ranks, reason):
    codec = LowRankCodec(((40, 30),))
    with pytest.raises(ValueError, match=f"field '.*{reason}"):
        codec.decode(np.zeros(num_numbers, np.float32), np.array(ranks, np.int32))
