"""FedUV: both regularisers against numpy, batches that have none of them, what travels."""

import itertools

import numpy as np
import pytest
import torch

from fedsim import assembly, config
from fedsim.errors import UserError
from fedsim.methods.feduv import uniformity_loss, variance_loss

DRAW = np.random.default_rng(3)
LOGITS = DRAW.normal(size=(7, 5)) * 2
FEATURES = DRAW.normal(size=(6, 4))


def softmax(rows: np.ndarray) -> np.ndarray:
    return np.exp(rows) / np.exp(rows).sum(axis=-1, keepdims=True)


def numpy_variance(logits: np.ndarray) -> float:
    return float(np.maximum(0, 1 / np.sqrt(logits.shape[1]) - softmax(logits).std(axis=0, ddof=1)).mean())


def numpy_uniformity(features: np.ndarray) -> float:
    squares = np.array([((a - b) ** 2).sum() for a, b in itertools.combinations(features, 2)])
    apart = np.sort(squares[squares != 0])
    return float(np.exp(-squares / apart[(len(apart) - 1) // 2]).mean())  # the lower median, as torch has it


def test_variance_by_hand():
    assert variance_loss(torch.from_numpy(LOGITS)).item() == pytest.approx(numpy_variance(LOGITS))
    # Every class once and surely: the columns are those of an identity, and nothing is missing.
    assert variance_loss(100 * torch.eye(5)).item() == pytest.approx(0, abs=1e-6)
    # Always the same answer: no column varies, and 1/√C is missing in each.
    assert variance_loss(torch.tensor([[1.0, 0, 0, 2]] * 3)).item() == pytest.approx(0.5)


def test_uniformity_by_hand():
    assert uniformity_loss(torch.from_numpy(FEATURES)).item() == pytest.approx(numpy_uniformity(FEATURES))
    # Squares 1, 4 and 9 of three points on a line: the median is 4.
    line = torch.tensor([[0.0], [1.0], [3.0]])
    assert uniformity_loss(line).item() == pytest.approx(np.exp([-1 / 4, -4 / 4, -9 / 4]).mean())


def test_coinciding_features_count_as_pairs_but_not_in_the_median():
    repeated = np.concatenate([FEATURES, FEATURES[:2]])
    features = torch.from_numpy(repeated).requires_grad_()
    loss = uniformity_loss(features)
    assert loss.item() == pytest.approx(numpy_uniformity(repeated))
    loss.backward()
    assert torch.isfinite(features.grad).all()


def test_uniformity_does_not_change_when_all_features_grow():
    """The gradient has no part along the features themselves, because it goes through the median too."""
    features = torch.from_numpy(FEATURES).requires_grad_()
    uniformity_loss(features).backward()
    assert (features.grad * features).sum().item() == pytest.approx(0, abs=1e-12)
    assert features.grad.abs().max() > 1e-3


@pytest.mark.parametrize("rows", [np.ones((1, 4)), np.zeros((3, 4))])
def test_batches_without_spread_have_no_uniformity_and_finite_gradients(rows):
    values = torch.from_numpy(rows).requires_grad_()
    uniformity, variance = uniformity_loss(values), variance_loss(values)
    assert uniformity.item() == 0
    assert variance.item() == pytest.approx(0 if len(rows) == 1 else 0.5)
    (uniformity + variance + 0 * values.sum()).backward()
    assert torch.isfinite(values.grad).all()


@pytest.mark.parametrize(("variance_weight", "uniformity_weight"), [(2.5, 0.5), (0.0, 3.0), (1.0, 0.0)])
def test_the_loss_is_cross_entropy_plus_both_terms(toy, variance_weight, uniformity_weight):
    options = {"variance_weight": variance_weight, "uniformity_weight": uniformity_weight}
    client = toy("feduv", num_samples={0: 6}, **options).clients[0]
    data = client.data.train
    with torch.no_grad():
        features = client.model.features(torch.from_numpy(data.dataset.inputs[data.indices]))
        logits, features = client.model.head(features).double().numpy(), features.double().numpy()
    plain = -np.log(softmax(logits)[np.arange(6), data.labels]).mean()
    extra = variance_weight * numpy_variance(logits) + uniformity_weight * numpy_uniformity(features)
    assert client.train(0)["loss"] == pytest.approx(plain + extra, rel=1e-5)


def test_batches_of_one_train_with_cross_entropy_alone(toy):
    train = {"batch_size": 1}
    regularised, plain = toy("feduv", train=train).clients[0], toy("fedavg", train=train).clients[0]
    assert regularised.train(0)["loss"] == pytest.approx(plain.train(0)["loss"])
    np.testing.assert_allclose(regularised.upload()["model"], plain.upload()["model"], rtol=1e-6)


def test_without_both_terms_it_is_fedavg(toy):
    bare, average = toy("feduv", variance_weight=0.0, uniformity_weight=0.0), toy("fedavg")
    bare.play(2)
    average.play(2)
    np.testing.assert_allclose(bare.down["model"], average.down["model"], rtol=1e-6)


def test_published_defaults_and_their_range(toy):
    options = toy("feduv").experiment.method
    assert (options["variance_weight"], options["uniformity_weight"], options["buffers"]) == (2.5, 0.5, "averaged")
    assert options["aggregation"] == "weighted"
    for name in ("variance_weight", "uniformity_weight"):
        with pytest.raises(UserError, match=rf"method\.{name}"):
            toy("feduv", **{name: -1})


def test_running_statistics_travel_unless_they_are_to_stay():
    sizes = []
    for buffers in ("averaged", "local"):
        made = config.build(
            [
                {
                    "model": {"group": "ResNet4"},
                    "method": {"name": "feduv", "buffers": buffers},
                }
            ]
        )
        sizes.append(assembly.setting_of(made, assembly.check(made)).dimensions["model"])
    # ResNet4 normalises 64 channels after the stem and after both convolutions of its one block.
    assert sizes[0] - sizes[1] == 3 * 64 * 2
