"""FedKTL: the server's pairs, resuming, bad input, learning."""

import importlib
import math
import sys

import numpy as np
import pytest
import torch
from ktl_toys import (
    FEATURE_DIM,
    LATENT_DIM,
    NUM_CLASSES,
    SIDE,
    FakeGenerator,
    make,
)
from toys import Toy, assert_same

from fedsim import assembly, config, generators
from fedsim.data import Federation
from fedsim.errors import UserError
from fedsim.method import Setting, Task, Upload
from fedsim.methods import fedktl
from fedsim.server_optimizers.feature_transformer import FeatureTransformer

pytestmark = pytest.mark.usefixtures("source")


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


@pytest.mark.parametrize(("generator", "mu"), [("", 1), ("tiny", 1), ("a/b.pkl", 50), ("folder", 100)])
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
    saved = resumed.take_over(halted)
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


def check(shape: tuple[int, ...] = (1, SIDE, SIDE), **options) -> None:
    """What is looked at where clients are forked from."""
    experiment = config.build([{"method": {"name": "fedktl", **options}}])
    task = Task(3, NUM_CLASSES, FEATURE_DIM, shape)
    fedktl.check(Setting(experiment, experiment.method_config(), task, None))


@pytest.mark.parametrize(
    ("options", "shape", "sentence"),
    [
        ({"etf_dim": 3}, (1, 6, 6), "method.etf_dim = 3 is too small for 5 classes; give at least 4, or 0 for 5."),
        ({}, (36,), "fedktl needs images, but a sample of this data set is 36 numbers; choose another"),
        ({"classifier": "original", "etf_dim": 9}, (1, 6, 6), "method.etf_dim = 9 needs method.classifier = etf"),
    ],
    ids=["etf_dim", "vectors", "original"],
)
def test_what_can_be_told_without_a_generator(source, options, shape, sentence):
    with pytest.raises(UserError) as error:
        check(shape, **options)
    assert str(error.value).startswith(sentence) and "\n" not in str(error.value)
    assert source.asked == []


def test_nothing_is_wrong_with_these(source):
    check()
    check(etf_dim=NUM_CLASSES - 1)
    check((36,), transfer="none")
    assert source.asked == []


@pytest.mark.parametrize(
    ("shape", "sentence"),
    [
        ((1, 9, 6), "the generator fake makes images of 8x8 pixels, but the clients' are 9x6; choose a larger"),
        ((2, 6, 6), "the generator fake makes images of 3 channels, the clients' have 2; choose another"),
    ],
    ids=["small", "channels"],
)
def test_a_generator_whose_images_are_of_no_use(shape, sentence):
    with pytest.raises(UserError) as error:
        make(input_shape=shape)
    assert str(error.value).startswith(sentence) and "\n" not in str(error.value)


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
    toy = Toy(
        fedktl,
        experiment,
        assembly.task_of(experiment, federation),
        assembly.contract_of(experiment),
        [assembly.make_client(experiment, federation, client) for client in range(4)],
        assembly.make_server(experiment, federation),
    )
    history = toy.play(5)
    accuracies = [sum(c["correct"] for c in clients) / sum(c["tested"] for c in clients) for clients in history]
    down, steps = toy.down, toy.steps
    assert down["images"].shape == (10, 1, 28, 28)
    assert accuracies[0] < 0.3 and accuracies[-1] > 0.5
    assert steps[-1].metrics["mmd"] < steps[0].metrics["mmd_first"]
    assert down["images"].min() >= -1 and down["images"].max() <= 1
