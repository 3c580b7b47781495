"""FedKTL: what travels, and the clients' losses by hand."""

import numpy as np
import pytest
import torch
from ktl_toys import (
    FEATURE_DIM,
    LATENT_DIM,
    NUM_CLASSES,
    SIDE,
    inputs_of,
    make,
    some_pairs,
)
from torch.nn.functional import cross_entropy, mse_loss, normalize, one_hot
from torch.utils.data import DataLoader, Subset
from toys import elements

from fedsim import config
from fedsim.config import Experiment, Run
from fedsim.contract import Payload
from fedsim.costs.formula import formulae
from fedsim.equations.etf import fit_images, to_bytes
from fedsim.generators.tiny import TinyGenerator
from fedsim.method import Setting, Task
from fedsim.methods import fedktl

pytestmark = pytest.mark.usefixtures("source")


# --------------------------------------------------------------------------------------- what travels


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("options", "size"), [({}, 5), ({"etf_dim": 4}, 4), ({"etf_dim": 50}, 50)])
def test_elements_are_those_of_the_paper(channels, options, size):
    """Up P · ΣC_i, down C (ch·h·w + H): section 3.3.2 and table 5."""
    toy = make(channels=channels, **options)
    toy.play(1)
    up = sum(elements(client.upload(), toy.contract.up) for client in toy.clients)
    down = elements(toy.down, toy.contract.down)
    assert up == size * (3 + 2 + 2)
    assert down == NUM_CLASSES * (channels * SIDE * SIDE + LATENT_DIM)
    assert toy.down["images"].shape == (NUM_CLASSES, channels, SIDE, SIDE)
    assert toy.down["images"].dtype == toy.down["latents"].dtype == np.float32
    assert toy.contract.payloads() == {Payload.PROTOTYPES, Payload.INDEX, Payload.IMAGES, Payload.LATENTS}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("C*ΣC", "M*C*(ch*h*w+H)", "0")),
        ({"etf_dim": 50}, ("50*ΣC", "M*C*(ch*h*w+H)", "0")),
        ({"classifier": "original"}, ("K*ΣC", "M*C*(ch*h*w+H)", "0")),
        ({"transfer": "mix"}, ("C*ΣC", "M*C*ch*h*w", "0")),
        ({"pairs_from": "labels"}, ("0", "0", "M*C*(ch*h*w+H)")),
        ({"transfer": "none"}, ("0", "0", "0")),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_the_formula_of_the_cost_counts_what_travels(options, expected):
    toy = make(channels=3, **options)
    setup_down, _ = toy.setup(), toy.play(1)
    letters = toy.task.dimensions | {"H": LATENT_DIM, "ΣC": 3 + 2 + 2}
    cost = formulae(toy.contract)
    assert tuple(str(cost[way]) for way in ("up", "down", "setup_down")) == expected
    assert ("H" in toy.contract.note) == ("H" in "".join(expected))
    sent_up = sum(elements(client.upload(), toy.contract.up) for client in toy.clients)
    assert cost["up"].evaluate(letters) == sent_up
    assert cost["down"].evaluate(letters) == 3 * elements(toy.down, toy.contract.down)
    assert cost["setup_down"].evaluate(letters) == 3 * elements(setup_down, toy.contract.setup_down)


def test_further_measures_are_those_of_its_own_read_out():
    """It predicts by cosines with fixed vectors, so there are no scores of classes for an AUC."""
    client = make().clients[0]
    experiment = Experiment(run=Run(clients=3, measures="all"), train=client.context.experiment.train)
    object.__setattr__(client.context, "experiment", experiment)
    assert set(client.evaluate()) == {"correct", "tested", "macro_f1"}


@pytest.mark.parametrize(
    ("generator", "latent_dim"), [("tiny", 128), ("", 128), ("a/xl.pkl", 512), ("a/diffusion", 4 * 64 * 64)]
)
def test_sizes_of_latents_are_known_without_a_generator(source, generator, latent_dim):
    experiment = config.build([{"method": {"name": "fedktl", "generator": generator}}])
    setting = Setting(experiment, experiment.method_config(), Task(3, 10, 7, (1, 6, 6)), None)
    assert fedktl.rehearsal_sizes(setting) == {"H": latent_dim}
    # Fixed at the border only where no other size is possible.
    assert setting.dimensions.get("H") == (latent_dim if generator in ("", "tiny") else None)
    assert source.asked == []


def test_the_embedded_generator_has_the_size_that_its_contract_says():
    assert TinyGenerator.latent_dim == 128


def test_bytes_for_images_are_a_quarter_and_hardly_worse():
    exact, coarse = make(), make(image_dtype="uint8")
    exact.play(1)
    coarse.play(1)
    assert coarse.down["images"].dtype == np.uint8
    assert coarse.down["images"].nbytes * 4 == exact.down["images"].nbytes
    for toy in (exact, coarse):
        toy.clients[0].receive(1, toy.down)
    floats, levels = (toy.clients[0].pairs.images for toy in (exact, coarse))
    difference = (floats - levels).abs().max().item()
    assert 0 < difference <= 1 / 255 + 1e-6  # half a level of 2/255
    assert levels.min() >= -1 and levels.max() <= 1
    coarse.play(1)


def test_all_classes_go_down_and_every_round_is_recorded():
    toy = make()
    toy.play(2)
    for step in toy.steps:
        assert step.records["images"].shape == (NUM_CLASSES, 1, SIDE, SIDE)
        assert step.records["images"].dtype == np.uint8
        np.testing.assert_array_equal(step.records["images"], to_bytes(step.down["images"]))
        assert {"mmd", "mse", "mmd_first", "mse_first"} == step.metrics.keys()
        assert step.metrics["mmd"] > 0 and step.metrics["mse"] > 0


def test_each_image_is_made_from_its_latent(source):
    toy = make(channels=3)
    toy.play(1)
    images = source.images(torch.from_numpy(toy.down["latents"]))
    np.testing.assert_allclose(toy.down["images"], 2 * fit_images(images, (3, SIDE, SIDE)) - 1, atol=1e-6)


# ----------------------------------------------------------------------------------------------- client


def test_everyone_has_the_same_etf_and_the_same_h_prime_in_every_round():
    toy = make(etf_dim=8)
    toy.play(1)
    layers = []
    for round in range(1, 3):
        toy.play(1)
        for client in toy.clients:
            torch.testing.assert_close(client.etf_CP, toy.clients[0].etf_CP, rtol=0, atol=0)
            assert client.model.head.weight.shape == (8, FEATURE_DIM)
            layers.append(client._pair_projection(client.pairs.latents_CH.shape[1]).state_dict())
        assert round < len(toy.steps)
    for layer in layers:
        assert layer["weight"].shape == (LATENT_DIM, FEATURE_DIM)
        assert all(torch.equal(layer[name], layers[0][name]) for name in layer)


def test_h_starts_alike_on_all_clients():
    heads = [client.model.head.state_dict() for client in make().clients]
    assert all(torch.equal(head[name], heads[0][name]) for head in heads for name in head)


@pytest.mark.parametrize(
    "options", [{}, {"arcface_scale": 1.0, "arcface_margin": 0.0}], ids=["arcface", "contrastive"]
)
def test_the_first_round_is_arcface_alone(options):
    client = make(num_train=6, **options).clients[0]  # one batch: the loss is that of the untouched model
    inputs, labels = inputs_of(client.data.train)
    with torch.no_grad():
        outputs = client.model.train()(inputs).double().numpy()
    etf = client.etf_CP.double().numpy()
    cosines = outputs @ etf.T / np.linalg.norm(outputs, axis=1, keepdims=True)
    scale, margin = options.get("arcface_scale", 64.0), options.get("arcface_margin", 0.5)
    logits = scale * cosines
    for row, label in enumerate(labels):
        logits[row, label] = scale * np.cos(np.arccos(cosines[row, label]) + margin)
    expected = (np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(6), labels]).mean()
    client.receive(0, {})
    assert client.train(0)["loss"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("options", "weight"), [({}, 1.0), ({"transfer_weight": 3.0}, 3.0)])
def test_later_rounds_add_the_weighted_error_on_all_pairs(options, weight):
    client, alone = (make(num_train=6, **options).clients[0] for _ in range(2))
    pairs = some_pairs()
    client.receive(1, pairs)
    with torch.no_grad():
        features = client.model.train().features(torch.from_numpy(pairs["images"]))
        extra = mse_loss(
            client._pair_projection(pairs["latents"].shape[1])(features), torch.from_numpy(pairs["latents"])
        ).item()
    expected = alone.train(1)["loss"] + weight * extra
    assert client.train(1)["loss"] == pytest.approx(expected, rel=1e-5)


def test_pairs_train_the_extractor_but_not_h():
    """The gradient of L^M by hand, with a learning rate so small that nothing else changes."""
    client, alone = (make(num_train=6, train={"lr": 1e-3}, clip_norm=0.0).clients[0] for _ in range(2))
    before = {name: tensor.clone() for name, tensor in client.model.state_dict().items()}
    client.receive(1, some_pairs())
    client.train(1)
    alone.train(1)
    name = "extractor.0.1.weight"
    moved, moved_alone = (half.model.state_dict()[name] - before[name] for half in (client, alone))
    twin = make(num_train=6).clients[0]
    twin.receive(1, some_pairs())
    features, latents = twin.model.train().features(twin.pairs.images), twin.pairs.latents_CH
    (twin.config.mu * mse_loss(twin._pair_projection(latents.shape[1])(features), latents)).backward()
    gradient = dict(twin.model.named_parameters())[name].grad
    torch.testing.assert_close(moved - moved_alone, -1e-3 * gradient, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(client.model.head.weight, alone.model.head.weight)


@pytest.mark.parametrize(("batch_size", "sizes"), [(1, [1] * 5), (2, [2, 2]), (3, [3, 2]), (5, [5]), (12, [5])])
def test_a_pass_over_the_pairs_ends_with_a_shorter_batch(batch_size, sizes):
    """As torch's loader cuts them; of five pairs in twos one is left out, since it has no variance."""
    client = make(train={"batch_size": batch_size}).clients[1]
    rows = client._pair_rows(round=4)
    taken = [[next(rows).tolist() for _ in sizes] for _ in range(6)]
    assert all([len(batch) for batch in some] == sizes for some in taken)
    for some in taken:
        flat = [row for batch in some for row in batch]
        assert len(set(flat)) == sum(sizes) and set(flat) <= set(range(NUM_CLASSES))
    assert len({str(some) for some in taken}) > 1  # reshuffled
    again, other = client._pair_rows(round=4), client._pair_rows(round=5)
    assert [[next(again).tolist() for _ in sizes] for _ in range(6)] == taken
    assert [[next(other).tolist() for _ in sizes] for _ in range(6)] != taken


def test_an_epoch_is_that_of_the_published_client():
    """Its loop written out with torch's own loader: own samples first, then a batch of pairs, which is shorter at
    the end of a pass. Statistics of batch normalisation depend on the order, so they are compared too."""
    options = {"clip_norm": 0.0, "arcface_scale": 4.0, "transfer_weight": 1.0}  # rounding stays small
    client, twin = (make(num_train=24, train={"batch_size": 3}, **options).clients[0] for _ in range(2))
    client.receive(1, some_pairs())
    twin.receive(1, some_pairs())
    rows, orders = client._pair_rows(round=1), []
    while len(orders) < 5:
        orders.append([*next(rows).tolist(), *next(rows).tolist()])  # a pass: three and two
    client.train(1)

    pairs = list(zip(twin.pairs.images, twin.pairs.latents_CH, strict=True))
    loaders = iter([DataLoader(Subset(pairs, order), batch_size=3) for order in orders])
    model, projection = twin.model.train(), twin._pair_projection(LATENT_DIM)
    optimizer = torch.optim.SGD([*model.parameters(), *projection.parameters()], lr=0.01)
    inputs, labels = inputs_of(twin.data.train)
    iterator = iter(next(loaders))
    for own, classes in zip(inputs.split(3), labels.split(3), strict=True):
        outputs = model(own)
        cosines = normalize(outputs) @ twin.etf_CP.T
        angles = cosines.acos() + 0.5 * one_hot(classes, NUM_CLASSES)
        loss = cross_entropy(4 * angles.cos(), classes)
        try:
            images, latents = next(iterator)
        except StopIteration:
            iterator = iter(next(loaders))
            images, latents = next(iterator)
        loss = loss + mse_loss(projection(model.features(images)), latents)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(client.model.state_dict()[name], tensor, rtol=1e-3, atol=1e-4, msg=name)


def test_gradients_of_model_and_h_prime_are_clipped():
    client = make(num_train=6, clip_norm=1e-3).clients[0]
    before = [weight.detach().clone() for weight in client.model.parameters()]
    client.receive(1, some_pairs())
    client.train(1)
    moved = [(a - b).square().sum() for a, b in zip(client.model.parameters(), before, strict=True)]
    assert torch.stack(moved).sum().sqrt().item() == pytest.approx(0.01 * 1e-3, rel=0.05)  # lr · norm


@pytest.mark.parametrize("renormalize", [False, True])
def test_prototypes_are_means_of_unit_outputs_of_the_trained_model(renormalize):
    client = make(num_train=27, renormalize_prototypes=renormalize).clients[0]  # an epoch covers 24
    client.train(0)
    inputs, labels = inputs_of(client.data.train)
    with torch.no_grad():
        outputs = client.model.eval()(inputs[:24]).double().numpy()
    outputs /= np.linalg.norm(outputs, axis=1, keepdims=True)
    arrays = client.upload()
    assert arrays["class_ids"].tolist() == [0, 1, 2]
    for row, label in zip(arrays["prototypes"], (0, 1, 2), strict=True):
        mean = outputs[labels[:24] == label].mean(axis=0)
        np.testing.assert_allclose(row, mean / np.linalg.norm(mean) if renormalize else mean, atol=1e-5)
    lengths = np.linalg.norm(arrays["prototypes"], axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-6) if renormalize else np.testing.assert_array_less(lengths, 1)


def test_prediction_is_the_largest_cosine():
    client = make().clients[0]
    client.train(0)
    inputs, labels = inputs_of(client.data.test)
    with torch.no_grad():
        outputs = client.model.eval()(inputs)
    cosines = [[torch.cosine_similarity(o, v, dim=0).item() for v in client.etf_CP] for o in outputs]
    correct = int((np.argmax(cosines, axis=1) == labels.numpy()).sum())
    assert client.evaluate() == {"correct": correct, "tested": 8}
