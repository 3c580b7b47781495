"""FedDistill: each distillation loss by hand, the mean logits that travel, classes without a target."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedsim.equations.class_vectors import ClassVectors
from fedsim.method import Upload
from fedsim.methods.feddistill import distillation_loss

LOGITS = np.array([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]])
TARGETS = ClassVectors.from_rows(np.array([[2.0, 0.0, 1.0], [0.0, 1.0, 1.0]], np.float32), np.array([0, 2]), 3)


def softmax(rows: np.ndarray) -> np.ndarray:
    return np.exp(rows) / np.exp(rows).sum(axis=-1, keepdims=True)


def loss(kind: str, labels: list[int]) -> float:
    return distillation_loss(torch.from_numpy(LOGITS).float(), torch.tensor(labels), TARGETS, kind).item()


def test_losses_by_hand():
    targets = np.array([[2.0, 0.0, 1.0], [0.0, 1.0, 1.0]])  # rows of classes 0 and 2
    log_shares = np.log(softmax(LOGITS))
    assert loss("softmax", [0, 2]) == pytest.approx(-(softmax(targets) * log_shares).sum(axis=1).mean())
    assert loss("raw", [0, 2]) == pytest.approx(-(targets * log_shares).sum(axis=1).mean(), rel=1e-6)
    assert loss("mse", [0, 2]) == pytest.approx(((LOGITS - targets) ** 2).mean())


def test_a_class_without_global_logits_has_its_own_as_the_target():
    shares = softmax(LOGITS)
    assert loss("softmax", [1, 1]) == pytest.approx(-(shares * np.log(shares)).sum(axis=1).mean())
    assert loss("mse", [1, 1]) == 0.0
    logits = torch.from_numpy(LOGITS).float().requires_grad_()
    distillation_loss(logits, torch.tensor([1, 1]), TARGETS, "softmax").backward()
    np.testing.assert_allclose(logits.grad.numpy(), 0, atol=1e-7)  # its own target does not pull


def test_upload_is_the_mean_logits_seen_while_training(toy):
    client, twin = toy("feddistill").clients[1], toy("feddistill").clients[1].model
    client.train(0)
    data, logits = client.data.train, []
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for start in range(0, 24, 6):
        batch_logits = twin(torch.from_numpy(data.dataset.inputs[data.indices[start : start + 6]]))
        logits.append(batch_logits.detach().numpy())
        optimizer.zero_grad()
        cross_entropy(batch_logits, torch.from_numpy(data.labels[start : start + 6])).backward()
        optimizer.step()
    logits, arrays = np.concatenate(logits), client.upload()
    assert arrays["class_ids"].tolist() == [1, 3]
    for row, label in zip(arrays["logits"], (1, 3), strict=True):
        np.testing.assert_allclose(row, logits[data.labels[:24] == label].mean(axis=0), rtol=1e-4, atol=1e-5)


def test_server_takes_the_unweighted_mean_of_the_holders(toy):
    def upload(client: int, num_train: int, rows: list[list[float]], ids: list[int]) -> Upload:
        return Upload(
            client, num_train, {"logits": np.array(rows, np.float32), "class_ids": np.array(ids, np.int32)}
        )

    step = toy("feddistill").server.aggregate(
        0, [upload(0, 1000, [[1, 0, 0, 0, 0]], [0]), upload(1, 10, [[3, 2, 0, 0, 0], [0, 0, 0, 0, 5]], [0, 4])]
    )
    assert step.down["class_ids"].tolist() == [0, 4]
    assert step.down["logits"].tolist() == [[2, 1, 0, 0, 0], [0, 0, 0, 0, 5]]
    shares = [softmax(np.array([2.0, 1, 0, 0, 0]))[0], softmax(np.array([0.0, 0, 0, 0, 5]))[4]]
    assert step.metrics["global_confidence"] == pytest.approx(np.mean(shares))
    np.testing.assert_allclose(
        step.records["global_confidences"], [shares[0], np.nan, np.nan, np.nan, shares[1]], rtol=1e-6
    )


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
def test_guided_loss_is_cross_entropy_plus_the_weighted_term(toy, weight):
    client = toy("feddistill", num_samples={0: 6}, logit_weight=weight).clients[0]
    rows = np.random.default_rng(2).normal(size=(5, 5)).astype(np.float32)
    client.receive(0, {"logits": rows, "class_ids": np.arange(5, dtype=np.int32)})
    data = client.data.train
    with torch.no_grad():
        logits = client.model(torch.from_numpy(data.dataset.inputs[data.indices])).double().numpy()
    log_shares = np.log(softmax(logits))
    plain = -log_shares[np.arange(6), data.labels].mean()
    extra = -(softmax(rows[data.labels].astype(np.float64)) * log_shares).sum(axis=1).mean()
    assert client.train(0)["loss"] == pytest.approx(plain + weight * extra, rel=1e-5)


def test_random_models_are_evaluated_before_the_first_round(toy):
    some = toy("feddistill")
    assert [c.evaluate()["tested"] for c in some.clients] == [len(c.data.test) for c in some.clients]
