"""FedGH: the prototypes that go up, and the training of the head, against numpy."""

import numpy as np
import pytest
import torch

from fedsim.learning.parameters import flatten
from fedsim.method import Upload

PROTOTYPES = np.random.default_rng(5).normal(size=(8, 4)).astype(np.float32)
LABELS = np.array([0, 1, 3, 0, 2, 3, 1, 4], np.int32)


def uploads() -> list[Upload]:
    """Two clients with three and five classes."""
    return [
        Upload(i, 10, {"prototypes": PROTOTYPES[rows], "class_ids": LABELS[rows]})
        for i, rows in enumerate((slice(0, 3), slice(3, 8)))
    ]


def test_upload_is_the_mean_feature_of_the_trained_model(toy):
    client = toy("fedgh", dropout=0.5).clients[2]  # 33 samples: five batches of six, three are left out
    client.train(0)
    data, arrays = client.data.train, client.upload()
    client.model.eval()
    with torch.no_grad():
        features = client.model.features(torch.from_numpy(data.dataset.inputs[:30])).double().numpy()
    assert arrays["class_ids"].tolist() == [0, 1, 2, 3]
    for row, label in zip(arrays["prototypes"], range(4), strict=True):
        np.testing.assert_allclose(row, features[data.labels[:30] == label].mean(axis=0), rtol=1e-4, atol=1e-6)


def test_a_client_without_a_whole_batch_sends_no_rows(toy):
    client = toy("fedgh", num_samples={1: 5}).clients[1]
    client.train(0)
    assert {name: array.shape for name, array in client.upload().items()} == {
        "prototypes": (0, 4),
        "class_ids": (0,),
    }


@pytest.mark.parametrize(
    ("options", "epochs", "batch_size", "lr"),
    [
        ({}, 1, 6, 0.1),  # batch size and learning rate are the clients'
        ({"server_epochs": 3, "server_batch_size": 1, "server_lr": 0.5}, 3, 1, 0.5),
    ],
)
def test_the_head_is_trained_on_all_prototypes(toy, options, epochs, batch_size, lr):
    server = toy("fedgh", **options).server
    head = flatten(server.head).astype(np.float64)
    weight_CK, bias_C = head[:20].reshape(5, 4), head[20:]
    for round in range(2):  # the head of the second round goes on from that of the first
        order, losses = server.context.streams.torch("server-order", round=round), []
        for _ in range(epochs):
            rows_N, loss = torch.randperm(8, generator=order).numpy(), 0.0
            for rows_B in np.split(rows_N, range(batch_size, 8, batch_size)):
                logits_BC = PROTOTYPES[rows_B] @ weight_CK.T + bias_C
                shares_BC = np.exp(logits_BC) / np.exp(logits_BC).sum(axis=1, keepdims=True)
                loss -= np.log(shares_BC[np.arange(len(rows_B)), LABELS[rows_B]]).sum() / 8
                errors_BC = (shares_BC - np.eye(5)[LABELS[rows_B]]) / len(rows_B)
                weight_CK = weight_CK - lr * errors_BC.T @ PROTOTYPES[rows_B]
                bias_C = bias_C - lr * errors_BC.sum(axis=0)
            losses.append(loss)
        step = server.aggregate(round, uploads())
        np.testing.assert_allclose(
            step.down["head"], np.concatenate([weight_CK.ravel(), bias_C]), rtol=1e-4, atol=1e-6
        )
        assert step.metrics["server_loss_first"] == pytest.approx(losses[0], rel=1e-5)
        assert step.metrics["server_loss"] == pytest.approx(losses[-1], rel=1e-5)


def test_a_client_trains_from_the_received_head_with_cross_entropy_alone(toy):
    """Its first loss is the one that the received head has on its samples."""
    client = toy("fedgh", num_samples={0: 6}).clients[0]
    head = np.random.default_rng(1).normal(size=25).astype(np.float32)
    client.receive(0, {"head": head})
    data = client.data.train
    with torch.no_grad():
        features = client.model.features(torch.from_numpy(data.dataset.inputs[:6])).double().numpy()
    logits = features @ head[:20].reshape(5, 4).T + head[20:]
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert client.train(0)["loss"] == pytest.approx(-np.log(shares[np.arange(6), data.labels]).mean(), rel=1e-5)
