"""The training loop against SGD written out by hand, and where its random draws come from."""

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedsim.config import Train
from fedsim.learning.training import run_epochs, samples_per_epoch
from fedsim.seeds import Streams

CPU = torch.device("cpu")


def run(model, data, *, loss=None, modules=None, round=0, client=0, seed=1, **settings):
    own = {key: settings.pop(key) for key in ("clip_norm", "learning_rates", "purpose") if key in settings}
    return run_epochs(
        loss or (lambda batch: cross_entropy(model(batch.inputs), batch.labels_B)),
        modules or [model],
        data,
        Train(**{"batch_size": 6, "lr": 0.1, **settings}),
        streams=Streams(seed),
        client=client,
        round=round,
        device=CPU,
        **own,
    )


def weights(module: nn.Module) -> np.ndarray:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).numpy()


def softmax_regression_by_hand(weight, bias, inputs, labels, batch_size, lr, epochs):
    """Plain SGD for a linear model: ∂loss/∂logits = (softmax − one-hot) / B."""
    losses = []
    for _ in range(epochs):
        for start in range(0, len(labels) - len(labels) % batch_size, batch_size):
            x, y = inputs[start : start + batch_size], labels[start : start + batch_size]
            logits = x @ weight.T + bias
            shares = np.exp(logits - logits.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            losses.append(-np.log(shares[np.arange(len(y)), y]).mean())
            gradient = (shares - np.eye(len(bias))[y]) / len(y)
            weight, bias = weight - lr * gradient.T @ x, bias - lr * gradient.sum(axis=0)
    return weight, bias, np.mean(losses)


def test_equals_sgd_by_hand_over_two_epochs_without_the_last_samples(toy_parts):
    toy_data, _ = toy_parts
    data = toy_data(0, 20).train  # batches of 6: the last 2 are dropped
    model = nn.Linear(6, 5)
    weight, bias, loss = softmax_regression_by_hand(
        model.weight.detach().double().numpy(),
        model.bias.detach().double().numpy(),
        data.dataset.inputs[data.indices].astype(np.float64),
        data.labels,
        batch_size=6,
        lr=0.1,
        epochs=2,
    )
    assert run(model, data, local_epochs=2) == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(model.weight.detach().numpy(), weight, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.bias.detach().numpy(), bias, rtol=1e-4, atol=1e-6)


def test_fewer_samples_than_a_batch_change_nothing(toy_parts):
    toy_data, toy_model = toy_parts
    model = toy_model(0)
    before = weights(model).copy()
    assert run(model, toy_data(0, 5).train) is None
    np.testing.assert_array_equal(weights(model), before)


@pytest.mark.parametrize(
    ("num_samples", "drop_last", "sizes"),
    [(20, True, [6, 6, 6]), (20, False, [6, 6, 6, 2]), (5, False, [5]), (19, False, [6, 6, 6]), (5, True, [])],
)
def test_sizes_of_batches(toy_parts, num_samples, drop_last, sizes):
    # 19 samples: the trailing batch of one is left out, batch normalisation could not train on it.
    toy_data, toy_model = toy_parts
    model, seen = toy_model(0), []

    def loss(batch):
        seen.append(len(batch.labels_B))
        return model(batch.inputs).sum()

    run(model, toy_data(0, num_samples).train, loss=loss, drop_last=drop_last)
    assert seen == sizes


def test_batches_of_one_are_trained_on_when_asked_for(toy_parts):
    toy_data, toy_model = toy_parts
    model, seen = toy_model(0), []
    run(model, toy_data(0, 3).train, batch_size=1, loss=lambda b: seen.append(1) or model(b.inputs).sum())
    assert len(seen) == 3


def test_samples_per_epoch():
    assert samples_per_epoch(20, Train(batch_size=6)) == 18
    assert samples_per_epoch(20, Train(batch_size=6, drop_last=False)) == 20
    assert samples_per_epoch(5, Train(batch_size=6)) == 0


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_name_the_samples_of_each_batch(toy_parts, shuffle):
    toy_data, toy_model = toy_parts
    model, data, rows = toy_model(0), toy_data(2).train, []

    def loss(batch):
        np.testing.assert_array_equal(batch.inputs.numpy(), data.dataset.inputs[data.indices[batch.rows_B]])
        np.testing.assert_array_equal(batch.labels_B.numpy(), data.labels[batch.rows_B])
        rows.extend(batch.rows_B.tolist())
        return model(batch.inputs).sum()

    run(model, data, loss=loss, shuffle=shuffle, drop_last=False, local_epochs=2)
    assert sorted(rows) == sorted(list(range(33)) * 2)
    assert (rows == list(range(33)) * 2) is not shuffle
    assert rows[:33] != rows[33:] if shuffle else rows[:33] == rows[33:]


def order_of(toy_parts, **names) -> list[int]:
    toy_data, toy_model = toy_parts
    model, rows = toy_model(0), []
    run(
        model,
        toy_data(2).train,
        loss=lambda b: rows.extend(b.rows_B.tolist()) or model(b.inputs).sum(),
        shuffle=True,
        **names,
    )
    return rows


def test_order_depends_on_seed_client_round_and_purpose_only(toy_parts):
    first = order_of(toy_parts, round=3, client=1)
    torch.manual_seed(99)
    assert order_of(toy_parts, round=3, client=1) == first
    for other in ({"round": 4}, {"client": 2}, {"seed": 2}, {"purpose": "distil"}):
        assert order_of(toy_parts, **{"round": 3, "client": 1, **other}) != first


def test_dropout_draws_from_the_named_stream_and_leaves_the_global_one_alone(toy_parts):
    toy_data, toy_model = toy_parts
    results = []
    for global_seed in (5, 6):
        model = toy_model(0, dropout=0.5)
        torch.manual_seed(global_seed)
        expected_next = torch.Generator().manual_seed(global_seed)
        run(model, toy_data(0).train)
        assert torch.rand(1).item() == torch.rand(1, generator=expected_next).item()
        results.append(weights(model))
    np.testing.assert_array_equal(*results)
    other = toy_model(0, dropout=0.5)
    run(other, toy_data(0).train, round=1)
    assert not np.array_equal(weights(other), results[0])


def test_momentum_is_not_carried_from_one_round_to_the_next(toy_parts):
    toy_data, _ = toy_parts
    data, model = toy_data(0, 6).train, nn.Linear(6, 5, bias=False)
    # One batch a round: the first step of SGD with momentum is a plain step, so two rounds are two plain steps.
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for round in range(2):
        run(model, data, momentum=0.9, round=round)
    with_momentum = weights(model).copy()
    model.load_state_dict(start)
    for round in range(2):
        run(model, data, round=round)
    np.testing.assert_array_equal(with_momentum, weights(model))


def test_modules_have_their_own_learning_rates(toy_parts):
    toy_data, _ = toy_parts
    first, second = nn.Linear(6, 5), nn.Linear(6, 5)
    second.load_state_dict(first.state_dict())
    start = weights(first).copy()

    def loss(batch):
        return first(batch.inputs).sum() + second(batch.inputs).sum()  # equal gradients

    run(None, toy_data(0, 6).train, loss=loss, modules=[first, second], learning_rates=[0.1, 0.3])
    np.testing.assert_allclose(weights(second) - start, 3 * (weights(first) - start), rtol=1e-4, atol=1e-6)


def test_gradients_are_clipped_module_by_module(toy_parts):
    toy_data, _ = toy_parts
    steep, flat = nn.Linear(6, 5, bias=False), nn.Linear(6, 5, bias=False)
    starts = weights(steep).copy(), weights(flat).copy()

    def loss(batch):
        return 1e4 * steep(batch.inputs).sum() + 1e-4 * flat(batch.inputs).sum()

    run(None, toy_data(0, 6).train, loss=loss, modules=[steep, flat], clip_norm=2.0)
    assert np.linalg.norm(weights(steep) - starts[0]) == pytest.approx(0.1 * 2.0, rel=1e-3)
    # Scaled together the flat module would not have moved at all; its own norm is below the limit.
    inputs = toy_data(0, 6).train
    gradient = 1e-4 * np.tile(inputs.dataset.inputs[inputs.indices].sum(axis=0), 5)
    np.testing.assert_allclose(weights(flat) - starts[1], -0.1 * gradient, rtol=0.05, atol=1e-6)


def test_an_optimizer_of_the_callers_own_is_used(toy_parts):
    toy_data, _ = toy_parts
    model = nn.Linear(6, 5, bias=False)
    start = weights(model).copy()
    run_epochs(
        lambda batch: model(batch.inputs).sum(),
        [model],
        toy_data(0, 6).train,
        msgspec.structs.replace(Train(), batch_size=6),
        streams=Streams(1),
        round=0,
        device=CPU,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
    )
    # Adam's first step moves every weight by the learning rate, whatever the gradient.
    np.testing.assert_allclose(np.abs(weights(model) - start), 0.01, rtol=1e-3)


def test_modules_are_put_in_training_mode(toy_parts):
    toy_data, toy_model = toy_parts
    model = toy_model(0).eval()
    run(model, toy_data(0).train)
    assert model.training
