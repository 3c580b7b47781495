"""FedGen: set-up, generator, client loss and the generator's training, each against numpy."""

import numpy as np
import pytest
import torch

from fedsim import config
from fedsim.errors import ContractError, UserError
from fedsim.learning.parameters import flatten
from fedsim.method import ServerContext, Setting, Task, Upload
from fedsim.methods import fedgen
from fedsim.seeds import Streams

SMALL = {"noise_dim": 3, "hidden_dim": 7}
COUNTS = np.array([40, 0, 10, 0, 50])


def softmax(rows: np.ndarray) -> np.ndarray:
    return np.exp(rows) / np.exp(rows).sum(axis=-1, keepdims=True)


def weights_of(generator: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.detach().double().numpy() for name, tensor in generator.named_parameters()}


def normalised(weights: dict[str, np.ndarray], labels: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """What comes out of the hidden layer, (B, hidden)."""
    inputs = np.concatenate([noise, np.eye(5)[labels]], axis=1)
    hidden = inputs @ weights["hidden.weight"].T + weights["hidden.bias"]
    hidden = (hidden - hidden.mean(axis=0)) / np.sqrt(hidden.var(axis=0) + 1e-5)
    return np.maximum(hidden * weights["norm.weight"] + weights["norm.bias"], 0)


def drawn(streams: Streams, counts: np.ndarray, client: int | None, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first labels and noise that a half draws in round 0."""
    random = streams.torch("generated", client=client, round=0)
    labels = torch.multinomial(torch.from_numpy(counts).double(), num, replacement=True, generator=random)
    return labels, torch.rand(num, 3, generator=random)


# ------------------------------------------------------------------------------------------ set-up and generator


def test_counts_are_pooled_at_set_up(toy):
    some = toy("fedgen", **SMALL)
    uploads = [Upload(i, 1, client.setup()) for i, client in enumerate(some.clients)]
    for upload, client in zip(uploads, some.clients, strict=True):
        assert upload.arrays["counts"].tolist() == [(client.data.train.labels == c).sum() for c in range(5)]
    down = some.server.setup(uploads)
    everyone = np.concatenate([client.data.train.labels for client in some.clients])
    assert down["counts"].tolist() == [(everyone == c).sum() for c in range(5)]
    assert down["counts"][4] == 0 and down["counts"].sum() == 36 + 24 + 33 + 12


def test_negative_counts_are_refused(toy):
    fine, wrong = np.ones(5, np.int32), np.array([1, 1, -1, 1, 1], np.int32)
    with pytest.raises(ContractError, match="client 7: field 'counts' must not be negative"):
        toy("fedgen").server.setup([Upload(2, 5, {"counts": fine}), Upload(7, 5, {"counts": wrong})])


def test_labels_are_drawn_as_often_as_they_are_held(toy):
    some = toy("fedgen", generated_batch_size=4000, **SMALL)
    draws = fedgen.Draws(some.server.context, COUNTS, torch.Generator().manual_seed(0))
    labels_B, noise_BZ = draws.batch()
    np.testing.assert_allclose(np.bincount(labels_B, minlength=5) / 4000, COUNTS / 100, atol=0.03)
    assert set(labels_B.tolist()) == {0, 2, 4}
    assert noise_BZ.shape == (4000, 3)
    assert 0 <= noise_BZ.min() < 0.01 and 0.99 < noise_BZ.max() < 1 and abs(noise_BZ.mean() - 0.5) < 0.02


def test_generator_by_hand(toy):
    generator = toy("fedgen", **SMALL).server.generator
    weights, labels = weights_of(generator), np.array([0, 4, 2, 2])
    noise = np.random.default_rng(0).uniform(size=(4, 3))
    made = generator(torch.from_numpy(labels), torch.from_numpy(noise).float()).detach().numpy()
    expected = normalised(weights, labels, noise) @ weights["output.weight"].T + weights["output.bias"]
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


def test_size_of_the_published_generator():
    experiment = config.build([{"model": {"group": "CNN"}, "method": {"name": "fedgen"}}])
    setting = Setting(experiment, experiment.method_config(), Task(20, 100, 512, (3, 32, 32)), None)
    assert fedgen.sizes(setting) == {"head": 51_300, "gen": 132 * 512 + 512 + 2 * 512 + 512 * 512 + 512}


def test_everyone_starts_with_the_same_generator(toy):
    some = toy("fedgen", **SMALL)
    for client in some.clients:
        np.testing.assert_array_equal(flatten(client.generator), flatten(some.server.generator))
    assert not list(some.server.generator.buffers())  # nothing but weights, so all of it travels


# ------------------------------------------------------------------------------------------ client


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
def test_client_loss_is_that_of_its_samples_plus_that_of_generated_features(toy, weight):
    some = toy("fedgen", num_samples={0: 6}, generated_weight=weight, generated_batch_size=8, **SMALL)
    client, draw = some.clients[0], np.random.default_rng(2)
    num_weights = len(flatten(client.generator))
    down = {
        "head": draw.normal(size=25).astype(np.float32),
        "generator": draw.normal(size=num_weights).astype(np.float32),
    }
    client.receive_setup({"counts": COUNTS})
    client.receive(0, down)
    weights, data = weights_of(client.generator), client.data.train
    labels, noise = drawn(client.context.streams, COUNTS, client=0, num=8)
    made = normalised(weights, labels.numpy(), noise.numpy()) @ weights["output.weight"].T + weights["output.bias"]
    with torch.no_grad():
        own = client.model.features(torch.from_numpy(data.dataset.inputs[:6])).double().numpy()

    def loss(features: np.ndarray, labels: np.ndarray) -> float:
        logits = features @ down["head"][:20].reshape(5, 4).T + down["head"][20:]
        return -np.log(softmax(logits)[np.arange(len(labels)), labels]).mean()

    expected = loss(own, data.labels) + weight * loss(made, labels.numpy())
    assert client.train(0)["loss"] == pytest.approx(expected, rel=1e-4)
    np.testing.assert_array_equal(flatten(client.generator), down["generator"])  # trained on the server only


# ------------------------------------------------------------------------------------------ server


def head_uploads(num_weights: int) -> list[Upload]:
    heads = np.random.default_rng(4).normal(size=(3, num_weights)).astype(np.float32)
    return [Upload(i, size, {"head": heads[i]}) for i, size in enumerate((10, 30, 60))]


def test_first_step_of_the_generator_by_hand(toy):
    """Adam's first step is −lr · g / (|g| + 1e-8); g of the output layer is one product away from the softmax."""
    server = toy("fedgen", server_steps=1, generator_lr=0.02, **SMALL).server
    server.counts_C = COUNTS
    before, uploads = weights_of(server.generator), head_uploads(25)
    head = np.array([0.1, 0.3, 0.6]) @ np.array([upload.arrays["head"] for upload in uploads], np.float64)
    labels, noise = drawn(server.context.streams, COUNTS, client=None, num=6)
    hidden_BH = normalised(before, labels.numpy(), noise.numpy())
    made_BK = hidden_BH @ before["output.weight"].T + before["output.bias"]
    shares_BC = softmax(made_BK @ head[:20].reshape(5, 4).T + head[20:])
    errors_BK = (shares_BC - np.eye(5)[labels]) / 6 @ head[:20].reshape(5, 4)
    gradients = {"output.weight": errors_BK.T @ hidden_BH, "output.bias": errors_BK.sum(axis=0)}
    step = server.aggregate(0, uploads)
    after = weights_of(server.generator)
    for name, gradient in gradients.items():
        expected = before[name] - 0.02 * gradient / (np.abs(gradient) + 1e-8)
        np.testing.assert_allclose(after[name], expected, atol=1e-5, err_msg=name)
    loss = -np.log(shares_BC[np.arange(6), labels]).mean()
    assert step.metrics == pytest.approx({"server_loss_first": loss, "server_loss": loss}, rel=1e-4)
    np.testing.assert_allclose(step.down["head"], head, rtol=1e-5)
    np.testing.assert_array_equal(step.down["generator"], flatten(server.generator))


@pytest.mark.parametrize(("aggregation", "shares"), [("weighted", [0.1, 0.3, 0.6]), ("mean", [1 / 3] * 3)])
@pytest.mark.parametrize("group", ["CNN", "CNN:3"])
def test_ensemble_is_the_mean_of_the_heads_logits(group, aggregation, shares):
    """Of heads with a hidden layer it is not the logits of the mean head."""
    experiment = config.build(
        [
            {"model": {"group": group, "feature_dim": 4}},
            {"method": {"name": "fedgen", "aggregation": aggregation, "server_steps": 2, **SMALL}},
        ]
    )
    server = fedgen.Server(
        ServerContext(
            experiment, experiment.method_config(), Task(3, 5, 4, (6,)), None, Streams(1), torch.device("cpu")
        )
    )
    uploads = head_uploads(len(flatten(server.head)))
    features = np.random.default_rng(0).normal(size=(2, 4))
    expected = np.zeros((2, 5))
    for share, upload in zip(shares, uploads, strict=True):
        head = upload.arrays["head"].astype(np.float64)
        if group == "CNN":
            expected += share * (features @ head[:20].reshape(5, 4).T + head[20:])
        else:
            hidden = np.maximum(features @ head[:12].reshape(3, 4).T + head[12:15], 0)
            expected += share * (hidden @ head[15:30].reshape(5, 3).T + head[30:])
    step = server.aggregate(0, uploads)
    heads = np.array([upload.arrays["head"] for upload in uploads], np.float64)
    np.testing.assert_allclose(step.down["head"], shares @ heads, rtol=1e-5, atol=1e-6)
    ensemble = server._ensemble(uploads)
    np.testing.assert_allclose(
        ensemble(torch.from_numpy(features).float()).numpy(), expected, rtol=1e-4, atol=1e-5
    )


def test_generator_learns_what_the_heads_recognise(toy):
    server = toy("fedgen", server_steps=60, generator_lr=0.02, **SMALL).server
    losses = [server.aggregate(round, head_uploads(25)).metrics["server_loss"] for round in range(4)]
    assert losses[-1] < 0.5 * losses[0]  # it goes on from where the last round ended


def test_frozen_generator_stays_the_first_one_while_heads_are_averaged(toy):
    some, free = (toy("fedgen", frozen_generator=frozen, server_steps=3, **SMALL) for frozen in (True, False))
    first = flatten(some.server.generator)
    for toys in (some, free):
        toys.play(2)
    np.testing.assert_array_equal(some.down["generator"], first)
    assert not np.array_equal(free.down["generator"], first)
    sizes = [len(client.data.train) for client in some.clients]
    uploaded = np.array([flatten(client.model.head) for client in some.clients], np.float64)
    np.testing.assert_allclose(some.down["head"], sizes @ uploaded / sum(sizes), rtol=1e-5, atol=1e-7)
    assert some.steps[-1].metrics == {}


def test_batches_of_one_are_refused(toy):
    def setting(**options) -> Setting:
        experiment = config.build(
            [
                {"model": {"group": "CNN"}, "run": {"clients": 2}},
                {"train": {"batch_size": 1}, "method": {"name": "fedgen", **options}},
            ]
        )
        return Setting(experiment, experiment.method_config(), Task(2, 10, 512, (1, 28, 28)), None)

    fedgen.check(setting(generated_batch_size=2))
    for options in ({}, {"generated_batch_size": 1}):
        with pytest.raises(UserError) as error:
            fedgen.check(setting(**options))
        assert str(error.value) == (
            "fedgen normalises generated features over a batch, which needs at least 2 of them; "
            "set method.generated_batch_size = 2 or more."
        )
