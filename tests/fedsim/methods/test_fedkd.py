"""FedKD: its loss by hand, whom it trains, factors that travel both ways, the growing threshold, the cost."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div, mse_loss

from fedsim import config
from fedsim.contract import Payload
from fedsim.costs.formula import formulae
from fedsim.errors import ContractError, UserError
from fedsim.families.auxiliary_model import new_auxiliary
from fedsim.learning.parameters import flatten
from fedsim.method import Setting, Task, Upload
from fedsim.methods import fedkd

FACTORISED = {"energy_start": 0.5, "energy_end": 0.9}
"""Low enough that the weights of a toy, which are hardly trained, travel as factors."""


def one_batch(client) -> tuple[torch.Tensor, torch.Tensor]:
    data = client.data.train
    return torch.from_numpy(data.dataset.inputs[data.indices[:6]]), torch.from_numpy(data.labels[:6])


def softmax(rows: np.ndarray) -> np.ndarray:
    return np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)


@pytest.mark.parametrize("weight", [0.0, 1.0, 2.5])
def test_loss_by_hand(toy, weight):
    client = toy("fedkd", num_samples={0: 6}, feature_weight=weight).clients[0]
    inputs, labels = one_batch(client)
    with torch.no_grad():
        features, hidden = (m.features(inputs).double().numpy() for m in (client.model, client.auxiliary))
        own, other = (softmax(m(inputs).double().numpy()) for m in (client.model, client.auxiliary))
    projected = hidden @ client.projection.weight.detach().double().numpy().T
    task = sum(-np.log(shares[np.arange(6), labels]).mean() for shares in (own, other))
    divergences = sum((t * np.log(t / s)).sum(axis=1).mean() for s, t in ((own, other), (other, own)))
    distance = np.square(features - projected).mean()
    expected = task + (divergences + 2 * weight * distance) / task
    assert client.train(0)["loss"] == pytest.approx(expected, rel=1e-5)


def losses_of_both(client, inputs, labels, *, detach: bool):
    """Both models' losses, each written down by itself."""
    features, hidden = client.model.features(inputs), client.projection(client.auxiliary.features(inputs))
    own, other = client.model(inputs), client.auxiliary(inputs)
    divisor = cross_entropy(own, labels) + cross_entropy(other, labels)

    def loss(logits, teacher, here, there):
        weight = divisor.detach() if detach else divisor
        if detach:
            teacher, there = teacher.detach(), there.detach()
        divergence = kl_div(logits.log_softmax(1), teacher.softmax(1), reduction="batchmean") / (
            1 if detach else 5
        )
        return cross_entropy(logits, labels) + divergence / weight + mse_loss(here, there) / weight

    return loss(own, other, features, hidden), loss(other, own, hidden, features)


@pytest.mark.parametrize("detach", [True, False])
def test_one_step_trains_the_models_and_the_projection(toy, detach):
    published = {"detach_teacher": False, "kl_mean": "element", "detach_divisor": False}
    client = toy("fedkd", num_samples={0: 6}, clip_norm=0, **({} if detach else published)).clients[0]
    twin = copy.copy(client)
    for name in ("model", "auxiliary", "projection"):
        setattr(twin, name, copy.deepcopy(getattr(client, name)))
    for loss in losses_of_both(twin, *one_batch(client), detach=detach):
        loss.backward(retain_graph=True)
    before = client.projection.weight.detach().clone()
    client.train(0)
    assert (client.projection.weight != before).any()
    for name in ("model", "auxiliary", "projection"):
        expected = [parameter - 0.1 * parameter.grad for parameter in getattr(twin, name).parameters()]
        np.testing.assert_allclose(flatten(getattr(client, name)), flatten(expected), atol=1e-6, err_msg=name)


def test_models_that_are_sure_do_not_divide_by_zero(toy):
    client = toy("fedkd", num_samples={3: 6}).clients[3]  # holds class 2 alone
    with torch.no_grad():
        for module in (client.model, client.auxiliary):
            module.head.bias[2] = 1000.0
    loss = client.train(0)["loss"]
    assert np.isfinite(loss)
    assert np.isfinite(client.upload()["factors"]).all()


def test_the_threshold_grows_from_round_to_round():
    options = fedkd.Config(energy_start=0.9, energy_end=0.98)
    assert [options.energy(round, 4) for round in (0, 2, 4)] == pytest.approx([0.9, 0.94, 0.98])
    assert fedkd.Config(energy_start=0.95, energy_end=0.95).energy(7, 10) == 0.95


def test_uploads_are_factors_that_keep_the_energy_of_their_round(toy):
    client = toy("fedkd", **FACTORISED).clients[0]
    num_numbers = []
    for round in (0, 7, 14):  # of 15
        client.train(round)
        arrays, vector = client.upload(), flatten(client.auxiliary)
        assert arrays["ranks"].max() > 0
        num_numbers.append(len(arrays["factors"]))
        decoded = client.codec.decode(arrays["factors"], arrays["ranks"])
        lost = np.square(decoded - vector).sum() / np.square(vector).sum()
        assert 0 < lost <= 1 - (0.5 + 0.4 * round / 15) + 1e-6
    assert num_numbers[0] < num_numbers[1] < num_numbers[2] < len(vector)


def test_the_server_averages_what_the_factors_stand_for_and_cuts_the_mean_again(toy):
    some = toy("fedkd", **FACTORISED)
    codec = some.clients[0].codec
    some.play(1)
    uploads = [client.upload() for client in some.clients]
    mean = np.mean([codec.decode(arrays["factors"], arrays["ranks"]) for arrays in uploads], axis=0)
    received = codec.decode(some.down["factors"], some.down["ranks"])
    assert some.down["ranks"].max() > 0
    # Weight by weight: matrices lose at most what the threshold allows, all else arrives to the bit.
    start = 0
    for shape in codec.shapes:
        stop = start + int(np.prod(shape))
        lost = np.square(received[start:stop] - mean[start:stop]).sum()
        assert lost <= (0.5 + 1e-6 if len(shape) > 1 else 1e-12) * np.square(mean[start:stop]).sum()
        start = stop
    some.clients[2].receive(1, some.down)
    np.testing.assert_array_equal(flatten(some.clients[2].auxiliary), received)


def test_metrics_say_how_much_smaller_the_messages_are(toy):
    some = toy("fedkd", **FACTORISED)
    some.play(2)
    size, metrics = len(flatten(some.clients[0].auxiliary)), some.steps[-1].metrics
    uploaded = [len(client.upload()["factors"]) for client in some.clients]
    assert metrics["energy_threshold"] == pytest.approx(0.5 + 0.4 / 15)
    assert metrics["uploaded_share"] == pytest.approx(sum(uploaded) / 4 / size)
    assert metrics["downloaded_share"] == pytest.approx(len(some.down["factors"]) / size)
    assert metrics["uploaded_share"] < 1


def test_ranks_that_lie_are_refused_by_name(toy):
    some = toy("fedkd", **FACTORISED)
    arrays = some.clients[1].upload()
    with pytest.raises(ContractError, match=r"client 1, round 3, up: field 'ranks' gives rank 99"):
        some.server.aggregate(3, [Upload(1, 24, arrays | {"ranks": np.full_like(arrays["ranks"], 99)})])
    with pytest.raises(ContractError, match=r"client 1, round 3, down: field 'factors' has"):
        some.clients[1].receive(3, arrays | {"factors": arrays["factors"][:-1]})


def test_the_projection_stays_with_its_client_and_in_its_memory(toy):
    some = toy("fedkd")
    start = some.clients[0].projection.weight.detach().clone()
    some.play(1)
    weights = [client.state()["projection.weight"] for client in some.clients]
    assert all((weight != start.numpy()).any() for weight in weights)
    assert len({weight.tobytes() for weight in weights}) == 4
    assert set(some.down) == {"factors", "ranks"}
    fields = some.contract.up
    assert {name: field.payload for name, field in fields.items()} == {
        "factors": Payload.PARAMETERS,
        "ranks": Payload.INDEX,
    }


def setting(shape: tuple[int, ...] = (3, 32, 32), **options) -> Setting:
    layers = {"run": {"clients": 20}, "model": {"group": "HtFE8"}, "method": {"name": "fedkd", **options}}
    experiment = config.build([layers])
    return Setting(experiment, experiment.method_config(), Task(20, 100, 512, shape), None)


def test_there_is_a_rank_for_each_matrix_of_the_auxiliary_model():
    assert fedkd.sizes(setting()) == {"matrices": 4}  # the 4-layer CNN
    assert fedkd.sizes(setting(auxiliary="MLP")) == {"matrices": 6}


@pytest.mark.parametrize("energy", [0.95, 0.3])
def test_the_cost_is_that_of_the_auxiliary_model_before_training(energy):
    some = setting((1, 8, 8), energy_start=energy, auxiliary="MLP")
    letters = some.dimensions | fedkd.rehearsal_sizes(some)
    contract = fedkd.contract(some.config)
    cost = formulae(contract)
    assert cost["up"].evaluate(letters) == cost["down"].evaluate(letters) == 20 * letters["f"]
    assert "weights" in contract.note
    # The same from numpy: each matrix at its rank, or as it is.
    expected = 0
    for weight in new_auxiliary(some).parameters():
        size = weight.numel()
        if weight.dim() > 1:
            matrix = weight.detach().reshape(len(weight), -1).double().numpy()
            kept = np.cumsum(np.linalg.svd(matrix, compute_uv=False) ** 2)
            size = min(size, (int((kept < energy * kept[-1]).sum()) + 1) * (sum(matrix.shape) + 1))
        expected += size
    assert letters["f"] == expected


@pytest.mark.parametrize("option", ["energy_start", "energy_end"])
@pytest.mark.parametrize("value", [0.0, -0.5, 1.01])
def test_thresholds_that_are_no_share_are_refused(option, value):
    with pytest.raises(UserError, match=rf"^method\.{option} = {value} is not valid: .*\.$"):
        config.build([{"method": {"name": "fedkd", option: value}}])


def test_a_threshold_that_would_fall_is_refused():
    with pytest.raises(
        UserError, match=r"^method\.energy_start = 0\.99 is above method\.energy_end = 0\.98, .*\.$"
    ):
        config.build([{"method": {"name": "fedkd", "energy_start": 0.99}}])
