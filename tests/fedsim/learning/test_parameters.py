"""Weights that travel come back bit by bit, and means are those of numpy."""

import numpy as np
import pytest
import torch
from torch import nn

from fedsim.learning import parameters


def network(seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))


def test_a_module_becomes_one_vector_and_comes_back():
    sender, receiver = network(0), network(1)
    vector = parameters.flatten(sender)
    assert vector.dtype == np.float32
    assert vector.shape == (parameters.num_parameters(sender),) == (2 * 9 + 2 + 4 + 24 + 3,)
    parameters.load_flat(receiver, vector)
    for sent, received in zip(sender.parameters(), receiver.parameters(), strict=True):
        assert torch.equal(sent, received)


def test_running_statistics_stay_where_they_are():
    sender, receiver = network(0), network(1)
    sender[1].running_mean.fill_(7.0)
    parameters.load_flat(receiver, parameters.flatten(sender))
    assert torch.equal(receiver[1].running_mean, torch.zeros(2))


def test_a_vector_of_another_model_does_not_fit():
    with pytest.raises((RuntimeError, ValueError)):
        parameters.load_flat(network(0), np.zeros(5, np.float32))


def test_the_mean_is_weighted_by_samples():
    draw = np.random.default_rng(3)
    vectors = [draw.normal(size=11).astype(np.float32) for _ in range(3)]
    expected = np.average(np.stack(vectors), axis=0, weights=[5, 1, 10])
    np.testing.assert_allclose(parameters.weighted_mean(vectors, [5, 1, 10]), expected, rtol=1e-6)
