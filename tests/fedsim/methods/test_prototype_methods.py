"""The shared client and server halves of FedProto, FedTGP and ProtoNorm, option by option."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedsim.contract import Payload
from fedsim.errors import UserError
from fedsim.method import Upload


def upload(client: int, rows: list[list[float]], ids: list[int], **more) -> Upload:
    arrays = {
        "prototypes": np.array(rows, np.float32).reshape(len(ids), -1 if rows else 2),
        "class_ids": np.array(ids, np.int32),
    }
    return Upload(client, 10, arrays | {name: np.array(value) for name, value in more.items()})


def features_by_hand(model, data, num_samples) -> tuple[np.ndarray, np.ndarray]:
    """Features of the first samples, one at a time."""
    rows = data.indices[:num_samples]
    model.eval()
    with torch.no_grad():
        features = [model.features(torch.from_numpy(data.dataset.inputs[row : row + 1]))[0] for row in rows]
    return torch.stack(features).numpy(), data.labels[:num_samples]


def assert_class_means(arrays, features, labels):
    assert arrays["class_ids"].tolist() == sorted(set(labels.tolist()))
    for row, label in zip(arrays["prototypes"], arrays["class_ids"], strict=True):
        np.testing.assert_allclose(row, features[labels == label].mean(axis=0), rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------ what goes up


def test_eval_pass_is_the_mean_feature_of_the_trained_model(toy):
    some = toy("fedtgp")
    client = some.clients[2]  # 33 samples in batches of 6: an epoch covers 30
    client.train(0)
    assert_class_means(client.upload(), *features_by_hand(client.model, client.data.train, 30))


def test_eval_pass_covers_all_samples_when_no_batch_is_dropped(toy):
    client = toy("fedtgp", train={"drop_last": False}).clients[2]
    client.train(0)
    assert_class_means(client.upload(), *features_by_hand(client.model, client.data.train, 33))


def test_stale_prototypes_are_those_of_the_model_before_training(toy):
    client = toy("fedtgp", stale_prototypes=True).clients[0]
    before = features_by_hand(client.model, client.data.train, 36)
    client.train(0)
    assert_class_means(client.upload(), *before)
    before = features_by_hand(client.model, client.data.train, 36)
    client.train(1)
    assert_class_means(client.upload(), *before)


def test_train_pass_is_the_mean_over_the_moving_model_and_all_epochs(toy):
    some = toy("fedproto", train={"local_epochs": 2})
    client, twin = some.clients[0], toy("fedproto").clients[0].model
    client.train(0)
    data, features, labels = client.data.train, [], []
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(2):
        for start in range(0, 36, 6):
            inputs = torch.from_numpy(data.dataset.inputs[data.indices[start : start + 6]])
            batch_features = twin.features(inputs)
            features.append(batch_features.detach().numpy())
            labels.append(data.labels[start : start + 6])
            optimizer.zero_grad()
            cross_entropy(twin.head(batch_features), torch.from_numpy(labels[-1])).backward()
            optimizer.step()
    assert_class_means(client.upload(), np.concatenate(features), np.concatenate(labels))


def test_counts_travel_only_with_weighted_aggregation(toy):
    plain, weighted = toy("fedproto"), toy("fedproto", aggregation="weighted")
    assert Payload.COUNTS not in plain.contract.payloads()
    assert Payload.COUNTS in weighted.contract.payloads()
    client = weighted.clients[2]
    client.train(0)
    arrays = client.upload()
    expected = np.bincount(client.data.train.labels[:30], minlength=5)[arrays["class_ids"]]
    np.testing.assert_array_equal(arrays["counts"], expected)
    assert "counts" not in plain.clients[2].upload()


@pytest.mark.parametrize("method", ["fedtgp", "protonorm"])
def test_fedtgp_and_protonorm_never_send_counts(toy, method):
    assert toy(method).contract.payloads() == {Payload.PROTOTYPES, Payload.INDEX}


def test_reported_margins(toy):
    some = toy("fedtgp", report_margins=True, server_epochs=1)
    some.play(1)
    arrays = some.clients[2].upload()
    for row, (own, margin) in enumerate(zip(arrays["prototypes"], arrays["margins"], strict=True)):
        others = np.delete(arrays["prototypes"], row, axis=0)
        assert margin == pytest.approx(np.linalg.norm(others - own, axis=1).min(), rel=1e-5)
    assert some.clients[3].upload()["margins"].tolist() == [0.0]  # a single class has none
    assert "margins" not in toy("fedtgp").contract.up


# ------------------------------------------------------------------------------------------ client's loss


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({}, 10.0),
        ({"distance": "l2"}, 0.1),
        ({"prototype_weight": 3.0}, 3.0),
        ({"distance": "l2", "prototype_weight": 2.0, "prototype_scale": 1.5}, 2.0),
    ],
)
def test_one_step_of_the_guided_loss_equals_equation_11(toy, options, weight):
    """One batch, so that the loss reported is that of the untouched model: cross-entropy + λ · φ."""
    some = toy("fedproto", num_samples={0: 6}, **options)
    client = some.clients[0]
    down = {
        "prototypes": np.arange(8, dtype=np.float32).reshape(2, 4),
        "class_ids": np.array([0, 2], np.int32),
    }
    data = client.data.train
    inputs, labels = torch.from_numpy(data.dataset.inputs[data.indices]), data.labels
    with torch.no_grad():
        features = client.model.features(inputs)
        expected = cross_entropy(client.model.head(features), torch.from_numpy(labels)).item()
    scale = options.get("prototype_scale", 1.0)
    pulls = []
    for feature, label in zip(features.numpy(), labels, strict=True):
        if label not in (0, 2):
            pulls.append(0.0)  # class 1 has no global prototype
            continue
        difference = feature - scale * down["prototypes"][[0, 2].index(label)]
        is_l2 = options.get("distance") == "l2"
        pulls.append(np.linalg.norm(difference) if is_l2 else (difference**2).mean())
    client.receive(0, down)
    assert client.train(0)["loss"] == pytest.approx(expected + weight * np.mean(pulls), rel=1e-5)


def test_first_round_is_cross_entropy_alone(toy):
    guided, alone = toy("fedproto"), toy("local")
    assert [c.train(0) for c in guided.clients] == [c.train(0) for c in alone.clients]


def test_weight_zero_is_local_training(toy):
    guided, alone = toy("fedproto", prototype_weight=0.0), toy("local")
    losses = [[[m["loss"] for m in metrics] for metrics in some.play(3)] for some in (guided, alone)]
    assert losses[0] == losses[1]


# ------------------------------------------------------------------------------------------- evaluation


def prepared(toy, **options):
    """Client 1, which holds classes 1 and 3, with a model whose features are the first four inputs."""
    client = toy("fedproto", **options).clients[1]
    with torch.no_grad():
        client.model.extractor[0][0].weight.copy_(torch.eye(4, 6))
        client.model.extractor[0][0].bias.zero_()
    rows = np.random.default_rng(5).normal(size=(4, 4)).astype(np.float32)
    client.receive(0, {"prototypes": rows, "class_ids": np.array([0, 1, 3, 4], np.int32)})
    features, labels = features_by_hand(client.model, client.data.test, len(client.data.test))
    return client, rows, features, labels


def counts(client, prefix="") -> tuple[int, int]:
    found = client.evaluate()
    return found[f"{prefix}correct"], found[f"{prefix}tested"]


def correct_by_loops(features, labels, rows, ids) -> int:
    nearest = [ids[np.argmin([np.linalg.norm(f - row) for row in rows])] for f in features]
    return sum(a == b for a, b in zip(nearest, labels, strict=True))


def test_evaluation_by_nearest_global_prototype(toy):
    client, rows, features, labels = prepared(toy)
    expected = correct_by_loops(features, labels, rows, [0, 1, 3, 4])
    assert counts(client) == (expected, len(labels))


def test_evaluation_uses_the_scaled_prototypes(toy):
    client, rows, features, labels = prepared(toy, prototype_scale=0.3)
    expected = correct_by_loops(features, labels, 0.3 * rows, [0, 1, 3, 4])
    assert client.evaluate()["correct"] == expected


def test_evaluation_restricted_to_local_classes(toy):
    client, rows, features, labels = prepared(toy, restrict_to_local_classes=True)
    expected = correct_by_loops(features, labels, rows[1:3], [1, 3])
    assert counts(client) == (expected, len(labels))


def test_evaluation_by_local_prototype(toy):
    client, *_ = prepared(toy, evaluate_by="local_prototype")
    assert counts(client) == (0, 0)
    client.train(0)
    arrays = client.upload()
    features, labels = features_by_hand(client.model, client.data.test, len(client.data.test))
    expected = correct_by_loops(features, labels, arrays["prototypes"], arrays["class_ids"])
    assert counts(client) == (expected, len(labels))


def test_evaluation_by_logits_needs_no_prototypes(toy):
    client = toy("fedproto", evaluate_by="logits").clients[0]
    data = client.data.test
    with torch.no_grad():
        predicted = client.model(torch.from_numpy(data.dataset.inputs[data.indices])).argmax(dim=1).numpy()
    assert counts(client) == (int((predicted == data.labels).sum()), len(data))
    assert counts(client, "prototype_") == (0, 0)
    assert not any(name.startswith("logit_") for name in client.evaluate())


@pytest.mark.parametrize("method", ["fedproto", "fedtgp", "protonorm"])
def test_both_read_outs_and_the_lengths_behind_them_every_round(toy, method):
    options = {"server_epochs": 2} if method == "fedtgp" else {}
    some = toy(method, **options)
    some.play(2)
    client = some.clients[0]
    client.receive(2, some.down)
    features, labels = features_by_hand(client.model, client.data.test, len(client.data.test))
    with torch.no_grad():
        by_logits = client.model.head(torch.from_numpy(features)).argmax(dim=1).numpy()
    found = client.evaluate()
    assert counts(client, "logit_") == (int((by_logits == labels).sum()), len(labels))
    rows = client.global_prototypes.vectors_CK.numpy()
    ids = client.global_prototypes.present_C.nonzero().squeeze(1).numpy()
    assert counts(client) == (correct_by_loops(features, labels, rows[ids], ids), len(labels))
    assert found["feature_norm"] == pytest.approx(np.linalg.norm(features, axis=1).mean(), rel=1e-5)
    norms = np.linalg.norm(rows[ids], axis=1)
    reported = some.steps[-1].metrics
    assert reported["prototype_norm"] == pytest.approx(norms.mean(), rel=1e-5)
    assert reported["prototype_norm_min"] == pytest.approx(norms.min(), rel=1e-5)
    assert reported["prototype_norm_max"] == pytest.approx(norms.max(), rel=1e-5)


def test_logits_are_read_out_before_there_are_prototypes(toy):
    client = toy("fedtgp").clients[0]
    assert counts(client) == (0, 0) and counts(client, "logit_")[1] == len(client.data.test)


# ------------------------------------------------------------------------------------------- server half


def test_fedproto_sends_only_classes_of_this_round(toy):
    some = toy("fedproto")
    first = some.server.aggregate(0, [upload(0, [[1, 2, 3, 4], [0, 0, 0, 0]], [1, 3])])
    assert first.down["class_ids"].tolist() == [1, 3]
    second = some.server.aggregate(1, [upload(0, [[5, 6, 7, 8]], [2])])
    assert second.down["class_ids"].tolist() == [2]
    assert second.down["prototypes"].tolist() == [[5, 6, 7, 8]]


def test_margins_of_every_round_are_recorded(toy):
    some = toy("fedproto")
    step = some.server.aggregate(
        0,
        [
            upload(1, [[0, 0, 0, 0], [3, 4, 0, 0]], [1, 3]),
            upload(2, [[0, 0, 0, 0], [3, 4, 0, 2], [0, 0, 9, 0]], [1, 3, 0]),
            upload(3, [[0, 0, 9, 0]], [0]),
        ],
    )
    # Means: class 0 (0, 0, 9, 0), class 1 the origin, class 3 (3, 4, 0, 1).
    apart = np.sqrt(26)
    np.testing.assert_allclose(step.records["global_margins"], [9, apart, np.nan, apart, np.nan], rtol=1e-6)
    assert step.metrics == {
        "margin_max": pytest.approx(9.0),
        "margin_mean": pytest.approx((9 + 2 * apart) / 3),
        "prototype_norm": pytest.approx((9 + apart) / 3),
        "prototype_norm_min": pytest.approx(0.0),
        "prototype_norm_max": pytest.approx(9.0),
    }
    other = np.sqrt(29)
    np.testing.assert_allclose(step.records["client_margins"], [5, 5, other, other, 9, np.nan], rtol=1e-6)
    assert step.records["client_ids"].tolist() == [1, 1, 2, 2, 2, 3]
    assert step.records["client_classes"].tolist() == [1, 3, 1, 3, 0, 0]


def test_a_single_class_in_the_whole_federation_gives_finite_metrics(toy):
    for method in ("fedproto", "fedtgp", "protonorm"):
        step = toy(method).server.aggregate(0, [upload(0, [[1, 2, 3, 4]], [2])])
        assert all(np.isfinite(value) for value in step.metrics.values())
        assert np.isfinite(step.down["prototypes"]).all()


def test_stale_prototypes_need_an_eval_pass(toy):
    with pytest.raises(UserError, match=r"stale_prototypes.*prototypes_from"):
        toy("fedproto", stale_prototypes=True)
    toy("fedproto", stale_prototypes=True, prototypes_from="eval_pass")
