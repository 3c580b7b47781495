"""The server's model: what it learns from, when it is tested, its optimizers, and how its features become K."""

import pytest
import torch
from toys import CPU, toy_commons

from fedsim import config
from fedsim.families.server_model import ServerModel, build_server_model
from fedsim.method import Server, ServerContext, Task
from fedsim.seeds import Streams

OPTIONS = {"name": "fedprotokd", "server_model": "MLP", "server_epochs": 2, "server_batch_size": 8}


def server_model(adam_lr: float | None = None, *, server_lr: float = 0.1, **run) -> ServerModel:
    chosen = config.build(
        [
            {"run": {"clients": 2, **run}, "data": {"public_samples": 20}, "train": {"lr": 0.3}},
            {"model": {"group": "MLP", "feature_dim": 4}, "method": {**OPTIONS, "server_lr": server_lr}},
        ]
    )
    context = ServerContext(chosen, chosen.method_config(), Task(4, 5, 4, (6,)), toy_commons(), Streams(1), CPU)
    return ServerModel(context, adam_lr)


def test_it_learns_from_the_chosen_rows_only():
    pupil, seen = server_model(), []
    before = pupil.features_and_logits()[1]

    def loss(logits_BC, features_BK, rows_B):
        assert features_BK.shape == (len(rows_B), 4)
        seen.append(rows_B)
        return logits_BC.square().mean()

    mean_loss = pupil.learn(0, loss, torch.tensor([1, 3, 4, 7, 9, 11, 12, 15, 18]))
    # Two epochs of nine samples in batches of eight: a trailing batch of one is left out.
    assert [len(rows) for rows in seen] == [8, 8]
    assert set(torch.cat(seen).tolist()) <= {1, 3, 4, 7, 9, 11, 12, 15, 18}
    assert mean_loss > 0 and not torch.equal(pupil.features_and_logits()[1], before)


def test_rows_belong_to_the_inputs_of_their_batch():
    """The row numbers that the loss is given are those of the samples whose logits it is given."""
    pupil = server_model()
    rows_k = torch.tensor([2, 3, 5, 8, 13, 19])
    for parameter in pupil.model.parameters():
        parameter.requires_grad_(True)
    expected = pupil.features()

    def loss(logits_BC, features_BK, rows_B):
        if len(checked) == 0:  # before the first step the model is as it was
            torch.testing.assert_close(features_BK, expected[rows_B])
        checked.append(rows_B)
        return logits_BC.square().mean()

    checked: list[torch.Tensor] = []
    pupil.learn(0, loss, rows_k)
    assert len(checked[0]) == 6


def test_it_is_tested_on_the_global_test_set_when_clients_are():
    pupil = server_model(evaluate_every=3, rounds=5)
    test = toy_commons().global_test
    inputs, _ = next(test.batches(len(test)))
    right = pupil.model(inputs).argmax(dim=1).numpy() == test.labels
    server = Server(pupil.context)
    found = {round: server.test(round, pupil.model) for round in range(5)}
    # Round 2's result is evaluated by clients in round 3, and that of the last round, 4, in round 5.
    assert [round for round, metrics in found.items() if metrics] == [2, 4]
    assert found[2] == {"server_accuracy": right.mean()}


@pytest.mark.parametrize("adam_lr", [None, 0.1])
def test_the_same_seed_gives_the_same_bits(adam_lr):
    results = []
    for _ in range(2):
        pupil = server_model(adam_lr)
        pupil.learn(0, lambda logits, features, rows: logits.square().mean(), torch.arange(20))
        results.append(pupil.features_and_logits()[1])
    assert torch.equal(*results)


def test_the_two_optimizers_differ():
    sgd, adam = server_model(), server_model(0.1)
    assert torch.equal(sgd.features_and_logits()[1], adam.features_and_logits()[1])
    for pupil in (sgd, adam):
        pupil.learn(0, lambda logits, features, rows: logits.square().mean(), torch.arange(20))
    assert not torch.equal(sgd.features_and_logits()[1], adam.features_and_logits()[1])


@pytest.mark.parametrize(
    ("adam_lr", "server_lr", "expected"),
    [(None, 0.0, 0.3), (None, 0.2, 0.2), (0.001, 0.0, 0.001), (0.001, 0.2, 0.2)],
)
def test_the_learning_rate_is_the_server_s_or_adam_s_or_the_clients(adam_lr, server_lr, expected):
    assert server_model(adam_lr, server_lr=server_lr).lr == expected


def test_the_server_projects_unless_asked_otherwise():
    task = Task(2, 10, 512, (3, 32, 32))
    with torch.device("meta"):
        published = build_server_model("ResNet10", config.build([{}]), task)
        pooled = build_server_model("ResNet10", config.build([{"model": {"feature_mapping": "pool"}}]), task)
    assert isinstance(published.extractor[1], torch.nn.Linear)
    assert isinstance(pooled.extractor[1], torch.nn.Identity)
