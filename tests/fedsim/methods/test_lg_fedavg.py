"""LG-FedAvg: the averaged head and a client's step, each against numpy."""

import numpy as np
import pytest
import torch

from fedsim.learning.parameters import flatten
from fedsim.method import Upload

HEADS = np.random.default_rng(3).normal(size=(3, 5 * 4 + 5)).astype(np.float32)


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        ({}, [0.1, 0.3, 0.6]),  # 10, 30 and 60 training samples
        ({"aggregation": "mean"}, [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_mean_of_the_heads(toy, options, shares):
    uploads = [Upload(i, size, {"head": HEADS[i]}) for i, size in enumerate((10, 30, 60))]
    step = toy("lg_fedavg", **options).server.aggregate(0, uploads)
    np.testing.assert_allclose(step.down["head"], shares @ HEADS.astype(np.float64), rtol=1e-6)
    assert step.down["head"].dtype == np.float32


def test_a_client_that_sent_nothing_does_not_count(toy):
    step = toy("lg_fedavg").server.aggregate(0, [Upload(0, 10, {"head": HEADS[0]}), Upload(1, 90, {})])
    np.testing.assert_allclose(step.down["head"], HEADS[0], rtol=1e-6)


def test_one_step_of_a_client_from_the_received_head(toy):
    """Cross-entropy has the gradient (softmax − one-hot)ᵀ features / B for the weights of a linear head."""
    client = toy("lg_fedavg", num_samples={0: 6}).clients[0]
    client.receive(0, {"head": HEADS[0]})
    weight_CK, bias_C = HEADS[0][:20].reshape(5, 4).astype(np.float64), HEADS[0][20:].astype(np.float64)
    data = client.data.train
    with torch.no_grad():
        features_BK = client.model.features(torch.from_numpy(data.dataset.inputs[:6])).double().numpy()
    logits_BC = features_BK @ weight_CK.T + bias_C
    shares_BC = np.exp(logits_BC) / np.exp(logits_BC).sum(axis=1, keepdims=True)
    assert client.train(0)["loss"] == pytest.approx(-np.log(shares_BC[np.arange(6), data.labels]).mean(), rel=1e-5)
    errors_BC = (shares_BC - np.eye(5)[data.labels]) / 6
    weight_CK, bias_C = weight_CK - 0.1 * errors_BC.T @ features_BK, bias_C - 0.1 * errors_BC.sum(axis=0)
    np.testing.assert_allclose(client.upload()["head"], np.concatenate([weight_CK.ravel(), bias_C]), atol=1e-6)


def test_what_goes_down_is_made_of_what_went_up(toy):
    some = toy("lg_fedavg")
    some.play(3)
    sizes = [len(client.data.train) for client in some.clients]
    uploaded = np.array([flatten(client.model.head) for client in some.clients], np.float64)
    np.testing.assert_allclose(some.down["head"], sizes @ uploaded / sum(sizes), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(flatten(some.server.head), some.down["head"])
