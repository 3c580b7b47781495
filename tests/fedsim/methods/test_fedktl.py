"""FedKTL: what travels, the clients' losses by hand, every ablation, the server's pairs, resuming, bad input."""

import importlib
import math
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, normalize

from fedsim import assembly, config, contract, generators
from fedsim.contract import Payload
from fedsim.data import ClientData, Dataset, Federation, Subset
from fedsim.errors import UserError
from fedsim.generators import Generator
from fedsim.knowledge_transfer import arcface_loss, fit_images, to_bytes
from fedsim.methods import fedktl
from fedsim.methods.base import ClientContext, ServerContext, Step, Task, Upload
from fedsim.models import SplitModel
from fedsim.models.base import Backbone
from fedsim.seeds import Streams
from fedsim.server_optimizers.feature_transformer import FeatureTransformer

CPU = torch.device("cpu")
NUM_CLASSES, FEATURE_DIM, LATENT_DIM, SIDE = 5, 7, 6, 6
CLASSES_HELD = [[0, 1, 2], [1, 3], [0, 3]]  # nobody holds class 4


class FakeGenerator(Generator):
    """Latents around one centre for each label, and images that are sums of fixed patterns."""

    name, latent_dim, device, batch_size = "fake", LATENT_DIM, CPU, 4

    def __init__(self, image_shape: tuple[int, int, int] = (3, 8, 8), num_labels: int = 9):
        self.image_shape, self.num_labels = image_shape, num_labels
        draw = torch.Generator().manual_seed(3)
        self.centres_LH = torch.randn(max(num_labels, 1), LATENT_DIM, generator=draw)
        self.patterns = torch.randn(LATENT_DIM, math.prod(image_shape), generator=draw)

    def _draw(self, n, labels_N, generator):
        centres_NH = self.centres_LH[labels_N] if self.num_labels else self.centres_LH[:1].expand(n, -1)
        return centres_NH + 0.3 * torch.randn(n, LATENT_DIM, generator=generator)

    def _images(self, latents_NH):
        return (latents_NH @ self.patterns).sigmoid().reshape(-1, *self.image_shape)


@pytest.fixture(autouse=True)
def source(monkeypatch) -> FakeGenerator:
    """What the server gets whichever generator it asks for; `asked` lists what it asked for."""
    fake = FakeGenerator()
    fake.asked = []

    def load(name, device="cpu"):
        fake.asked.append(name)
        return fake

    monkeypatch.setattr(generators, "load", load)
    return fake


def toy_data(client: int, channels: int, num_train: int) -> ClientData:
    draw = np.random.default_rng(client)
    num = num_train + 8
    labels = np.array(CLASSES_HELD[client])[draw.integers(len(CLASSES_HELD[client]), size=num)]
    inputs = draw.integers(0, 80, (num, SIDE, SIDE, channels)).astype(np.uint8)
    inputs[np.arange(num), labels] += 150  # a bright line, one for each class
    dataset = Dataset("toy", inputs, labels.astype(np.int64), NUM_CLASSES, num_train)
    return ClientData(Subset(dataset, np.arange(num_train)), Subset(dataset, np.arange(num_train, num)))


def toy_model(client: int, channels: int) -> SplitModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(client)
        inside = nn.Linear(channels * SIDE * SIDE, FEATURE_DIM)
        body = nn.Sequential(nn.Flatten(), inside, nn.BatchNorm1d(FEATURE_DIM), nn.Tanh())
        head = nn.Linear(FEATURE_DIM, NUM_CLASSES)
        return SplitModel("toy", Backbone(body, FEATURE_DIM), nn.Identity(), head, FEATURE_DIM)


@dataclass
class Toy:
    """All halves, and the rounds that they play."""

    task: Task
    contract: contract.Contract
    clients: list[fedktl.Client]
    server: fedktl.Server
    down: dict[str, np.ndarray] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def setup(self) -> dict[str, np.ndarray]:
        down = self.server.setup([Upload(i, 10, client.setup()) for i, client in enumerate(self.clients)])
        contract.check(down, self.contract.setup_down, self.task.dimensions, "server")
        if self.contract.setup_down:
            for client in self.clients:
                client.receive_setup({name: array.copy() for name, array in down.items()})
        return down

    def play(self, num_rounds: int, cohort: tuple[int, ...] = (0, 1, 2)) -> list[list[dict[str, float]]]:
        history = []
        for round in range(len(self.steps), len(self.steps) + num_rounds):
            uploads, metrics = [], []
            for client_id in cohort:
                client = self.clients[client_id]
                client.receive(round, {name: array.copy() for name, array in self.down.items()})
                metrics.append(client.evaluate() | client.train(round))
                arrays = client.upload()
                contract.check(arrays, self.contract.up, self.task.dimensions, f"client {client_id}")
                uploads.append(Upload(client_id, len(client.data.train), arrays))
            step = self.server.aggregate(round, uploads)
            contract.check(step.down, self.contract.down, self.task.dimensions, "server")
            self.down = step.down
            self.steps.append(step)
            history.append(metrics)
        return history

    def states(self) -> list[dict[str, np.ndarray]]:
        return [half.state() for half in (*self.clients, self.server)]


def make(
    *,
    channels: int = 1,
    num_train: int = 24,
    train: dict[str, Any] | None = None,
    input_shape: tuple[int, ...] | None = None,
    **options: Any,
) -> Toy:
    experiment = config.build(
        [
            {
                "run": {"clients": 3},
                "model": {"feature_dim": FEATURE_DIM},
                "train": {"batch_size": 6, **(train or {})},
                "method": {"name": "fedktl", "server_epochs": 5, **options},
            }
        ]
    )
    options_of_method, streams = experiment.method_config(), Streams(experiment.run.seed)
    task = Task(3, NUM_CLASSES, FEATURE_DIM, input_shape or (channels, SIDE, SIDE))
    server = fedktl.Server(ServerContext(experiment, options_of_method, task, None, streams, CPU))
    clients = [
        fedktl.Client(
            ClientContext(
                client,
                experiment,
                options_of_method,
                task,
                toy_model(client, channels),
                toy_data(client, channels, num_train),
                streams,
                CPU,
            )
        )
        for client in range(3)
    ]
    return Toy(task, fedktl.contract(options_of_method), clients, server)


def inputs_of(data: Subset) -> tuple[torch.Tensor, torch.Tensor]:
    """All samples as a model reads them, by hand."""
    images = data.dataset.inputs[data.indices].astype(np.float64) / 255
    return torch.from_numpy((images - 0.5) / 0.5).float().permute(0, 3, 1, 2), torch.from_numpy(data.labels)


def some_pairs(channels: int = 1) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(9)
    images = draw.uniform(-1, 1, (NUM_CLASSES, channels, SIDE, SIDE)).astype(np.float32)
    return {"images": images, "latents": draw.normal(size=(NUM_CLASSES, LATENT_DIM)).astype(np.float32)}


def assert_same(first, second):
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
            assert one[name].dtype == other[name].dtype


# --------------------------------------------------------------------------------------- what travels


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("options", "size"), [({}, 5), ({"etf_dim": 4}, 4), ({"etf_dim": 50}, 50)])
def test_elements_are_those_of_the_paper(channels, options, size):
    """Up P · ΣC_i, down C (ch·h·w + H): section 3.3.2 and table 5."""
    toy = make(channels=channels, **options)
    toy.play(1)
    up = sum(
        toy.contract.up[name].elements(array.shape)
        for client in toy.clients
        for name, array in client.upload().items()
    )
    down = sum(toy.contract.down[name].elements(array.shape) for name, array in toy.down.items())
    assert up == size * (3 + 2 + 2)
    assert down == NUM_CLASSES * (channels * SIDE * SIDE + LATENT_DIM)
    assert toy.down["images"].shape == (NUM_CLASSES, channels, SIDE, SIDE)
    assert toy.down["images"].dtype == toy.down["latents"].dtype == np.float32
    assert toy.contract.payloads() == {Payload.PROTOTYPES, Payload.INDEX, Payload.IMAGES, Payload.LATENTS}


def test_bytes_for_images_are_a_quarter_and_hardly_worse():
    exact, coarse = make(), make(image_dtype="uint8")
    exact.play(1)
    coarse.play(1)
    assert coarse.down["images"].dtype == np.uint8
    assert coarse.down["images"].nbytes * 4 == exact.down["images"].nbytes
    for toy in (exact, coarse):
        toy.clients[0].receive(1, toy.down)
    difference = (exact.clients[0].images - coarse.clients[0].images).abs().max().item()
    assert 0 < difference <= 1 / 255 + 1e-6  # half a level of 2/255
    assert coarse.clients[0].images.min() >= -1 and coarse.clients[0].images.max() <= 1
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
            layers.append(client._pair_projection().state_dict())
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


@pytest.mark.parametrize(("options", "weight"), [({}, 50.0), ({"transfer_weight": 3.0}, 3.0)])
def test_later_rounds_add_the_weighted_error_on_all_pairs(options, weight):
    client, alone = (make(num_train=6, **options).clients[0] for _ in range(2))
    pairs = some_pairs()
    client.receive(1, pairs)
    with torch.no_grad():
        features = client.model.train().features(torch.from_numpy(pairs["images"]))
        extra = mse_loss(client._pair_projection()(features), torch.from_numpy(pairs["latents"])).item()
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
    features = twin.model.train().features(twin.images)
    (50 * mse_loss(twin._pair_projection()(features), twin.latents_CH)).backward()
    gradient = dict(twin.model.named_parameters())[name].grad
    torch.testing.assert_close(moved - moved_alone, -1e-3 * gradient, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(client.model.head.weight, alone.model.head.weight)


@pytest.mark.parametrize(("batch_size", "size"), [(2, 2), (3, 3), (5, 5), (12, 5)])
def test_pairs_are_taken_evenly_in_batches_of_the_clients_size(batch_size, size):
    client = make(train={"batch_size": batch_size}).clients[1]
    rows = client._pair_rows(round=4)
    taken = [next(rows).tolist() for _ in range(3 * NUM_CLASSES)]
    assert {len(batch) for batch in taken} == {size}
    flat = [row for batch in taken for row in batch]
    passes = [flat[start : start + NUM_CLASSES] for start in range(0, len(flat), NUM_CLASSES)]
    assert all(sorted(some) == list(range(NUM_CLASSES)) for some in passes)
    assert len({tuple(some) for some in passes}) > 1  # reshuffled
    again, other = client._pair_rows(round=4), client._pair_rows(round=5)
    assert [next(again).tolist() for _ in range(3 * NUM_CLASSES)] == taken
    assert [next(other).tolist() for _ in range(3 * NUM_CLASSES)] != taken


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


# --------------------------------------------------------------------------------------------- ablations


def test_without_transfer_nothing_travels_and_no_generator_is_loaded(source):
    toy = make(transfer="none")
    toy.play(2)
    assert toy.contract == contract.Contract()
    assert toy.down == {} and toy.steps[-1].records == {} and source.asked == []


def test_weight_zero_is_training_alone_but_images_are_still_made():
    zero, none = make(transfer_weight=0.0), make(transfer="none")
    assert zero.play(3) == none.play(3)
    assert zero.down["images"].shape[0] == NUM_CLASSES


def test_the_original_classifier_has_cross_entropy_and_prototypes_are_features():
    toy = make(classifier="original", num_train=6)
    client = toy.clients[0]
    inputs, labels = inputs_of(client.data.train)
    with torch.no_grad():
        expected = cross_entropy(client.model.train()(inputs), labels).item()
    assert client.train(0)["loss"] == pytest.approx(expected, rel=1e-5)
    with torch.no_grad():
        features = client.model.eval().features(inputs).numpy()
    arrays = client.upload()
    for row, label in zip(arrays["prototypes"], arrays["class_ids"], strict=True):
        np.testing.assert_allclose(row, features[labels.numpy() == label].mean(axis=0), atol=1e-5)
    with torch.no_grad():
        predicted = client.model(inputs_of(client.data.test)[0]).argmax(dim=1).numpy()
    assert client.evaluate()["correct"] == int((predicted == client.data.test.labels).sum())
    toy.play(2)
    assert toy.server.transformer.hidden.weight.shape == (FEATURE_DIM, FEATURE_DIM)


def test_mixing_trains_on_images_as_samples_of_their_classes():
    """One batch of all own samples and all images, so that the loss is that of the untouched model."""
    toy = make(transfer="mix", num_train=7, train={"batch_size": 7 + NUM_CLASSES}, image_dtype="uint8")
    client = toy.clients[1]
    pixels = np.random.default_rng(2).integers(0, 256, (NUM_CLASSES, 1, SIDE, SIDE), np.uint8)
    client.receive(1, {"images": pixels})
    inputs, labels = inputs_of(client.data.train)
    inputs = torch.cat([inputs, torch.from_numpy(pixels) / 127.5 - 1])
    labels = torch.cat([labels, torch.arange(NUM_CLASSES)])
    with torch.no_grad():
        cosines = normalize(client.model.train()(inputs)) @ client.etf_CP.T
        expected = arcface_loss(cosines, labels, scale=64.0, margin=0.5).item()
    assert client.train(1)["loss"] == pytest.approx(expected, rel=1e-4)


def test_mixing_sends_no_latents():
    toy = make(transfer="mix", channels=3)
    toy.play(3)
    assert set(toy.down) == {"images"}
    assert Payload.LATENTS not in toy.contract.payloads()


def test_labelled_pairs_are_drawn_once_and_sent_at_set_up(source):
    toy = make(pairs_from="labels")
    pairs = toy.setup()
    assert toy.contract.up == toy.contract.down == {}
    assert set(pairs) == {"images", "latents"}
    # Latents lie around the centre of the label that was asked for: all different.
    distances = torch.cdist(torch.from_numpy(pairs["latents"]), source.centres_LH)
    assert len(set(distances.argmin(dim=1).tolist())) == NUM_CLASSES
    images = fit_images(source.images(torch.from_numpy(pairs["latents"])), (1, SIDE, SIDE))
    np.testing.assert_allclose(pairs["images"], 2 * images - 1, atol=1e-6)
    toy.play(2)
    np.testing.assert_array_equal(toy.steps[1].records["images"], to_bytes(pairs["images"]))
    again = make(pairs_from="labels").setup()
    assert_same([pairs], [again])


def test_labelled_pairs_are_used_from_the_first_round_on():
    with_pairs, without = make(pairs_from="labels", num_train=6), make(transfer="none", num_train=6)
    with_pairs.setup()
    assert with_pairs.clients[0].train(0)["loss"] > without.clients[0].train(0)["loss"] + 1


# ------------------------------------------------------------------------------------------------- noise


def test_noise_on_prototypes_is_that_of_fedpcl():
    quiet, noisy = make(etf_dim=400), make(etf_dim=400, noisy_prototypes=True)
    noises = []
    for round in range(2):
        rows = []
        for toy in (quiet, noisy):
            toy.clients[0].train(round)
            rows.append(toy.clients[0].upload())
        assert rows[0]["class_ids"].tolist() == rows[1]["class_ids"].tolist()
        noises.append(rows[1]["prototypes"] - 0.8 * rows[0]["prototypes"])
    assert np.std(noises) == pytest.approx(0.05, rel=0.05)
    assert not np.allclose(noises[0], noises[1])


def test_noise_on_pairs():
    quiet, noisy = make(channels=3), make(channels=3, noisy_pairs=True)
    quiet.play(1)
    noisy.play(1)
    for name, scale in (("images", 0.2), ("latents", 0.05)):
        noise = noisy.down[name] - 0.8 * quiet.down[name]
        assert noise.std() == pytest.approx(scale, rel=0.25)
    make(noisy_pairs=True, image_dtype="uint8").play(1)


# ------------------------------------------------------------------------------------------------ server


@pytest.mark.parametrize(
    ("options", "num_labels", "expected"),
    [
        ({}, 9, (1.0, 0.01)),
        ({"generator": "some/xl.pkl"}, 9, (1.0, 0.01)),
        ({"generator": "some/sg3.pkl"}, 0, (0.1, 0.01)),
        ({"generator": "some/diffusion"}, 0, (0.01, 0.1)),
        ({"mse_weight": 7.0, "server_lr": 0.3}, 0, (7.0, 0.3)),
    ],
    ids=["tiny", "xl", "sg3", "sd", "given"],
)
def test_settings_reach_the_optimizer(monkeypatch, source, options, num_labels, expected):
    settings = {}

    def fit(self, prototypes_NP, labels_N, **given):
        settings.update(given)
        return original(self, prototypes_NP, labels_N, **given)

    original = FeatureTransformer.fit
    monkeypatch.setattr(FeatureTransformer, "fit", fit)
    source.num_labels = num_labels
    toy = make(server_batch_size=3, mmd_weight=0.5, **options)
    toy.play(1)
    assert (settings["mse_weight"], settings["lr"]) == expected
    assert (settings["epochs"], settings["batch_size"], settings["mmd_weight"]) == (5, 3, 0.5)
    assert settings["clip_norm"] == 100.0
    assert source.asked == [options.get("generator", "tiny")]


@pytest.mark.parametrize(("generator", "mu"), [("", 50), ("tiny", 50), ("a/b.pkl", 50), ("folder", 100)])
def test_mu_belongs_to_the_kind_of_generator(generator, mu):
    assert fedktl.Config(generator=generator).mu == mu
    assert fedktl.Config(generator=generator, transfer_weight=2.0).mu == 2.0


@pytest.mark.parametrize("trainable", [False, True])
def test_absent_classes_keep_their_pair(trainable):
    toy = make(trainable_centroids=trainable)
    first = toy.server.transformer.centroids_CH.detach().clone().numpy()
    toy.play(1)
    np.testing.assert_array_equal(toy.down["latents"][4], first[4])
    assert (toy.down["latents"][:4] != first[:4]).any(axis=1).all()
    before = toy.down
    toy.play(1, cohort=(1,))  # who holds classes 1 and 3
    for name in ("latents", "images"):
        same = [np.array_equal(a, b) for a, b in zip(before[name], toy.down[name], strict=True)]
        assert same == [True, False, True, False, True]


def test_initial_centroids_are_valid_or_normal(source):
    valid = make().server.transformer.centroids_CH
    distances = torch.cdist(valid, source.centres_LH).min(dim=1).values
    assert distances.max().item() < 0.3 * math.sqrt(LATENT_DIM) * 2
    free = make(trainable_centroids=True).server.transformer.centroids_CH
    assert free.requires_grad and free.std().item() == pytest.approx(1, abs=0.4)


def test_a_round_without_uploads_sends_the_pairs_again():
    toy = make()
    toy.play(1)
    step = toy.server.aggregate(1, [Upload(0, 0, {}), Upload(1, 0, {})])
    assert_same([step.down], [toy.down])
    assert all(np.isfinite(value) for value in step.metrics.values())


def test_a_client_with_fewer_samples_than_a_batch_sends_no_rows():
    toy = make(num_train=5)
    toy.play(2)
    assert toy.clients[0].upload()["prototypes"].shape == (0, NUM_CLASSES)
    assert np.isfinite(toy.down["images"]).all()


# ------------------------------------------------------------------------------------------- same bits


OPTIONS = [
    {},
    {"trainable_centroids": True, "noisy_pairs": True, "noisy_prototypes": True, "image_dtype": "uint8"},
    {"classifier": "original", "transfer": "mix"},
    {"pairs_from": "labels"},
    {"transfer": "none"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "default")
def test_state_restored_into_new_halves_continues_with_the_same_bits(options):
    whole, halted, resumed = (make(**options) for _ in range(3))
    for toy in (whole, halted, resumed):
        toy.setup()
    history = whole.play(4)
    assert halted.play(2) == history[:2]
    saved = [{name: array.copy() for name, array in state.items()} for state in halted.states()]
    for half, state in zip((*resumed.clients, resumed.server), saved, strict=True):
        half.load_state(state)
    resumed.down, resumed.steps = halted.down, list(halted.steps)
    halted.play(1)  # going on with the old halves must not touch what was saved or restored
    assert_same(resumed.states(), saved)
    assert resumed.play(2) == history[2:]
    assert_same(resumed.states(), whole.states())
    assert_same([resumed.down], [whole.down])


def test_what_went_down_is_not_altered_by_the_next_round():
    toy = make(trainable_centroids=True)
    toy.play(1)
    first = {name: array.copy() for name, array in toy.down.items()}
    kept = toy.down
    toy.play(1)
    assert_same([kept], [first])


# -------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "shape", "sentence"),
    [
        ({"etf_dim": 3}, None, "method.etf_dim = 3 is too small for 5 classes; give at least 4, or 0 for 5."),
        ({}, (1, 9, 6), "the generator fake makes images of 8x8 pixels, but the clients' are 9x6; choose a l"),
        ({}, (2, 6, 6), "the generator fake makes images of 3 channels, the clients' have 2; choose another"),
        ({}, (36,), "fedktl needs images, but a sample of this data set is 36 numbers; choose another"),
        ({"classifier": "original", "etf_dim": 9}, None, "method.etf_dim = 9 needs method.classifier = etf"),
    ],
    ids=["etf_dim", "small", "channels", "vectors", "original"],
)
def test_bad_input_is_one_sentence(options, shape, sentence):
    with pytest.raises(UserError) as error:
        make(input_shape=shape, **options)
    assert str(error.value).startswith(sentence) and "\n" not in str(error.value)
    if shape or "classifier" not in options:
        task = Task(3, NUM_CLASSES, FEATURE_DIM, shape or (1, SIDE, SIDE))
        with pytest.raises(UserError) as checked:
            fedktl.check(fedktl.Config(**options), task)
        assert str(checked.value) == str(error.value)


@pytest.mark.parametrize(
    ("num_labels", "sentence"), [(4, "the task has 5 classes but"), (0, "the generator fake is unconditional")]
)
def test_labelled_pairs_need_enough_labels(source, num_labels, sentence):
    source.num_labels = num_labels
    with pytest.raises(UserError, match=sentence):
        make(pairs_from="labels")


def test_a_generator_that_is_not_there(monkeypatch):
    monkeypatch.undo()  # the real `load`
    with pytest.raises(UserError, match=r"there is no generator at nowhere/some\.pkl; "):
        make(generator="nowhere/some.pkl")


def test_vectors_are_no_obstacle_where_no_image_is_made():
    fedktl.check(fedktl.Config(transfer="none"), Task(3, NUM_CLASSES, FEATURE_DIM, (36,)))


@pytest.mark.parametrize(
    ("option", "value"),
    [("server_batch_size", 1), ("transfer_weight", -1), ("arcface_margin", 4.0), ("image_dtype", "float16")],
)
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(UserError, match=rf"method\.{option}"):
        make(**{option: value})


def test_clients_do_without_generators(monkeypatch):
    """Client processes never import them; the module and a client are made where they cannot be imported."""
    monkeypatch.setitem(sys.modules, "fedsim.generators", None)
    monkeypatch.delattr("fedsim.generators")
    module = importlib.reload(fedktl)
    toy = make(transfer="none")
    assert isinstance(toy.clients[0], module.Client)
    with pytest.raises(ImportError):
        make()


# ----------------------------------------------------------------------------------------- whole rounds


def test_digits_are_learnt_and_the_alignment_improves(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path))
    big = FakeGenerator((3, 32, 32))
    monkeypatch.setattr(generators, "load", lambda name, device="cpu": big)
    experiment = config.build(
        [
            {
                "run": {"clients": 4},
                "data": {"dataset": "digits", "samples_per_class": 40},
                "model": {"group": "CNN2", "feature_dim": 64},
                "method": {"name": "fedktl", "server_epochs": 20},
            }
        ]
    )
    federation = Federation(experiment)
    task = assembly.task_of(experiment, federation)
    agreed = assembly.contract_of(experiment)
    clients = [assembly.make_client(experiment, federation, client) for client in range(4)]
    server, down, accuracies, steps = assembly.make_server(experiment, federation), {}, [], []
    for round in range(5):
        uploads, counts = [], []
        for number, client in enumerate(clients):
            client.receive(round, down)
            counts.append(client.evaluate())
            client.train(round)
            arrays = client.upload()
            contract.check(arrays, agreed.up, task.dimensions, "up")
            uploads.append(Upload(number, len(client.data.train), arrays))
        step = server.aggregate(round, uploads)
        contract.check(step.down, agreed.down, task.dimensions, "down")
        down = step.down
        steps.append(step)
        accuracies.append(sum(c["correct"] for c in counts) / sum(c["tested"] for c in counts))
    assert down["images"].shape == (10, 1, 28, 28)
    assert accuracies[0] < 0.3 and accuracies[-1] > 0.7
    assert steps[-1].metrics["mmd"] < steps[0].metrics["mmd_first"]
    assert down["images"].min() >= -1 and down["images"].max() <= 1
