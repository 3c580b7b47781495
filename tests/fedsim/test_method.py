"""What a client does unless its method says otherwise, and what a step may gain."""

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from toys import make_toy

from fedsim import method
from fedsim.data import Subset
from fedsim.method import Step


def plain_client() -> method.Client:
    return make_toy("local").clients[0]


def by_hand(client: method.Client, rows: np.ndarray, rate: float = 0.1) -> list[torch.Tensor]:
    """The weights after one epoch of plain SGD in batches of 6."""
    twin = make_toy("local").clients[0].model
    data = client.data.train
    for start in range(0, len(rows) - 5, 6):
        chosen = data.indices[rows[start : start + 6]]
        logits = twin(torch.from_numpy(data.dataset.inputs[chosen]))
        gradients = torch.autograd.grad(
            cross_entropy(logits, torch.from_numpy(data.dataset.labels[chosen])), list(twin.parameters())
        )
        with torch.no_grad():
            for parameter, gradient in zip(twin.parameters(), gradients, strict=True):
                parameter -= rate * gradient
    return list(twin.parameters())


def assert_close(client: method.Client, expected: list[torch.Tensor]) -> None:
    for ours, theirs in zip(client.model.parameters(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_it_trains_with_cross_entropy_and_predicts_by_the_largest_logit():
    client = plain_client()
    assert set(client.train(0)) == {"loss"}
    assert_close(client, by_hand(client, np.arange(36)))
    test = client.data.test
    with torch.no_grad():
        guesses = client.model.eval()(torch.from_numpy(test.dataset.inputs[test.indices])).argmax(dim=1)
    correct = int((guesses.numpy() == test.labels).sum())
    assert client.evaluate() == {"correct": correct, "tested": len(test)}


def test_it_sends_nothing_and_remembers_its_model():
    client = plain_client()
    assert client.setup() == client.upload() == {}
    assert set(client.state()) == {f"model.{name}" for name in client.model.state_dict()}


def test_a_loss_an_optimizer_and_other_data_are_overridden_one_by_one():
    client = plain_client()
    client.loss = lambda batch: 2 * cross_entropy(client.model(batch.inputs), batch.labels_B)
    half = Subset(client.data.train.dataset, client.data.train.indices[:18])
    client.train_locally(0, data=half)
    assert_close(client, by_hand(client, np.arange(18), rate=0.2))
    adam = plain_client()
    adam.optimizer = lambda: torch.optim.Adam(adam.model.parameters(), lr=0.01)
    before = [parameter.detach().clone() for parameter in adam.model.parameters()]
    adam.train_locally(0, data=Subset(half.dataset, half.indices[:6]))
    moved = [(a - b).abs().max().item() for a, b in zip(adam.model.parameters(), before, strict=True)]
    np.testing.assert_allclose(moved, 0.01, rtol=1e-3)  # a first step of Adam moves by its learning rate


def test_no_samples_are_no_training():
    client = plain_client()
    nobody = Subset(client.data.train.dataset, client.data.train.indices[:0])
    assert client.train_locally(0, data=nobody) is None
    assert_close(client, by_hand(client, np.arange(0)))


def test_a_step_and_more():
    step = Step({"a": np.zeros(1)}, {"x": 1.0}, {"r": np.ones(2)})
    more = step.plus({"b": np.ones(3)}, {"y": 2.0}, {"r": np.zeros(2)})
    assert set(more.down) == {"a", "b"} and more.metrics == {"x": 1.0, "y": 2.0}
    assert more.records["r"].tolist() == [0, 0] and step.records["r"].tolist() == [1, 1]
    assert set(step.down) == {"a"}
