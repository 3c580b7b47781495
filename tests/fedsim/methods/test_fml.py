"""FML: one step of both models by hand, what travels, what it costs."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedsim import config
from fedsim.contract import Payload
from fedsim.costs.formula import formulae
from fedsim.errors import UserError
from fedsim.learning.parameters import flatten, load_flat
from fedsim.method import Setting, Task, Upload
from fedsim.methods import fml


def one_batch(client) -> tuple[torch.Tensor, torch.Tensor]:
    data = client.data.train
    return torch.from_numpy(data.dataset.inputs[data.indices[:6]]), torch.from_numpy(data.labels[:6])


def kl(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """KL(teacher ‖ student), by torch's own function, averaged over samples."""
    return nn.KLDivLoss(reduction="batchmean")(student.log_softmax(1), teacher.softmax(1))


def step(module: nn.Module, lr: float) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= lr * parameter.grad


def test_one_step_trains_each_model_with_its_own_loss(toy):
    client = toy(
        "fml", num_samples={0: 6}, task_weight=0.3, auxiliary_task_weight=0.8, auxiliary_lr=0.02, clip_norm=0
    ).clients[0]
    own, auxiliary = copy.deepcopy(client.model), copy.deepcopy(client.auxiliary)
    inputs, labels = one_batch(client)
    logits, auxiliary_logits = own(inputs), auxiliary(inputs)
    own_loss = 0.3 * cross_entropy(logits, labels) + 0.7 * kl(logits, auxiliary_logits.detach())
    auxiliary_loss = 0.8 * cross_entropy(auxiliary_logits, labels) + 0.2 * kl(auxiliary_logits, logits.detach())
    own_loss.backward()
    auxiliary_loss.backward()
    step(own, 0.1)
    step(auxiliary, 0.02)
    assert client.train(0)["loss"] == pytest.approx((own_loss + auxiliary_loss).item(), rel=1e-5)
    np.testing.assert_allclose(flatten(client.model), flatten(own), atol=1e-6)
    np.testing.assert_allclose(flatten(client.auxiliary), flatten(auxiliary), atol=1e-6)


def test_the_published_step_trains_both_models_with_both_losses_and_clips_each(toy):
    options = {"detach_teacher": False, "kl_mean": "element", "clip_norm": 0.05}
    client = toy("fml", num_samples={0: 6}, **options).clients[0]
    own, auxiliary = copy.deepcopy(client.model), copy.deepcopy(client.auxiliary)
    inputs, labels = one_batch(client)
    logits, auxiliary_logits = own(inputs), auxiliary(inputs)
    for student, teacher in ((logits, auxiliary_logits), (auxiliary_logits, logits)):
        loss = 0.5 * cross_entropy(student, labels) + 0.5 * kl(student, teacher) / 5  # of 5 classes
        loss.backward(retain_graph=True)
    for module in (own, auxiliary):
        norm = float(torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()]).norm())
        assert norm > 0.05
        step(module, 0.1 * 0.05 / norm)
    client.train(0)
    np.testing.assert_allclose(flatten(client.model), flatten(own), atol=1e-6)
    np.testing.assert_allclose(flatten(client.auxiliary), flatten(auxiliary), atol=1e-6)


def test_without_distillation_the_own_model_learns_as_if_alone(toy):
    client = toy("fml", task_weight=1.0, clip_norm=0).clients[0]
    alone = toy("local").clients[0]
    client.train(0)
    alone.train(0)
    np.testing.assert_allclose(flatten(client.model), flatten(alone.model), atol=1e-6)


def test_a_round_sends_trained_auxiliary_models_and_brings_back_their_mean(toy):
    some = toy("fml")
    some.play(1)
    uploaded = [client.upload()["auxiliary"] for client in some.clients]
    assert len({array.tobytes() for array in uploaded}) == 4
    np.testing.assert_allclose(some.down["auxiliary"], np.mean(uploaded, axis=0), atol=1e-7)
    for client in some.clients:
        own = flatten(client.model)
        client.receive(1, some.down)
        np.testing.assert_array_equal(flatten(client.auxiliary), some.down["auxiliary"])  # its own copy is gone
        np.testing.assert_array_equal(flatten(client.model), own)


def test_the_mean_counts_clients_alike_unless_asked_for_samples(toy):
    size = len(flatten(toy("fml").clients[0].auxiliary))
    uploads = [Upload(i, n, {"auxiliary": np.full(size, v, np.float32)}) for i, n, v in ((0, 30, 1), (2, 10, 5))]
    assert set(toy("fml").server.aggregate(0, uploads).down["auxiliary"]) == {3.0}
    assert set(toy("fml", aggregation="weighted").server.aggregate(0, uploads).down["auxiliary"]) == {2.0}


def test_the_own_model_is_what_is_evaluated(toy):
    client = toy("fml").clients[0]
    before = client.evaluate()
    load_flat(client.auxiliary, np.zeros_like(flatten(client.auxiliary)))
    assert client.evaluate() == before
    assert before["tested"] == len(client.data.test)


def test_only_the_auxiliary_model_travels_and_costs_what_the_papers_print():
    experiment = config.build([{"run": {"clients": 20}, "model": {"group": "HtFE8"}, "method": {"name": "fml"}}])
    setting = Setting(experiment, experiment.method_config(), Task(20, 100, 512, (3, 32, 32)), None)
    assert fml.sizes(setting) == {"aux": 924_708}
    cost = formulae(fml.contract(setting.config))
    up, down = (cost[way].evaluate(setting.dimensions) for way in ("up", "down"))
    assert up == down == 18_494_160
    assert up + down == 36_988_320  # 36.99 M in table 5 of FedTGP
    assert fml.contract(setting.config).payloads() == {Payload.PARAMETERS}


@pytest.mark.parametrize(("option", "value"), [("task_weight", 1.5), ("auxiliary_task_weight", -0.1)])
def test_shares_outside_0_to_1_are_refused(option, value):
    with pytest.raises(UserError, match=rf"method\.{option} = {value} is not valid"):
        config.build([{"method": {"name": "fml", option: value}}])
