"""FedNH: the prototype head, what clients upload and how the server moves prototypes, all against numpy."""

import numpy as np
import pytest
import torch
from toys import elements

from fedsim import assembly, config, methods
from fedsim.contract import Payload
from fedsim.costs.formula import formulae, letters_of
from fedsim.errors import UserError
from fedsim.method import Upload
from fedsim.methods.fednh import PrototypeHead

NUM_CLASSES, NUM_INPUTS, FEATURE_DIM = 5, 6, 7


@pytest.fixture(autouse=True)
def more_features_than_classes(toy, monkeypatch):
    monkeypatch.setitem(toy.__globals__, "FEATURE_DIM", FEATURE_DIM)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def prototypes_of(client) -> np.ndarray:
    return client.model.head.prototypes_CK.numpy().copy()


def unit_features(client) -> np.ndarray:
    """Of all training samples, in double precision from the weights."""
    state, data = client.state(), client.data.train
    weight, bias = (state[f"model.extractor.0.0.{name}"].astype(np.float64) for name in ("weight", "bias"))
    return unit(np.tanh(data.dataset.inputs[data.indices] @ weight.T + bias))


def upload(client: int, num_train: int, model, rows, ids, counts) -> Upload:
    return Upload(
        client,
        num_train,
        {
            "model": np.array(model, np.float32),
            "prototypes": np.array(rows, np.float32),
            "class_ids": np.array(ids, np.int32),
            "counts": np.array(counts, np.int32),
        },
    )


def test_first_prototypes_are_orthonormal_and_the_same_on_every_node(toy):
    some = toy("fednh")
    first_CK = prototypes_of(some.clients[0])
    assert first_CK.shape == (NUM_CLASSES, FEATURE_DIM) and first_CK.dtype == np.float32
    np.testing.assert_allclose(first_CK @ first_CK.T, np.eye(NUM_CLASSES), atol=1e-6)
    for half in some.clients[1:]:
        np.testing.assert_array_equal(prototypes_of(half), first_CK)
    np.testing.assert_array_equal(some.server.state()["prototypes"], first_CK)


def test_another_seed_draws_other_prototypes():
    def first(seed: int) -> np.ndarray:
        made = experiment(run={"seed": seed, "clients": 2})
        return prototypes_of(assembly.make_client(made, assembly.check(made), 0))

    assert (first(1) != first(2)).all()


def test_logits_are_scaled_cosines():
    draw = np.random.default_rng(0)
    prototypes, features = unit(draw.normal(size=(3, 4))), 5 * draw.normal(size=(6, 4))
    head = PrototypeHead(torch.from_numpy(prototypes), 20.0, trainable_scale=True)
    np.testing.assert_allclose(
        head(torch.from_numpy(features)).detach().numpy(), 20 * unit(features) @ prototypes.T, rtol=1e-6
    )
    # Features of length 0 have no direction; they must not become NaN.
    assert head(torch.zeros(2, 4, dtype=torch.float64)).detach().tolist() == [[0, 0, 0]] * 2


def test_loss_as_in_numpy(toy):
    client = toy("fednh", num_samples={0: 6}, scale=3.0).clients[0]
    logits = 3.0 * unit_features(client) @ prototypes_of(client).T
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = -np.log(shares[np.arange(6), client.data.train.labels]).mean()
    assert client.train(0)["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("trainable", [True, False])
def test_training_moves_the_extractor_and_perhaps_the_scale_but_no_prototype(toy, trainable):
    client = toy("fednh", scale=2.0, trainable_scale=trainable).clients[0]
    before, first_CK = client.upload()["model"], prototypes_of(client)
    num_extractor = NUM_INPUTS * FEATURE_DIM + FEATURE_DIM
    assert len(before) == num_extractor + trainable
    client.train(0)
    after = client.upload()["model"]
    assert (after[:num_extractor] != before[:num_extractor]).any()
    assert (client.model.head.scale.item() != 2.0) == trainable
    assert after[num_extractor:].tolist() == ([client.model.head.scale.item()] if trainable else [])
    np.testing.assert_array_equal(prototypes_of(client), first_CK)


def test_upload_is_the_direction_of_each_class_mean_and_how_many_it_is_of(toy):
    client = toy("fednh").clients[2]
    client.train(0)
    arrays, labels = client.upload(), client.data.train.labels[:30]  # 33 samples in batches of 6: three are left
    features = unit_features(client)[:30]
    assert arrays["class_ids"].tolist() == np.unique(labels).tolist() == [0, 1, 2, 3]
    assert arrays["counts"].tolist() == np.bincount(labels).tolist()
    for row, label in zip(arrays["prototypes"], arrays["class_ids"], strict=True):
        np.testing.assert_allclose(row, unit(features[labels == label].mean(axis=0)), rtol=1e-4, atol=1e-6)


def test_prototypes_move_towards_the_counted_means(toy):
    server = toy("fednh", smoothing=0.75).server
    first_CK = server.state()["prototypes"].astype(np.float64)
    rows = unit(np.random.default_rng(4).normal(size=(3, FEATURE_DIM)))
    step = server.aggregate(
        0,
        [upload(0, 1000, [0, 2], rows[:2], [1, 3], [30, 5]), upload(1, 10, [4, 4], rows[2:], [1], [10])],
    )
    expected = first_CK.copy()
    expected[1] = unit(0.75 * first_CK[1] + 0.25 * unit((30 * rows[0] + 10 * rows[2]) / 40))
    expected[3] = unit(0.75 * first_CK[3] + 0.25 * rows[1])
    np.testing.assert_allclose(step.down["prototypes"], expected, rtol=1e-5, atol=1e-6)
    for absent in (0, 2, 4):
        np.testing.assert_array_equal(step.down["prototypes"][absent], first_CK[absent].astype(np.float32))
    assert step.down["model"].tolist() == [2, 3]  # unweighted, as published
    np.testing.assert_array_equal(server.state()["prototypes"], step.down["prototypes"])


def test_models_may_be_averaged_by_numbers_of_samples(toy):
    server = toy("fednh", aggregation="weighted").server
    nothing = np.zeros((0, FEATURE_DIM))
    uploads = [upload(0, 30, [0, 2], nothing, [], []), upload(1, 10, [4, 4], nothing, [], [])]
    assert server.aggregate(0, uploads).down["model"].tolist() == [1, 2.5]


def test_what_is_sent_down_is_not_changed_by_later_rounds(toy):
    some = toy("fednh")
    some.play(1)
    sent = {name: array.copy() for name, array in some.steps[0].down.items()}
    some.play(2)
    for name, array in sent.items():
        np.testing.assert_array_equal(some.steps[0].down[name], array)
    assert (some.down["prototypes"] != sent["prototypes"]).any()


def test_a_personalised_client_keeps_the_prototypes_that_its_copy_was_trained_with(toy):
    some = toy("fednh", evaluation="personalised")
    some.play(2)
    client, trained_with = some.clients[0], some.steps[0].down["prototypes"]
    client.receive(2, some.down)
    np.testing.assert_array_equal(prototypes_of(client), trained_with)
    client.train(2)
    np.testing.assert_array_equal(prototypes_of(client), some.down["prototypes"])


def experiment(**sections) -> config.Experiment:
    layer = {
        "run": {"clients": 3},
        "data": {"dataset": "spiral", "samples_per_class": 40},
        "model": {"group": "MLP", "feature_dim": 8},
        "method": {"name": "fednh"},
    }
    return config.build([layer, sections])


def test_contract_and_cost_say_what_travels():
    made = experiment()
    federation = assembly.check(made)
    setting = assembly.setting_of(made, federation)
    clients = [assembly.make_client(made, federation, client) for client in range(3)]
    server = assembly.make_server(made, federation)
    uploads = []
    for number, client in enumerate(clients):
        client.train(0)
        uploads.append(Upload(number, len(client.data.train), client.upload()))
    down = server.aggregate(0, uploads).down
    contract = methods.load("fednh").contract(setting.config)
    cost, letters = formulae(contract), letters_of(setting)
    assert sum(elements(item.arrays, contract.up) for item in uploads) == cost["up"].evaluate(letters)
    assert 3 * elements(down, contract.down) == cost["down"].evaluate(letters)
    # Five layers of widths 2, 64, 64, 64, 64, 8, and the scale.
    assert letters["model"] == 2 * 64 + 3 * 64 * 64 + 64 * 8 + 4 * 64 + 8 + 1
    assert contract.payloads() == {Payload.PARAMETERS, Payload.PROTOTYPES, Payload.COUNTS, Payload.INDEX}


def test_fewer_features_than_classes_are_refused():
    with pytest.raises(UserError) as error:
        assembly.check(experiment(model={"feature_dim": 5}))
    assert str(error.value) == (
        "FedNH needs orthonormal prototypes, but model.feature_dim = 5 has no room for the 6 classes of spiral; "
        "set it to at least 6."
    )
    assembly.check(experiment(model={"feature_dim": 6}))


@pytest.mark.parametrize(("option", "value"), [("smoothing", 1.1), ("smoothing", -0.1), ("scale", 0)])
def test_options_out_of_range_are_refused(toy, option, value):
    with pytest.raises(UserError, match=rf"method\.{option}"):
        toy("fednh", **{option: value})


def test_published_defaults(toy):
    options = toy("fednh").experiment.method
    assert (options["smoothing"], options["clip_norm"], options["buffers"]) == (0.9, 10.0, "averaged")
    assert (options["scale"], options["trainable_scale"], options["aggregation"]) == (1.0, True, "mean")
