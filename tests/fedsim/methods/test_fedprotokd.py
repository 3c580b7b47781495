"""FedProtoKD's halves: what each step trains with, what travels, variants, and what a checkpoint holds."""

import copy

import numpy as np
import pytest
import torch
from toys import CPU, toy_commons

from fedsim import methods
from fedsim.contract import Payload
from fedsim.costs.formula import formulae
from fedsim.equations.class_vectors import ClassVectors
from fedsim.equations.public_distillation import aggregate_logits, client_loss, distances_to_class, importance
from fedsim.families.prototypes import PrototypeClient
from fedsim.families.public_samples import public_features, public_logits

NUM_PUBLIC, NUM_CLASSES, FEATURE_DIM = 20, 5, 4
QUICK = {"server_model": "MLP", "server_epochs": 2, "server_batch_size": 8, "prototype_epochs": 3}


@pytest.fixture
def federation(toy):
    """`federation(method="fedpkd", theta=0.5)`"""

    def make(method: str = "fedprotokd", **options):
        quick = {key: value for key, value in QUICK.items() if method == "fedprotokd" or key != "prototype_epochs"}
        return toy(method, **(quick | options))

    return make


def test_what_travels(federation):
    some = federation()
    assert some.setup() == {}
    some.play(2)
    up = some.clients[0].upload()
    assert {name: array.shape for name, array in up.items()} == {
        "logits": (NUM_PUBLIC, NUM_CLASSES),
        "prototypes": (3, FEATURE_DIM),
        "class_ids": (3,),
    }
    assert {name: array.shape for name, array in some.down.items()} == {
        "logits": (NUM_PUBLIC, NUM_CLASSES),
        "prototypes": (NUM_CLASSES, FEATURE_DIM),
    }
    # Logits, prototypes and their class numbers: neither counts nor weights.
    assert some.contract.payloads() == {Payload.LOGITS, Payload.PROTOTYPES, Payload.INDEX}


def test_sent_samples_give_the_bits_of_known_ones(federation):
    known, sent = federation(), federation(public_data="sent")
    assert sent.setup()["public"].shape == (NUM_PUBLIC, 6)
    assert sent.contract.payloads() - known.contract.payloads() == {Payload.SAMPLES}
    assert known.play(2) == sent.play(2)
    for name, array in known.down.items():
        np.testing.assert_array_equal(array, sent.down[name])


def test_cost():
    """Up Σᵢ (N_p C + C_i K), down M (N_p C + C K), and N_p images for each client if they are sent."""
    module = methods.load("fedprotokd")
    letters = {"M": 3, "C": 10, "K": 512, "ΣC": 12, "U": 10, "Np": 2500, "inputs": 3072}
    cost = formulae(module.contract(module.Config()))
    assert cost["up"].evaluate(letters) == 3 * 2500 * 10 + 12 * 512
    assert cost["down"].evaluate(letters) == 3 * (2500 * 10 + 10 * 512)
    assert cost["setup_down"].evaluate(letters) == 0
    sent = formulae(module.contract(module.Config(public_data="sent")))
    assert sent["setup_down"].evaluate(letters) == 3 * 7_680_000  # the paper's 2500 images of CIFAR-10


def test_the_first_round_is_local_training(federation, toy):
    some, alone = federation(), toy("local")
    for client, other in zip(some.clients, alone.clients, strict=True):
        assert client.train(0) == other.train(0)
        for ours, theirs in zip(client.model.parameters(), other.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_later_rounds_are_fedproto_s_with_epsilon(federation, toy):
    """Eq. 17 to 19: cross-entropy + 0.5 · element-mean squared error to the prototypes."""
    some, other = federation(), toy("fedproto", prototype_weight=0.5, prototypes_from="eval_pass")
    prototypes = {"prototypes": np.random.default_rng(3).normal(size=(5, 4)).astype(np.float32)}
    client, twin = some.clients[0], other.clients[0]
    PrototypeClient.receive(client, 1, prototypes)  # the prototypes alone, nothing to distil
    twin.receive(1, prototypes | {"class_ids": np.arange(5, dtype=np.int32)})
    assert client.train(1) == twin.train(1)
    np.testing.assert_array_equal(client.upload()["prototypes"], twin.upload()["prototypes"])


def test_clients_upload_what_they_think_after_training(federation):
    some = federation()
    client = some.clients[2]
    client.train(0)
    client.model.eval()
    inputs, _ = next(toy_commons().public.batches(NUM_PUBLIC))
    with torch.no_grad():
        expected = client.model(inputs).numpy()
    np.testing.assert_array_equal(client.upload()["logits"], expected)


REVERSED = {
    "reverse": ("reverse", "reverse"),
    "forward": ("forward", "forward"),
    "printed": ("forward", "reverse"),
}
"""Option kl -> direction on the server and on clients."""


@pytest.mark.parametrize(
    "options",
    [{}, {"eta": 0.2, "kl": "reverse", "temperature": 2.0}, {"distill_epochs": 3}, {"kl": "printed", "eta": 0.9}],
)
def test_distillation_is_sgd_on_equation_16(federation, options):
    some = federation(**options)
    client = some.clients[0]
    twin = copy.deepcopy(client.model)
    teacher = torch.from_numpy(np.random.default_rng(5).normal(size=(NUM_PUBLIC, NUM_CLASSES)).astype(np.float32))
    client.receive(1, {"logits": teacher.numpy(), "prototypes": np.zeros((5, 4), np.float32)})
    # The same by hand, in the order that the stream draws, with plain SGD.
    inputs, _ = next(toy_commons().public.batches(NUM_PUBLIC))
    order = some.server.context.streams.numpy("distil-order", client=0, round=1)
    for _ in range(options.get("distill_epochs", 1)):
        permutation = order.permutation(NUM_PUBLIC)
        for start in range(0, NUM_PUBLIC, 6):
            rows = torch.from_numpy(permutation[start : start + 6])
            loss = client_loss(
                twin(inputs[rows]),
                teacher[rows],
                eta=options.get("eta", 0.5),
                direction=REVERSED[options.get("kl", "forward")][1],
                temperature=options.get("temperature", 1.0),
            )
            twin.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in twin.parameters():
                    parameter -= 0.1 * parameter.grad
    for ours, theirs in zip(client.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"upsilon": 0.3, "kl": "reverse", "temperature": 2.0, "server_lr": 0.05},
        {"upsilon": 0.9, "kl": "printed", "importance": False},
    ],
)
def test_the_server_s_lesson_is_sgd_on_equation_13(federation, options):
    some = federation(**options)
    some.play(1)
    twin = copy.deepcopy(some.server.pupil.model)
    some.play(1)
    uploads = [client.upload() for client in some.clients]
    opinions = aggregate_logits(torch.from_numpy(np.stack([arrays["logits"] for arrays in uploads])))
    weights = torch.from_numpy(some.steps[1].records.get("importance", np.ones(NUM_PUBLIC, np.float32)))
    targets = torch.from_numpy(some.down["prototypes"])
    temperature, upsilon = options.get("temperature", 1.0), options.get("upsilon", 0.5)
    inputs, _ = next(toy_commons().public.batches(NUM_PUBLIC))
    order = some.server.context.streams.numpy("server-model-order", round=1)
    twin.train()
    for _ in range(QUICK["server_epochs"]):
        for rows in torch.from_numpy(order.permutation(NUM_PUBLIC)).split(QUICK["server_batch_size"]):
            features = twin.features(inputs[rows])
            logits, labels = twin.head(features), opinions[rows].argmax(dim=1)
            ours, theirs = (z.div(temperature).softmax(dim=1) for z in (logits, opinions[rows]))
            first, second = (ours, theirs) if options.get("kl") == "reverse" else (theirs, ours)
            kl = (first * (first.log() - second.log())).sum() / len(rows) * temperature**2  # Eq. 11
            own = -logits.log_softmax(dim=1)[torch.arange(len(rows)), labels]
            pull = (features - targets[labels]).square().mean()  # Eq. 12
            loss = upsilon * (kl + (weights[rows] * own).mean()) + (1 - upsilon) * pull
            gradients = torch.autograd.grad(loss, list(twin.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(twin.parameters(), gradients, strict=True):
                    parameter -= options.get("server_lr", 0.1) * gradient
    for ours, theirs in zip(some.server.pupil.model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"phi": 0.4, "steepness": 3.0, "importance_epsilon": 0.5}, {"importance_sigmoid": "rising"}]
)
def test_a_round_of_the_server_step_by_step(federation, options):
    """Opinions, pseudo-labels and importance are those of the equations, by the server's model as it was."""
    some = federation(**options)
    some.play(1)
    before = copy.deepcopy(some.server.pupil.model)
    some.play(1)
    uploads = [client.upload() for client in some.clients]  # uploading again changes nothing
    records = some.steps[1].records
    opinions = aggregate_logits(torch.from_numpy(np.stack([arrays["logits"] for arrays in uploads])))
    labels = opinions.argmax(dim=1)
    np.testing.assert_array_equal(records["public_labels"], labels.numpy())
    prototypes = ClassVectors.from_rows(some.down["prototypes"], np.arange(5), 5)
    distances = distances_to_class(public_features(before, toy_commons().public, CPU), labels, prototypes)
    weights = importance(
        distances,
        phi=options.get("phi", 0.8),
        steepness=options.get("steepness", 10.0),
        epsilon=options.get("importance_epsilon", 1e-8),
        sigmoid=options.get("importance_sigmoid", "falling"),
    )
    np.testing.assert_allclose(records["importance"], weights.numpy(), rtol=1e-5)
    np.testing.assert_array_equal(
        some.down["logits"], public_logits(some.server.pupil.model, toy_commons().public, CPU).numpy()
    )
    assert records["public_features"].shape == (NUM_PUBLIC, FEATURE_DIM)
    assert 0 <= some.steps[1].metrics["server_accuracy"] <= 1


def test_margins_of_each_round_are_recorded(federation):
    some, largest = federation(), federation(margin="max")
    for run in (some, largest):
        run.play(1)
    uploads = [client.upload() for client in some.clients]
    rows = {c: [] for c in range(NUM_CLASSES)}
    for arrays in uploads:
        for class_id, row in zip(arrays["class_ids"], arrays["prototypes"], strict=True):
            rows[int(class_id)].append(row)
    centres = {c: np.mean(own, axis=0) for c, own in rows.items() if own}
    expected = np.full(NUM_CLASSES, np.nan)  # and so it stays for class 4, which nobody holds
    for c, centre in centres.items():
        expected[c] = min(np.linalg.norm(centre - other) for d, other in centres.items() if d != c)
    assert np.isnan(expected).tolist() == [False, False, False, False, True]
    np.testing.assert_allclose(some.steps[0].records["class_margins"], expected, rtol=1e-5)
    assert some.steps[0].metrics["xi_max"] == pytest.approx(np.nanmax(expected), rel=1e-5)
    np.testing.assert_allclose(largest.steps[0].records["class_margins"][:4], np.nanmax(expected), rtol=1e-5)


def test_a_class_that_nobody_holds_keeps_its_first_prototype(federation):
    keeping, pushing = federation(), federation(absent_classes="push")
    for run in (keeping, pushing):
        run.play(3)
    sent = [[step.down["prototypes"][4] for step in run.steps] for run in (keeping, pushing)]
    assert np.array_equal(sent[0][0], sent[0][2])
    assert not np.array_equal(sent[1][0], sent[1][2])


VARIANTS = {
    "zeta": {"margin": "max"},
    "without I": {"importance": False},
    "printed sign": {"margin_sign": "printed"},
    "rising": {"importance_sigmoid": "rising"},
    "normalised": {"normalize_importance": True},
    "equal": {"logit_weighting": "equal"},
    "reverse": {"kl": "reverse"},
    "printed order": {"kl": "printed"},
    "adam": {"optimizer": "adam"},
    "slower prototypes": {"prototype_lr": 0.001},
    "smaller batches of prototypes": {"prototype_batch_size": 2},
    "no pull": {"prototype_weight": 0.0},
    "no server pull": {"upsilon": 1.0},
    "small margin": {"zeta": 0.01},
}


def test_each_option_changes_the_run(federation):
    def downs(**options):
        run = federation(**options)
        run.play(2)
        return np.concatenate([array.ravel() for array in run.down.values()])

    plain = downs()
    assert not [name for name, options in VARIANTS.items() if np.array_equal(downs(**options), plain)]


def test_without_importance_every_sample_counts_alike(federation):
    some = federation(importance=False)
    some.play(1)
    assert "importance" not in some.steps[0].records
    weights = some.server._importance(torch.zeros(20, dtype=torch.int64), ClassVectors.empty(5, 4))
    assert weights.tolist() == [1.0] * 20
    assert some.down["logits"].shape == (NUM_PUBLIC, NUM_CLASSES)  # and none is left out


def test_normalised_importance_has_mean_one(federation):
    some = federation(normalize_importance=True)
    some.play(1)
    assert some.steps[0].metrics["importance_mean"] == pytest.approx(1.0)


def test_clients_report_themselves_before_and_after_distillation(federation):
    some = federation()
    first, second = some.play(2)
    assert "trained_correct" not in first[0]
    assert all(metrics["trained_tested"] == metrics["tested"] for metrics in second)
    other = federation(evaluate_after="training")
    _, swapped = other.play(2)
    for ours, theirs in zip(second, swapped, strict=True):
        assert (ours["correct"], ours["trained_correct"]) == (theirs["distilled_correct"], theirs["correct"])


@pytest.mark.parametrize("method", ["fedprotokd", "fedpkd"])
def test_a_client_that_misses_rounds_and_a_server_with_one_upload(federation, method):
    some = federation(method)
    some.play(1, cohort=[3])  # a single client with a single class: one opinion, one prototype
    some.play(1, cohort=[0, 1])
    some.play(1)
    assert all(np.isfinite(array).all() for array in some.down.values())


@pytest.mark.parametrize("method", ["fedprotokd", "fedpkd"])
def test_a_restored_federation_goes_on_with_the_same_bits(federation, method):
    whole, first, second = (federation(method) for _ in range(3))
    whole.play(3)
    first.play(2)
    second.take_over(first)
    second.play(1)
    for name, array in whole.down.items():
        np.testing.assert_array_equal(array, second.down[name])
    assert whole.steps[2].metrics == second.steps[2].metrics


def test_learning_happens(federation):
    """Clients know different classes; the server, which has seen no label, learns what they know together."""
    some = federation(server_epochs=10, server_batch_size=5, prototype_epochs=20)
    some.play(8)
    accuracies = [step.metrics["server_accuracy"] for step in some.steps]
    assert accuracies[-1] > 0.5  # one of five classes is nobody's
    assert some.steps[-1].metrics["server_model_loss"] < some.steps[0].metrics["server_model_loss"]
