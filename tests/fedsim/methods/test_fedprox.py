"""FedProx: local training with the proximal term, against gradients worked out in numpy."""

import numpy as np
import pytest

from fedsim.errors import UserError

LR, BATCH_SIZE = 0.1, 6


def numpy_training(vector, data, num_epochs: int, mu: float) -> tuple[np.ndarray, float]:
    """SGD on linear → tanh → linear with cross-entropy + μ/2 ‖w − w₀‖²; the last weights and the mean loss."""
    start = vector.astype(np.float64)
    weights, losses = start.copy(), []
    for _ in range(num_epochs):
        for first in range(0, len(data) - BATCH_SIZE + 1, BATCH_SIZE):
            rows = data.indices[first : first + BATCH_SIZE]
            inputs, labels = data.dataset.inputs[rows].astype(np.float64), data.dataset.labels[rows]
            body, bias, head, head_bias = np.split(weights, [24, 28, 48])
            body, head = body.reshape(4, 6), head.reshape(5, 4)
            features = np.tanh(inputs @ body.T + bias)
            logits = features @ head.T + head_bias
            shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            plain = -np.log(shares[np.arange(BATCH_SIZE), labels]).mean()
            losses.append(plain + mu / 2 * ((weights - start) ** 2).sum())
            by_logits = (shares - np.eye(5)[labels]) / BATCH_SIZE
            by_sums = (by_logits @ head) * (1 - features**2)
            gradient = np.concatenate(
                [
                    (by_sums.T @ inputs).ravel(),
                    by_sums.sum(axis=0),
                    (by_logits.T @ features).ravel(),
                    by_logits.sum(axis=0),
                ]
            )
            weights = weights - LR * (gradient + mu * (weights - start))
    return weights, float(np.mean(losses))


@pytest.mark.parametrize("mu", [0.0, 0.01, 2.0])
def test_training_and_loss_as_in_numpy(toy, mu):
    some = toy("fedprox", proximal_weight=mu, train={"local_epochs": 3})
    some.play(1)
    for client in some.clients:
        # The second round starts from the global model, which is then what holds the weights back.
        expected, loss = numpy_training(some.down["model"], client.data.train, 3, mu)
        client.receive(1, some.down)
        assert client.train(1)["loss"] == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(client.upload()["model"], expected, rtol=1e-4, atol=1e-6)


def test_without_the_term_it_is_fedavg(toy):
    prox, average = toy("fedprox", proximal_weight=0.0), toy("fedavg")
    assert prox.play(3) == average.play(3)
    np.testing.assert_array_equal(prox.down["model"], average.down["model"])


def test_a_heavier_term_keeps_clients_nearer_to_the_global_model(toy):
    distances = []
    for weight in (0.0, 1.0, 5.0):
        client = toy("fedprox", proximal_weight=weight, train={"local_epochs": 5}).clients[0]
        start = client.upload()["model"]
        client.train(0)
        distances.append(np.linalg.norm(client.upload()["model"] - start))
    assert distances[0] > distances[1] > distances[2] > 0


def test_the_global_model_is_the_anchor_of_a_personalised_client_too(toy):
    some = toy("fedprox", proximal_weight=2.0, evaluation="personalised")
    some.play(1)
    client = some.clients[0]
    expected, _ = numpy_training(some.down["model"], client.data.train, 1, 2.0)
    client.receive(1, some.down)
    client.train(1)
    np.testing.assert_allclose(client.upload()["model"], expected, rtol=1e-4, atol=1e-6)


def test_the_default_weight_and_its_range(toy):
    assert toy("fedprox").experiment.method["proximal_weight"] == 0.01
    with pytest.raises(UserError, match=r"method\.proximal_weight"):
        toy("fedprox", proximal_weight=-0.1)
