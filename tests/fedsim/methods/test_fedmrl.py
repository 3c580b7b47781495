"""FedMRL: one step of all three networks by hand, what is tested, what travels, the published departures."""

import copy

import numpy as np
import pytest
import torch
from toys import FEATURE_DIM

from fedsim import config
from fedsim.contract import Payload
from fedsim.errors import UserError
from fedsim.learning.parameters import flatten
from fedsim.method import Setting, Task, Upload
from fedsim.methods import fedmrl

SMALL = {"common_dim": 2}


def one_batch(client):
    data = client.data.train
    return torch.from_numpy(data.dataset.inputs[data.indices[:6]]), torch.from_numpy(data.labels[:6])


def by_hand(weights, own_features, common_features, labels, common_dim):
    """Both cross-entropies, from the weights of projection and heads alone."""
    joined = (
        torch.hstack((common_features, own_features)) @ weights["projection.weight"].T + weights["projection.bias"]
    )
    own = joined @ weights["head.weight"].T + weights["head.bias"]
    common = joined[:, :common_dim] @ weights["common_head.weight"].T + weights["common_head.bias"]
    log_probabilities = [logits - logits.exp().sum(dim=1, keepdim=True).log() for logits in (own, common)]
    return own, -sum(own.gather(1, labels[:, None]).mean() for own in log_probabilities)


def weights_of(client):
    parts = {"projection": client.projection, "head": client.model.head, "common_head": client.common.head}
    return {
        f"{part}.{name}": weight for part, module in parts.items() for name, weight in module.named_parameters()
    }


def test_one_step_is_that_of_the_sum_of_both_cross_entropies(toy):
    client = toy("fedmrl", num_samples={0: 6}, clip_norm=0, **SMALL).clients[0]
    before = copy.deepcopy(client)
    inputs, labels = one_batch(before)
    weights = weights_of(before)
    features = before.model.features(inputs), before.common.features(inputs)
    _, loss = by_hand(weights, *features, labels, 2)
    loss.backward()
    assert client.train(0)["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for name, module in client.modules().items():
        for old, new in zip(before.modules()[name].parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(new, old - 0.1 * old.grad, atol=1e-6, rtol=1e-5)


def test_prediction_is_the_own_head_with_the_common_model_that_came_down(toy):
    some = toy("fedmrl", **SMALL)
    some.play(2)
    client = some.clients[0]
    client.receive(2, some.down)
    np.testing.assert_array_equal(flatten(client.common), some.down["common"])
    data = client.data.test
    inputs = torch.from_numpy(data.dataset.inputs[data.indices])
    with torch.no_grad():
        for module in client.modules().values():
            module.eval()
        features = client.model.features(inputs), client.common.features(inputs)
        logits, _ = by_hand(weights_of(client), *features, torch.from_numpy(data.labels), 2)
    expected = int((logits.argmax(dim=1).numpy() == data.labels).sum())
    assert client.evaluate() == {"correct": expected, "tested": len(data)}


def test_the_mean_is_weighted_by_samples_unless_asked_otherwise(toy):
    size = len(flatten(toy("fedmrl", **SMALL).clients[0].common))
    uploads = [Upload(i, n, {"common": np.full(size, v, np.float32)}) for i, n, v in ((0, 30, 1), (2, 10, 5))]
    assert set(toy("fedmrl", **SMALL).server.aggregate(0, uploads).down["common"]) == {2.0}
    assert set(toy("fedmrl", aggregation="mean", **SMALL).server.aggregate(0, uploads).down["common"]) == {3.0}
    assert toy("fedmrl", **SMALL).server.aggregate(0, [Upload(0, 3, {})]).down == {}


def test_the_projection_stays_with_its_client_unless_it_is_to_be_forgotten(toy):
    for forget in (False, True):
        client = toy("fedmrl", forget_projection=forget, **SMALL).clients[0]
        first = flatten(client.projection)
        client.train(0)
        assert np.array_equal(flatten(client.projection), first) == forget


def test_state_restored_into_new_halves_continues_with_the_same_bits(toy):
    whole, halted, resumed = (toy("fedmrl", dropout=0.2, **SMALL) for _ in range(3))
    history = whole.play(4)
    halted.play(2)
    resumed.take_over(halted)
    assert resumed.play(2) == history[2:]


def test_only_the_common_model_travels():
    options = {"name": "fedmrl"}
    experiment = config.build([{"run": {"clients": 20}, "model": {"group": "HtFE8"}, "method": options}])
    setting = Setting(experiment, experiment.method_config(), Task(20, 100, 512, (3, 32, 32)), None)
    # The 4-layer CNN on 3x32x32: two convolutions, 1600 to 512 units, pooled to 128, 128 to 100 classes.
    convolutions = 3 * 32 * 25 + 32 + 32 * 64 * 25 + 64
    assert fedmrl.sizes(setting) == {"common": convolutions + 1600 * 512 + 512 + 128 * 100 + 100}
    assert fedmrl.contract(setting.config).payloads() == {Payload.PARAMETERS}


def test_more_common_features_than_features_are_refused(toy):
    experiment = config.build(
        [{"model": {"feature_dim": FEATURE_DIM}, "method": {"name": "fedmrl", "common_dim": 128}}]
    )
    setting = Setting(experiment, experiment.method_config(), Task(2, 3, FEATURE_DIM, (1, 28, 28)), None)
    with pytest.raises(UserError, match=r"method.common_dim = 128 is more than the 4 features .*; lower it"):
        fedmrl.check(setting)
