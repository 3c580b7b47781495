"""FedAvg, and what holds for all methods that share whole models: averaging, both evaluations, state, refusals."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedsim import assembly, config, methods
from fedsim.contract import Payload
from fedsim.costs.formula import formulae, letters_of
from fedsim.errors import UserError
from fedsim.families.whole_model import SharingConfig, learning_rate, shared_tensors, statistics
from fedsim.method import Upload
from fedsim.models import SplitModel
from fedsim.models.base import Backbone

METHODS = {
    "fedavg": {},
    "fedprox": {"proximal_weight": 0.5},
    "feduv": {},
    "fednh": {"scale": 10.0},
}
EVALUATIONS = ["global", "personalised"]


@pytest.fixture
def wide_toy(toy, monkeypatch):
    """The toy federation with more features than classes, which FedNH needs."""
    monkeypatch.setitem(toy.__globals__, "FEATURE_DIM", 6)
    return toy


def experiment(method: str, /, *, group: str = "MLP", dataset: str = "spiral", **sections) -> config.Experiment:
    few = {"samples_per_class": 40} if dataset == "spiral" else {}
    return config.build(
        [
            {
                "run": {"clients": 3},
                "data": {"dataset": dataset, **few},
                "model": {"group": group, "feature_dim": 8 if group == "MLP" else 512},
                "method": {"name": method},
            },
            sections,
        ]
    )


def setting_of(*args, **sections):
    made = experiment(*args, **sections)
    return assembly.setting_of(made, assembly.check(made))


def with_batch_norm(seed: int, *, dropout: float = 0.0) -> SplitModel:
    """A toy model whose features are normalised."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(dropout))
        return SplitModel("toy", Backbone(body, 4), nn.Identity(), nn.Linear(4, 5), 4)


def uploads_of(vectors: list[list[float]], sizes: list[int]) -> list[Upload]:
    return [
        Upload(client, size, {"model": np.array(vector, np.float32)})
        for client, (vector, size) in enumerate(zip(vectors, sizes, strict=True))
    ]


def test_models_are_averaged_by_numbers_of_samples_or_alike(toy):
    uploads = uploads_of([[1, 0, -4], [3, 8, 0]], [30, 10])
    assert toy("fedavg").server.aggregate(0, uploads).down["model"].tolist() == [1.5, 2, -3]
    assert toy("fedavg", aggregation="mean").server.aggregate(0, uploads).down["model"].tolist() == [2, 4, -2]


def test_only_clients_that_sent_a_model_count(toy):
    server = toy("fedavg").server
    uploads = [Upload(0, 1000, {}), *uploads_of([[1, 3], [3, 5]], [1, 1])]
    assert server.aggregate(0, uploads).down["model"].tolist() == [2, 4]
    assert server.aggregate(0, [Upload(client, 5, {}) for client in range(4)]).down == {}


def test_one_round_is_the_weighted_mean_of_separately_trained_copies(toy):
    some, twins = toy("fedavg"), [client.model for client in toy("fedavg").clients]
    some.play(1)
    total = np.zeros(6 * 4 + 4 + 4 * 5 + 5)
    for client, twin in zip(some.clients, twins, strict=True):
        data, optimizer = client.data.train, torch.optim.SGD(twin.parameters(), lr=0.1)
        for start in range(0, len(data) - 5, 6):
            rows = data.indices[start : start + 6]
            logits = twin(torch.from_numpy(data.dataset.inputs[rows]))
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, torch.from_numpy(data.dataset.labels[rows])).backward()
            optimizer.step()
        total += len(data) * np.concatenate([p.detach().numpy().ravel() for p in twin.parameters()])
    np.testing.assert_allclose(some.down["model"], total / (36 + 24 + 33 + 12), rtol=1e-5, atol=1e-7)


def test_global_evaluation_tests_the_model_that_came_down(toy):
    some = toy("fedavg")
    some.play(2)
    for client in some.clients:
        client.receive(2, some.down)
        np.testing.assert_array_equal(client.upload()["model"], some.down["model"])
        weight, bias, head, head_bias = np.split(some.down["model"].astype(np.float64), [24, 28, 48])
        data = client.data.test
        features = np.tanh(data.dataset.inputs[data.indices] @ weight.reshape(4, 6).T + bias)
        guesses = (features @ head.reshape(5, 4).T + head_bias).argmax(axis=1)
        assert client.evaluate() == {"correct": (guesses == data.labels).sum(), "tested": len(data)}


@pytest.mark.parametrize("method", METHODS)
def test_personalised_evaluation_tests_the_own_copy_and_changes_no_training(wide_toy, method):
    kept, replaced = (
        wide_toy(method, evaluation=evaluation, **METHODS[method]) for evaluation in ("personalised", "global")
    )
    histories = kept.play(3), replaced.play(3)
    for name in kept.down:
        np.testing.assert_array_equal(kept.down[name], replaced.down[name])
    losses = [[[client["loss"] for client in clients] for clients in history] for history in histories]
    assert losses[0] == losses[1]
    for client in kept.clients:
        own = client.upload()["model"]
        before = client.evaluate()
        client.receive(3, kept.down)
        np.testing.assert_array_equal(client.upload()["model"], own)
        assert client.evaluate() == before
        assert (own != kept.down["model"]).any()


def test_a_client_that_never_trained_is_tested_with_the_global_model(toy):
    some = toy("fedavg", evaluation="personalised")
    some.play(1)
    newcomer = toy("fedavg", evaluation="personalised").clients[0]
    newcomer.receive(1, some.down)
    np.testing.assert_array_equal(newcomer.upload()["model"], some.down["model"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_state_restored_into_new_halves_continues_with_the_same_bits(wide_toy, method, evaluation):
    options = METHODS[method] | {"evaluation": evaluation, "lr_schedule": "cosine"}
    whole, halted, resumed = (wide_toy(method, dropout=0.2, **options) for _ in range(3))
    history = whole.play(4)
    halted.play(2)
    for client in halted.clients[:2]:  # a client can also be saved when it has received but not trained
        client.receive(2, halted.down)
    saved = resumed.take_over(halted)
    for before, after in zip(halted.clients, resumed.clients, strict=True):
        assert after.evaluate() == before.evaluate()
    # Those who had received need not be told again.
    for client in resumed.clients[:2]:
        assert client.train(2)["loss"] == history[2][resumed.clients.index(client)]["loss"]
    for client, state in zip(resumed.clients, saved, strict=False):
        client.load_state(state)
    assert resumed.play(2) == history[2:]
    for name in whole.down:
        np.testing.assert_array_equal(resumed.down[name], whole.down[name])
    for one, other in zip((*resumed.clients, resumed.server), (*whole.clients, whole.server), strict=True):
        assert one.state().keys() == other.state().keys()
        for name, array in other.state().items():
            np.testing.assert_array_equal(one.state()[name], array, err_msg=name)


@pytest.mark.parametrize("method", METHODS)
def test_rounds_lower_the_loss_and_learn(wide_toy, method):
    some = wide_toy(method, train={"lr": 0.3}, **METHODS[method])
    history = some.play(12)
    first, last = ([client["loss"] for client in history[round]] for round in (0, -1))
    assert sum(last) < sum(first)
    correct, tested = (sum(client[name] for client in history[-1]) for name in ("correct", "tested"))
    assert tested == sum(len(client.data.test) for client in some.clients)
    assert correct / tested > 0.6


@pytest.mark.parametrize("method", METHODS)
def test_clients_without_a_whole_batch_send_back_what_they_got(wide_toy, method):
    some = wide_toy(method, num_samples=dict.fromkeys(range(4), 4), **METHODS[method])
    some.play(1)
    received = some.down
    some.play(1)
    for name in received:
        np.testing.assert_allclose(some.down[name], received[name], rtol=1e-6)
    assert all(np.isfinite(array).all() for array in some.down.values())


def test_learning_rates_by_hand():
    rates = [
        [learning_rate(0.1, SharingConfig(lr_schedule=kind, lr_decay=0.5), round, 4) for round in range(4)]
        for kind in ("constant", "cosine", "diminishing")
    ]
    assert rates[0] == [0.1] * 4
    assert rates[1] == pytest.approx([0.1, 0.05 * (1 + math.sqrt(0.5)), 0.05, 0.05 * (1 - math.sqrt(0.5))])
    assert rates[2] == pytest.approx([0.1, 0.05, 0.025, 0.0125])


def test_clients_train_with_the_rate_of_the_round(toy):
    scheduled = toy("fedavg", lr_schedule="diminishing", lr_decay=0.5).clients[0]
    plain = toy("fedavg", train={"lr": 0.025}).clients[0]
    scheduled.train(2)
    plain.train(2)
    np.testing.assert_array_equal(scheduled.upload()["model"], plain.upload()["model"])


def test_gradients_are_clipped_at_the_norm_asked_for(toy):
    client = toy("fedavg", num_samples={0: 6}, clip_norm=0.01).clients[0]
    before = client.upload()["model"]
    client.train(0)
    assert np.linalg.norm(client.upload()["model"] - before) == pytest.approx(0.1 * 0.01, rel=1e-3)


def test_running_statistics_stay_or_are_averaged(toy, monkeypatch):
    monkeypatch.setitem(toy.__globals__, "toy_model", with_batch_norm)
    for buffers in ("local", "averaged"):
        some = toy("fedavg", buffers=buffers)
        some.play(1)
        before = np.stack([client.state()["model.extractor.0.1.running_var"] for client in some.clients])
        for client in some.clients:
            client.receive(1, some.down)
        after = np.stack([client.state()["model.extractor.0.1.running_var"] for client in some.clients])
        mean = np.average(before, axis=0, weights=[36, 24, 33, 12])
        np.testing.assert_allclose(after, before if buffers == "local" else np.tile(mean, (4, 1)), rtol=1e-6)
        batches = [int(client.state()["model.extractor.0.1.num_batches_tracked"]) for client in some.clients]
        assert batches == [6, 4, 5, 2]  # a counter is nothing to average


def test_what_travels_is_parameters_in_one_vector(toy):
    made = toy("fedavg")
    assert made.contract.payloads() == {Payload.PARAMETERS}
    assert made.clients[0].upload()["model"].shape == (6 * 4 + 4 + 4 * 5 + 5,)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "feduv"])
def test_sizes_and_cost_of_the_4_layer_cnn(method):
    setting = setting_of(method, dataset="digits", group="CNN")
    assert setting.dimensions["model"] == 582_026  # as FedTGP's paper has it
    cost = formulae(methods.load(method).contract(setting.config))
    assert cost["up"].evaluate(letters_of(setting)) == 3 * 582_026
    assert cost["down"].evaluate(letters_of(setting)) == 3 * 582_026


@pytest.mark.parametrize("buffers", ["local", "averaged"])
def test_sizes_count_running_statistics_only_where_they_travel(buffers):
    setting = setting_of("fedavg", dataset="digits", group="ResNet4", method={"buffers": buffers})
    model = setting.model(0)
    channels = [module.num_features for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    expected = sum(p.numel() for p in model.parameters()) + (2 * sum(channels) if buffers == "averaged" else 0)
    assert len(channels) > 1 and setting.dimensions["model"] == expected
    client = assembly.make_client(setting.experiment, setting.federation, 0)
    assert sum(tensor.numel() for tensor in shared_tensors(client.model, setting.config)) == expected


@pytest.mark.parametrize("buffers", ["local", "averaged"])
def test_a_table_of_positions_is_no_statistics(tmp_path, monkeypatch, buffers):
    """A Transformer has a table that is no parameter, and never changes: nothing that a server would need."""
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "words.npz"
    tokens = np.random.default_rng(0).integers(2, 20, (60, 6))
    np.savez(path, x=tokens.astype(np.int32), y=np.arange(60) % 3, vocabulary=20)
    model = {"dataset": str(path), "group": "Transformer-1x1"}
    shared = {"data": {"partition": "iid", "global_test": True}, "method": {"buffers": buffers}}
    setting = setting_of("fedavg", **model, **shared)
    model = setting.model(0)
    assert any(buffer.is_floating_point() for buffer in model.buffers())
    assert setting.dimensions["model"] == sum(parameter.numel() for parameter in model.parameters())


def test_statistics_come_in_the_order_of_the_modules_each_once():
    body = nn.Sequential(nn.BatchNorm1d(2), nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3)), nn.BatchNorm1d(4))
    body.append(body[0])
    body.register_buffer("constant", torch.zeros(5), persistent=False)
    body.register_buffer("momentum", torch.zeros(6))
    assert [len(buffer) for buffer in statistics(body)] == [6, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize("method", METHODS)
def test_the_server_tests_its_model_on_the_global_test_set(method):
    made = experiment(method, data={"global_test": True}, train={"lr": 0.1})
    federation = assembly.check(made)
    clients = [assembly.make_client(made, federation, client) for client in range(3)]
    server = assembly.make_server(made, federation)
    down = {}
    for round in range(2):
        uploads = []
        for number, client in enumerate(clients):
            client.receive(round, down)
            client.train(round)
            uploads.append(Upload(number, len(client.data.train), client.upload()))
        step = server.aggregate(round, uploads)
        down = step.down
    clients[0].receive(2, down)
    data = federation.global_test
    with torch.no_grad():
        guesses = clients[0].model.eval()(torch.from_numpy(data.dataset.inputs[data.indices])).argmax(dim=1)
    assert step.metrics == {"server_accuracy": np.mean(guesses.numpy() == data.labels)}


@pytest.mark.parametrize("method", METHODS)
def test_groups_of_several_models_are_refused_with_one_that_works(method):
    title = methods.load(method).ABOUT.title
    with pytest.raises(UserError) as error:
        assembly.check(experiment(method, dataset="digits", group="HtCNN8"))
    assert str(error.value) == (
        f"{title} averages whole models, so all clients need the same one, but model.group = HtCNN8 gives them 3; "
        "choose one, as in --model-group CNN1."
    )
    assembly.check(experiment(method, dataset="digits", group="CNN1"))
    with pytest.raises(UserError, match="gives them 2"):  # equal extractors are not enough
        assembly.check(experiment(method, dataset="digits", group="CNN1,CNN1:64"))


def test_a_server_without_running_statistics_refuses_to_test():
    testing = {"dataset": "digits", "group": "ResNet4", "data": {"dataset": "digits", "global_test": True}}
    with pytest.raises(UserError, match=r"cannot test ResNet4 on data\.global_test .*method\.buffers = averaged"):
        assembly.check(experiment("fedavg", **testing))
    assembly.check(experiment("fedavg", **testing, method={"buffers": "averaged"}))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("evaluation", "both"),
        ("aggregation", "median"),
        ("buffers", "sent"),
        ("lr_schedule", "linear"),
        ("lr_decay", 1.5),
        ("clip_norm", -1),
    ],
)
def test_options_out_of_range_are_refused_in_one_sentence(toy, option, value):
    with pytest.raises(UserError, match=rf"method\.{option}") as error:
        toy("fedavg", **{option: value})
    assert "\n" not in str(error.value)
