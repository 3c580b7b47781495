"""Fed2PKD: its losses and weights against numpy, what travels, and the optional server model."""

import copy

import numpy as np
import pytest
import torch
from toys import CPU, toy_commons

from fedsim import methods
from fedsim.costs.formula import formulae
from fedsim.equations.class_vectors import ClassVectors
from fedsim.families.public_samples import public_features
from fedsim.methods.fed2pkd import (
    batch_of_round,
    contrast_loss,
    feature_loss,
    global_features,
    similarities,
)
from fedsim.seeds import Streams

SMALL = {"batch": 7}


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


def softmax(values: list[float]) -> np.ndarray:
    powers = np.exp(np.array(values, np.float64))
    return powers / powers.sum()


PROTOTYPES = ClassVectors.from_rows(draw(4, 3, seed=9), np.array([0, 1, 2, 4]), 5)  # class 3 is absent
PRESENT = [0, 1, 2, 4]


def similarity_softmax(feature: np.ndarray, tau: float) -> np.ndarray:
    rows = PROTOTYPES.vectors_CK.numpy()
    return softmax([(cosine(feature, rows[c]) + 1) / 2 / tau for c in PRESENT])


def test_contrast_by_numpy():
    features, labels = draw(6, 3), np.array([0, 4, 2, 3, 1, 1])  # the fourth has no prototype
    total = 0.0
    for feature, label in zip(features, labels, strict=True):
        if label != 3:
            total -= np.log(similarity_softmax(feature, 0.07)[PRESENT.index(label)])
    ours = contrast_loss(torch.from_numpy(features), torch.from_numpy(labels), PROTOTYPES, 0.07)
    assert ours.item() == pytest.approx(total / 6, rel=1e-4)


def test_contrast_of_a_batch_whose_classes_have_no_prototypes():
    loss = contrast_loss(torch.zeros(2, 3, requires_grad=True), torch.tensor([3, 3]), PROTOTYPES, 0.07)
    loss.backward()
    assert loss.item() == 0.0


def test_feature_loss_by_numpy():
    ours, theirs = draw(5, 3), draw(5, 3, seed=1)
    expected = np.mean([(1 - cosine(a, b)) / 2 for a, b in zip(ours, theirs, strict=True)])
    made = feature_loss(torch.from_numpy(ours), torch.from_numpy(theirs))
    assert made.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kind", ["kl", "published", "equal"])
@pytest.mark.parametrize("num_clients", [1, 3])
def test_global_features_by_loops(kind, num_clients):
    features, logits = draw(num_clients, 4, 3), draw(num_clients, 4, 5, seed=2)
    expected = np.zeros((4, 3))
    for i in range(4):
        weights = []
        for m in range(num_clients):
            ours, theirs = similarity_softmax(features[m, i], 0.07), softmax(logits[m, i][PRESENT].tolist())
            against = theirs if kind == "published" else np.log(theirs)
            weights.append(1.0 if kind == "equal" else np.exp(-(ours * (np.log(ours) - against)).sum()))
        for m in range(num_clients):
            expected[i] += weights[m] / sum(weights) * features[m, i]
    made = global_features(torch.from_numpy(features), torch.from_numpy(logits), PROTOTYPES, 0.07, kind)
    np.testing.assert_allclose(made.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_weights_do_not_underflow():
    """Two classifiers are sure of class 0 while the prototypes are not: both weights are far below the smallest
    number there is, yet one is a third of the other. Twice as long a feature has the same similarities."""
    feature = draw(3)
    doubt = 1 - similarity_softmax(feature, 0.07)[0]
    surer = 5000.0 + np.log(3) / doubt  # KL grows by doubt for each 1 in the logit
    assert 5000 * doubt > 1000
    features = torch.from_numpy(np.stack([feature, 2 * feature]))[:, None]
    logits = torch.zeros(2, 1, 5)
    logits[:, 0, 0] = torch.tensor([5000.0, surer])
    made = global_features(features, logits, PROTOTYPES, 0.07)
    np.testing.assert_allclose(made[0], (0.75 + 0.25 * 2) * feature, rtol=1e-3)


def test_without_prototypes_features_are_averaged():
    features = torch.from_numpy(draw(2, 3, 3))
    made = global_features(features, torch.zeros(2, 3, 5), ClassVectors.empty(5, 3), 0.07)
    torch.testing.assert_close(made, features.mean(dim=0))


def test_the_batch_of_a_round_is_the_same_everywhere_and_changes():
    first, again, later = (batch_of_round(Streams(1), round, 100, 50) for round in (0, 0, 1))
    assert first.tolist() == again.tolist() != later.tolist()
    assert len(set(first.tolist())) == 50 and first.max() < 100


def test_what_travels(toy):
    some = toy("fed2pkd", **SMALL)
    some.play(2)
    assert {name: array.shape for name, array in some.clients[0].upload().items()} == {
        "prototypes": (3, 4),
        "class_ids": (3,),
        "features": (7, 4),
        "batch_logits": (7, 5),
    }
    assert {name: array.shape for name, array in some.down.items()} == {
        "prototypes": (4, 4),
        "class_ids": (4,),
        "features": (7, 4),
        "sample_ids": (7,),
    }


def test_a_client_is_pulled_to_the_features_of_the_samples_it_is_told(toy):
    """One batch by hand: cross-entropy + 0.9 · L_ckd + 0.9 · L_gkd."""
    some = toy("fed2pkd", **SMALL, num_samples={0: 6})
    some.play(1)
    client = some.clients[0]
    twin = copy.deepcopy(client.model)
    client.receive(1, some.down)
    mean_loss = client.train(1)["loss"]
    inputs, labels = next(client.data.train.batches(6))
    public, _ = next(toy_commons().public.batches(20))
    prototypes = ClassVectors.from_rows(some.down["prototypes"], some.down["class_ids"], 5)
    features, targets = twin.features(inputs), torch.from_numpy(some.down["features"])
    expected = (
        torch.nn.functional.cross_entropy(twin.head(features), labels)
        + 0.9 * contrast_loss(features, labels, prototypes, 0.07)
        + 0.9 * feature_loss(twin.features(public[some.down["sample_ids"]]), targets)
    )
    assert mean_loss == pytest.approx(expected.item(), rel=1e-5)


def test_the_first_round_is_local_training(toy):
    some, alone = toy("fed2pkd", **SMALL), toy("local")
    for client, other in zip(some.clients, alone.clients, strict=True):
        assert client.train(0) == other.train(0)


def test_clients_are_tested_on_everything_by_the_largest_cosine(toy):
    some = toy("fed2pkd", **SMALL)
    first, second = some.play(2)
    assert "global_tested" not in first[0]
    assert second[0]["global_tested"] == 30
    client = some.clients[1]
    client.receive(2, some.down)
    prototypes = ClassVectors.from_rows(some.down["prototypes"], some.down["class_ids"], 5)
    test = toy_commons().global_test
    features = public_features(client.model, test, CPU)
    guesses = [
        max(some.down["class_ids"].tolist(), key=lambda c: cosine(feature, prototypes.vectors_CK[c].numpy()))
        for feature in features.numpy()
    ]
    assert client.evaluate()["global_correct"] == int((np.array(guesses) == test.labels).sum())
    assert similarities(features, prototypes, 0.07)[:, 4].max() == -torch.inf  # nobody holds class 4
    quiet = toy("fed2pkd", **SMALL, evaluate_globally=False)
    assert "global_tested" not in quiet.play(2)[1][0]


def test_counts_travel_when_they_weigh(toy):
    some = toy("fed2pkd", **SMALL, aggregation="weighted")
    some.play(1)
    assert some.clients[0].upload()["counts"].sum() == 36


def test_a_server_model_on_request(toy):
    options = {**SMALL, "server_model": "MLP", "server_epochs": 10, "server_batch_size": 5}
    some = toy("fed2pkd", **options)
    some.play(6)
    assert some.clients[0].upload()["logits"].shape == (20, 5)
    assert some.steps[-1].metrics["server_accuracy"] > 0.4
    assert set(some.server.modules()) == {"server_model"}
    assert toy("fed2pkd", **SMALL).server.modules() == {}


@pytest.mark.parametrize("server_model", ["", "MLP"])
def test_a_restored_federation_goes_on_with_the_same_bits(toy, server_model):
    whole, first, second = (toy("fed2pkd", **SMALL, server_model=server_model) for _ in range(3))
    whole.play(3)
    first.play(2)
    second.take_over(first)
    second.play(1)
    for name, array in whole.down.items():
        np.testing.assert_array_equal(array, second.down[name])


def test_a_client_restored_after_a_round_that_brought_nothing_trains_as_one_that_was_there(toy):
    """All dropped, so nothing comes down, and what came before stays in force."""
    there, first, restored = (toy("fed2pkd", **SMALL, public_data="sent") for _ in range(3))
    for some in (there, first):
        some.setup()
        some.play(2)
    restored.take_over(first)
    restored.setup()  # comes after a client has its state
    there.down = restored.down = {}
    assert there.play(1) == restored.play(1)
    for one, other in zip(there.clients, restored.clients, strict=True):
        assert one.is_guided and other.is_guided
        np.testing.assert_array_equal(one.model.head.weight.detach(), other.model.head.weight.detach())


def test_sent_samples_give_the_bits_of_known_ones(toy):
    known, sent = toy("fed2pkd", **SMALL), toy("fed2pkd", **SMALL, public_data="sent")
    sent.setup()
    assert known.play(2) == sent.play(2)


def test_cost():
    module = methods.load("fed2pkd")
    letters = {"M": 3, "C": 10, "K": 512, "ΣC": 12, "U": 10, "Np": 2500, "inputs": 3072, "Nb": 50}
    cost = formulae(module.contract(module.Config()))
    assert cost["up"].evaluate(letters) == 3 * 50 * (512 + 10) + 12 * 512
    assert cost["down"].evaluate(letters) == 3 * (50 * 512 + 10 * 512)
    dear = formulae(
        module.contract(module.Config(server_model="ResNet34", aggregation="weighted", public_data="sent"))
    )
    assert dear["up"].evaluate(letters) == 3 * 2500 * 10 + 3 * 50 * (512 + 10) + 12 * 513
    assert dear["setup_down"].evaluate(letters) == 3 * 2500 * 3072
