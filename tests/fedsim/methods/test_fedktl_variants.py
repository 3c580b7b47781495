"""FedKTL: every ablation, and noise."""

import numpy as np
import pytest
import torch
from ktl_toys import (
    FEATURE_DIM,
    NUM_CLASSES,
    SIDE,
    inputs_of,
    make,
)
from torch.nn.functional import cross_entropy, normalize
from toys import assert_same

from fedsim import contract
from fedsim.contract import Payload
from fedsim.equations.etf import arcface_loss, fit_images, to_bytes

pytestmark = pytest.mark.usefixtures("source")


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
