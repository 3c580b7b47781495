"""What must hold for local, FedProto, FedTGP, ProtoNorm and FedDistill alike."""

import numpy as np
import pytest
from toys import assert_same

from fedsim.contract import Payload
from fedsim.errors import UserError
from fedsim.method import Upload

METHODS = {
    "local": {},
    "fedproto": {"aggregation": "weighted", "report_margins": True},
    "fedtgp": {"server_epochs": 3, "evaluate_by": "local_prototype"},
    "protonorm": {"prototype_scale": 2.0},
    "feddistill": {},
}


@pytest.mark.parametrize("method", METHODS)
def test_two_runs_give_the_same_bits(toy, method):
    runs = [toy(method, dropout=0.2, **METHODS[method]) for _ in range(2)]
    histories = [run.play(3) for run in runs]
    assert histories[0] == histories[1]
    assert_same(*(run.states() for run in runs))


@pytest.mark.parametrize("method", METHODS)
def test_state_restored_into_new_halves_continues_with_the_same_bits(toy, method):
    options = METHODS[method]
    whole, halted, resumed = (toy(method, dropout=0.2, **options) for _ in range(3))
    history = whole.play(4)
    halted.play(2)
    saved = resumed.take_over(halted)
    halted.play(1)  # going on with the old halves must not touch what was saved or restored
    assert_same(resumed.states(), saved)
    assert resumed.play(2) == history[2:]
    assert_same(resumed.states(), whole.states())


@pytest.mark.parametrize("method", METHODS)
def test_a_restored_client_evaluates_as_before_even_without_a_new_message(toy, method):
    played, fresh = (toy(method, **METHODS[method]) for _ in range(2))
    played.play(2)
    for before, after in zip(played.clients, fresh.clients, strict=True):
        after.load_state(before.state())
        assert after.evaluate() == before.evaluate()


@pytest.mark.parametrize("method", METHODS)
def test_a_client_with_fewer_samples_than_a_batch_does_nothing_and_sends_no_rows(toy, method):
    small = toy(method, num_samples={1: 5}, **METHODS[method])
    before = small.clients[1].model.state_dict()["head.weight"].clone()
    history = small.play(2)
    assert history[0][1]["loss"] is None
    np.testing.assert_array_equal(small.clients[1].model.state_dict()["head.weight"], before)
    arrays = small.clients[1].upload()
    assert all(len(array) == 0 for array in arrays.values())


@pytest.mark.parametrize("method", METHODS)
def test_when_no_client_has_a_batch_nothing_breaks(toy, method):
    nobody = toy(method, num_samples=dict.fromkeys(range(4), 4), **METHODS[method])
    nobody.play(2)
    for array in nobody.down.values():
        assert np.isfinite(array).all()
    assert all(np.isfinite(value) for value in nobody.steps[-1].metrics.values())


@pytest.mark.parametrize("method", METHODS)
def test_uploads_without_arrays_are_passed_over(toy, method):
    some = toy(method, **METHODS[method])
    step = some.server.aggregate(0, [Upload(client, 0, {}) for client in range(4)])
    assert all(np.isfinite(value) for value in step.metrics.values())


@pytest.mark.parametrize("method", METHODS)
def test_no_method_here_sends_weights(toy, method):
    assert Payload.PARAMETERS not in toy(method).contract.payloads()


@pytest.mark.parametrize("method", METHODS)
def test_training_lowers_the_loss_and_learns(toy, method):
    some = toy(method, train={"lr": 0.3})
    history = some.play(12)
    first, last = ([client["loss"] for client in history[round]] for round in (1, -1))
    assert sum(last) < sum(first)  # from the second round on, when the methods' own terms are in the loss
    tested = sum(client["tested"] for client in history[-1])
    correct = sum(client["correct"] for client in history[-1])
    assert tested == sum(len(client.data.test) for client in some.clients)
    # Chance is about a quarter. FedProto, whose prototypes shrink together, is the hardest to please.
    assert correct / tested > 0.6


@pytest.mark.parametrize("method", ["fedproto", "fedtgp", "protonorm"])
def test_nothing_is_tested_before_there_are_prototypes(toy, method):
    some = toy(method)
    found = [client.evaluate() for client in some.clients]
    assert [(counts["correct"], counts["tested"]) for counts in found] == [(0, 0)] * 4
    some.play(1)
    some.clients[0].receive(1, some.down)
    assert some.clients[0].evaluate()["tested"] == len(some.clients[0].data.test)


@pytest.mark.parametrize(
    ("method", "option", "value"),
    [
        ("fedtgp", "tau", 0),
        ("fedtgp", "server_epochs", 0),
        ("fedtgp", "margin", "huge"),
        ("fedproto", "prototype_weight", -1),
        ("fedproto", "prototype_weight", "heavy"),
        ("fedproto", "aggregation", "median"),
        ("protonorm", "momentum", 1.0),
        ("protonorm", "prototype_scale", 0.0),
        ("feddistill", "logit_weight", -0.5),
        ("local", "anything", 1),
    ],
)
def test_options_out_of_range_are_refused_in_one_sentence(toy, method, option, value):
    with pytest.raises(UserError, match=rf"method\.{option}") as error:
        toy(method, **{option: value})
    assert str(error.value).count("\n") == 0
