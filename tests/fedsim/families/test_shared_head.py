"""What must hold for LG-FedAvg, FedGH and FedGen alike: a common head, its cost, who is refused, the same bits."""

import numpy as np
import pytest
import torch
from toys import assert_same

from fedsim import assembly, config, methods
from fedsim.contract import Payload
from fedsim.costs.formula import formulae
from fedsim.errors import UserError
from fedsim.learning.parameters import flatten
from fedsim.method import Setting, Task, Upload

METHODS = {
    "lg_fedavg": {},
    "fedgh": {"server_epochs": 2},
    "fedgen": {"server_steps": 5, "noise_dim": 3, "generator_lr": 0.01},
}


def setting(method: str, group: str, num_clients: int, **train) -> Setting:
    """CIFAR-100's sizes, without data."""
    experiment = config.build(
        [
            {"run": {"clients": num_clients}, "model": {"group": group, "feature_dim": 512}},
            {"train": train, "method": {"name": method}},
        ]
    )
    return Setting(experiment, experiment.method_config(), Task(num_clients, 100, 512, (3, 32, 32)), None)


def play(toy, num_rounds: int):
    """With the set-up, as every start and every resumption has it."""
    toy.setup()
    return toy.play(num_rounds)


# ------------------------------------------------------------------------------------------ cost and refusals


@pytest.mark.parametrize(
    ("method", "up", "down"),
    [
        ("lg_fedavg", 1_026_000, 1_026_000),
        ("fedgen", 1_026_000, 7_661_520),
        ("fedgh", 893 * 512, 1_026_000),
    ],
)
def test_cost_of_the_published_table(method, up, down):
    """CIFAR-100, 20 clients, HtFE8: FedTGP's table 5 prints the totals, FedKTL's both ways."""
    some, module = setting(method, "HtFE8", 20), methods.load(method)
    letters = some.dimensions | {"ΣC": 893}
    cost = formulae(module.contract(some.config))
    assert letters["head"] == 512 * 100 + 100
    assert cost["up"].evaluate(letters) == up
    assert cost["down"].evaluate(letters) == down


def test_totals_of_the_published_table():
    totals = {}
    for method in ("lg_fedavg", "fedgen"):
        some = setting(method, "HtFE8", 20)
        cost = formulae(methods.load(method).contract(some.config))
        totals[method] = sum(cost[way].evaluate(some.dimensions) for way in ("up", "down"))
    assert totals == {"lg_fedavg": 2_052_000, "fedgen": 8_687_520}


@pytest.mark.parametrize(
    ("method", "group", "names"),
    [
        ("lg_fedavg", "Res34-HtC4", "ResNet34 and ResNet34:512"),
        ("fedgh", "HtFE8-HtC4", "CNN and GoogLeNet:512"),
        ("fedgen", "HtM10", "CNN and ViT-B/16"),
        ("lg_fedavg", "CNN:768,ViT-B/16", "CNN:768 and ViT-B/16"),  # the same sizes, but ReLU and Tanh
    ],
)
def test_unequal_heads_are_refused_in_one_sentence(method, group, names):
    with pytest.raises(UserError) as error:
        methods.load(method).check(setting(method, group, 10))
    assert str(error.value) == (
        f"{method} shares one head among all clients, but in model.group = {group} the heads of {names} differ; "
        "choose a group with equal heads, such as HtFE8."
    )


@pytest.mark.parametrize("method", METHODS)
def test_equal_heads_of_several_layers_are_welcome(method):
    some = setting(method, "CNN:256,ResNet4:256", 4)
    methods.load(method).check(some)
    assert some.dimensions["head"] == 512 * 256 + 256 + 256 * 100 + 100


@pytest.mark.parametrize("method", METHODS)
def test_weights_travel_and_are_declared(toy, method):
    assert Payload.PARAMETERS in toy(method).contract.payloads()
    assert methods.load(method).ABOUT.needs == ("equal heads",)


# ------------------------------------------------------------------------------------------ the common head


@pytest.mark.parametrize("method", METHODS)
def test_everyone_starts_with_the_same_head_and_an_extractor_of_its_own(toy, method):
    some = toy(method, **METHODS[method])
    for client in some.clients:
        np.testing.assert_array_equal(flatten(client.model.head), flatten(some.server.head))
    assert not np.array_equal(*(flatten(client.model.extractor) for client in some.clients[:2]))


@pytest.mark.parametrize("method", METHODS)
def test_a_client_is_evaluated_with_the_head_it_received(toy, method):
    some = toy(method, **METHODS[method])
    play(some, 1)
    client = some.clients[0]
    extractor = flatten(client.model.extractor)
    client.receive(1, some.down)
    np.testing.assert_array_equal(flatten(client.model.extractor), extractor)
    weight_CK, bias_C = np.split(some.down["head"].astype(np.float64), [5 * 4])
    test = client.data.test
    with torch.no_grad():
        features = client.model.features(torch.from_numpy(test.dataset.inputs[test.indices])).double().numpy()
    predicted = (features @ weight_CK.reshape(5, 4).T + bias_C).argmax(axis=1)
    assert client.evaluate() == {"correct": (predicted == test.labels).sum(), "tested": len(test)}


@pytest.mark.parametrize("method", METHODS)
def test_rounds_learn(toy, method):
    some = toy(method, train={"lr": 0.3}, **METHODS[method])
    history = play(some, 15)
    assert sum(client["loss"] for client in history[-1]) < sum(client["loss"] for client in history[0])
    tested = sum(client["tested"] for client in history[-1])
    assert tested == sum(len(client.data.test) for client in some.clients)
    # Chance is about a quarter.
    assert sum(client["correct"] for client in history[-1]) / tested > 0.6


# ------------------------------------------------------------------------------------------ the same bits


@pytest.mark.parametrize("method", METHODS)
def test_two_runs_give_the_same_bits(toy, method):
    runs = [toy(method, dropout=0.2, **METHODS[method]) for _ in range(2)]
    assert play(runs[0], 3) == play(runs[1], 3)
    assert_same(*(run.states() for run in runs))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("with_setup", [True, False])
def test_state_restored_into_new_halves_continues_with_the_same_bits(toy, method, with_setup):
    whole, halted, resumed = (toy(method, dropout=0.2, **METHODS[method]) for _ in range(3))
    history = play(whole, 4)
    play(halted, 2)
    saved = resumed.take_over(halted)
    halted.play(1)  # going on with the old halves must not touch what was saved or restored
    assert_same(resumed.states(), saved)
    assert (play(resumed, 2) if with_setup else resumed.play(2)) == history[2:]
    assert_same(resumed.states(), whole.states())


@pytest.mark.parametrize("method", METHODS)
def test_what_went_down_is_not_altered_by_the_next_round(toy, method):
    some = toy(method, **METHODS[method])
    play(some, 1)
    first = some.down
    kept = {name: array.copy() for name, array in first.items()}
    some.play(1)
    for name in kept:
        np.testing.assert_array_equal(first[name], kept[name])
        assert name == "class_ids" or not np.array_equal(some.down[name], kept[name])


@pytest.mark.parametrize("method", METHODS)
def test_uploads_without_arrays_are_passed_over(toy, method):
    some = toy(method, **METHODS[method])
    before = flatten(some.server.head)
    step = some.server.aggregate(0, [Upload(client, 0, {}) for client in range(4)])
    np.testing.assert_array_equal(step.down["head"], before)
    assert all(np.isfinite(value) for value in step.metrics.values())


@pytest.mark.parametrize("method", METHODS)
def test_when_no_client_has_a_batch_nothing_breaks(toy, method):
    nobody = toy(method, num_samples=dict.fromkeys(range(4), 4), **METHODS[method])
    history = play(nobody, 2)
    assert all(client["loss"] is None for client in history[1])
    np.testing.assert_allclose(nobody.down["head"], flatten(toy(method).server.head), rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "option", "value"),
    [
        ("lg_fedavg", "aggregation", "median"),
        ("fedgh", "server_epochs", 0),
        ("fedgh", "server_lr", -1.0),
        ("fedgen", "noise_dim", 0),
        ("fedgen", "generator_lr", 0.0),
        ("fedgen", "aggregation", "none"),
    ],
)
def test_options_out_of_range_are_refused_in_one_sentence(toy, method, option, value):
    with pytest.raises(UserError, match=rf"method\.{option}") as error:
        toy(method, **{option: value})
    assert str(error.value).count("\n") == 0


def test_a_head_that_an_own_model_names_is_the_one_that_is_shared(tmp_path):
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, num_classes, input_shape, feature_dim):\n"
        "        super().__init__()\n"
        "        self.features = nn.Linear(input_shape[0], feature_dim)\n"
        "        self.head = nn.Sequential(nn.Tanh(), nn.Linear(feature_dim, num_classes, bias=False))\n"
    )
    experiment = config.build(
        [
            {"method": {"name": "lg_fedavg"}, "data": {"dataset": "spiral"}, "run": {"clients": 2}},
            {"model": {"group": f"{tmp_path}/nets.py:Net", "feature_dim": 4}},
        ]
    )
    federation = assembly.check(experiment)
    clients = [assembly.make_client(experiment, federation, client) for client in range(2)]
    server = assembly.make_server(experiment, federation)
    heads = [half.head if half is server else half.model.head for half in (*clients, server)]
    assert {str(head) for head in heads} == {str(heads[0])} and "Tanh" in str(heads[0])
    assert all(torch.equal(head[1].weight, heads[0][1].weight) for head in heads)
    assert clients[0].upload()["head"].shape == (4 * 6,)
