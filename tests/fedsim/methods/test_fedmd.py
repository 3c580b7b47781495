"""FedMD: the consensus, the digest by hand, the revisit, what travels."""

import copy

import numpy as np
import pytest
import torch
from toys import NUM_CLASSES

from fedsim.contract import Payload
from fedsim.learning.parameters import flatten
from fedsim.method import Upload
from fedsim.methods import fedmd

NUM_PUBLIC = 20


def test_the_consensus_is_the_mean_of_all_logits(toy):
    some = toy("fedmd")
    logits = np.random.default_rng(0).normal(size=(2, NUM_PUBLIC, NUM_CLASSES)).astype(np.float32)
    uploads = [Upload(0, 1, {"logits": logits[0]}), Upload(1, 50, {"logits": logits[1]}), Upload(2, 9, {})]
    step = some.server.aggregate(0, uploads)
    np.testing.assert_allclose(step.down["logits"], (logits[0] + logits[1]) / 2, rtol=1e-6)
    agree = np.mean([own.argmax(1) == (logits[0] + logits[1]).argmax(1) for own in logits])
    assert step.metrics["agreement"] == pytest.approx(agree)
    assert some.server.aggregate(0, [Upload(0, 1, {})]).down == {}


@pytest.mark.parametrize("loss", ["l1", "mse", "kl"])
def test_a_digest_moves_the_model_towards_the_consensus(toy, loss):
    client = toy("fedmd", digest_loss=loss, temperature=2.0, train={"batch_size": NUM_PUBLIC}).clients[0]
    consensus = np.random.default_rng(1).normal(size=(NUM_PUBLIC, NUM_CLASSES)).astype(np.float32)
    by_hand = copy.deepcopy(client.model)
    public = client.context.public
    inputs, target = torch.from_numpy(public.dataset.inputs[public.indices]), torch.from_numpy(consensus)
    logits = by_hand(inputs)
    if loss == "kl":
        teacher, student = (target / 2).softmax(1), (logits / 2).softmax(1)
        value = (teacher * (teacher / student).log()).sum() / NUM_PUBLIC * 4
    else:
        value = (logits - target).abs().mean() if loss == "l1" else ((logits - target) ** 2).mean()
    value.backward()
    with torch.no_grad():
        for weight in by_hand.parameters():
            weight -= 0.1 * weight.grad
    client.receive(1, {"logits": consensus})
    np.testing.assert_allclose(flatten(client.model), flatten(by_hand), atol=1e-6)


def test_a_round_is_digest_then_evaluation_then_revisit(toy):
    some = toy("fedmd")
    first = some.play(1)
    assert "trained_correct" not in first[0][0]
    client = some.clients[0]
    before = client.context.model
    told = client.evaluate()
    second = some.play(1)[0][0]
    assert second["trained_correct"] == told["correct"], "as its own training had left it"
    assert client.upload()["logits"].shape == (NUM_PUBLIC, NUM_CLASSES)
    assert before is client.model


def test_logits_travel_and_public_samples_only_if_sent(toy):
    assert fedmd.contract(fedmd.Config()).payloads() == {Payload.LOGITS}
    assert fedmd.contract(fedmd.Config(public_data="sent")).payloads() == {Payload.LOGITS, Payload.SAMPLES}
    known, sent = toy("fedmd"), toy("fedmd", public_data="sent")
    sent.setup()
    assert known.play(2) == sent.play(2)


def test_state_restored_into_new_halves_continues_with_the_same_bits(toy):
    whole, halted, resumed = (toy("fedmd", dropout=0.2) for _ in range(3))
    history = whole.play(3)
    halted.play(1)
    resumed.take_over(halted)
    assert resumed.play(2) == history[1:]
