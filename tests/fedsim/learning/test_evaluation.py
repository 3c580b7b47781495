"""Counting correct predictions, by large batches that must not be noticed."""

import numpy as np
import pytest
import torch

from fedsim.data import Dataset, Subset
from fedsim.learning import evaluation
from fedsim.learning.evaluation import count_correct, outputs

CPU = torch.device("cpu")


@pytest.fixture
def many():
    """600 samples, more than two batches; the label is the position of the largest of three inputs."""
    inputs = np.random.default_rng(0).normal(size=(600, 3)).astype(np.float32)
    labels = inputs.argmax(axis=1).astype(np.int64)
    return Subset(Dataset("many", inputs, labels, 3, 600), np.arange(600))


def test_counts_over_several_batches(many):
    assert len(many) > 2 * evaluation.BATCH_SIZE
    assert count_correct(torch.nn.Identity(), many, CPU) == {"correct": 600, "tested": 600}
    expected = int((many.dataset.inputs.argmin(axis=1) == many.labels).sum())
    result = count_correct(torch.nn.Identity(), many, CPU, predict=lambda logits: logits.argmin(dim=1))
    assert result == {"correct": expected, "tested": 600}
    assert all(type(value) is int for value in result.values())


def test_forward_replaces_the_module_s_own(many):
    result = count_correct(torch.nn.Identity(), many, CPU, forward=lambda inputs: inputs.roll(1, dims=1))
    assert result["correct"] == 0


def test_nothing_to_test(many):
    empty = Subset(many.dataset, np.arange(0))
    assert count_correct(torch.nn.Identity(), empty, CPU) == {"correct": 0, "tested": 0}


@pytest.mark.parametrize("num_samples", [0, 1, 256, 300, 600])
def test_outputs_of_the_first_samples(many, num_samples):
    pieces = list(outputs(torch.nn.Identity(), many, CPU, num_samples=num_samples))
    collected = torch.cat([torch.zeros(0, 3), *(piece for piece, _ in pieces)])
    labels = torch.cat([torch.zeros(0, dtype=torch.int64), *(label for _, label in pieces)])
    np.testing.assert_array_equal(collected.numpy(), many.dataset.inputs[:num_samples])
    np.testing.assert_array_equal(labels.numpy(), many.labels[:num_samples])


def test_evaluation_mode_without_gradients_and_without_leaking_it(many):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.9))
    for result, _ in outputs(model, many, CPU):
        assert not result.requires_grad
        assert not torch.is_inference_mode_enabled()  # between the batches the caller's mode is in force
    assert not model.training
    assert count_correct(model, many, CPU) == count_correct(model, many, CPU)
