"""FedPKD: counts weigh prototypes, the nearest public samples are kept, and only these travel down."""

import numpy as np
import pytest
import torch
from toys import CPU, toy_commons

from fedsim import assembly, config, methods
from fedsim.contract import Payload
from fedsim.costs.formula import formulae
from fedsim.data import Federation
from fedsim.equations.class_vectors import ClassVectors
from fedsim.equations.public_distillation import Lesson, nearest_share
from fedsim.families.public_samples import public_logits
from fedsim.method import Upload

QUICK = {"server_model": "MLP", "server_epochs": 2, "server_batch_size": 8}


def test_what_travels(toy):
    some = toy("fedpkd", **QUICK)
    some.play(2)
    up = some.clients[0].upload()
    assert up["counts"].dtype == np.int32 and up["counts"].sum() == 36
    assert some.clients[2].upload()["counts"].sum() == 30  # of 33: an epoch covers whole batches of 6
    assert {name: array.shape for name, array in up.items()} == {
        "logits": (20, 5),
        "prototypes": (3, 4),
        "class_ids": (3,),
        "counts": (3,),
    }
    assert {name: array.shape for name, array in some.down.items()} == {
        "logits": (16, 5),  # 80 % of 20
        "sample_ids": (16,),
        "prototypes": (4, 4),
        "class_ids": (4,),
    }
    assert Payload.COUNTS in some.contract.payloads()


def test_prototypes_are_weighted_by_counts(toy):
    some = toy("fedpkd", **QUICK)
    some.play(1)
    uploads = [client.upload() for client in some.clients]
    for row, class_id in zip(some.down["prototypes"], some.down["class_ids"], strict=True):
        total, expected = 0, np.zeros(4)
        for arrays in uploads:
            for i in np.flatnonzero(arrays["class_ids"] == class_id):
                total += int(arrays["counts"][i])
                expected += int(arrays["counts"][i]) * arrays["prototypes"][i].astype(np.float64)
        np.testing.assert_allclose(row, expected / total, rtol=1e-4, atol=1e-6)


def test_only_the_kept_samples_are_sent_in_order(toy):
    some = toy("fedpkd", theta=0.5, **QUICK)
    some.play(1)
    kept = some.down["sample_ids"]
    assert len(kept) == 10 and (np.diff(kept) > 0).all()
    logits = public_logits(some.server.pupil.model, toy_commons().public, CPU).numpy()
    np.testing.assert_array_equal(some.down["logits"], logits[kept])


def test_the_judgement_is_the_filter(toy, monkeypatch):
    some = toy("fedpkd", theta=0.7, **QUICK)
    features = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(20) % 3
    prototypes = ClassVectors.from_rows(np.eye(4, dtype=np.float32)[:2], np.array([0, 1]), 5)  # class 2 has none
    lessons = []
    monkeypatch.setattr(some.server.pupil, "features", lambda: features)
    monkeypatch.setattr(some.method, "Lesson", lambda *given: lessons.append(Lesson(*given)) or lessons[0])
    arrays = {"prototypes": np.eye(4, dtype=np.float32)[:2], "class_ids": np.array([0, 1], np.int32)}
    arrays |= {"counts": np.array([3, 4], np.int32), "logits": np.eye(5, dtype=np.float32)[labels]}
    step = some.server.aggregate(0, [Upload(2, 7, arrays)])
    distances = [
        float(torch.dist(feature, prototypes.vectors_CK[label])) if label < 2 else np.inf
        for feature, label in zip(features, labels, strict=True)
    ]
    expected = nearest_share(torch.tensor(distances), labels, 0.7, 5)
    assert step.down["sample_ids"].tolist() == expected.tolist() and len(expected) == 14
    assert lessons[0].weights_P.tolist() == [1.0] * 20


def test_clients_learn_from_the_kept_samples_only(toy):
    """Logits for samples 3 and 7 alone: the client's training sees these two inputs and no other."""
    some = toy("fedpkd", **QUICK)
    client, seen = some.clients[0], []
    client.model.extractor.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    client.receive(
        1,
        {
            "logits": np.zeros((2, 5), np.float32),
            "sample_ids": np.array([3, 7], np.int32),
            "prototypes": np.zeros((1, 4), np.float32),
            "class_ids": np.array([0], np.int32),
        },
    )
    everything, _ = next(toy_commons().public.batches(20))
    own_test, _ = next(client.data.test.batches(1000))
    expected = {tuple(row.tolist()) for row in everything[[3, 7]]}
    distilled = [batch for batch in seen if len(batch) != len(own_test)]
    assert {tuple(row.tolist()) for batch in distilled for row in batch} == expected


@pytest.mark.parametrize(("theta", "kept"), [(0.8, 80), (1.0, 100), (0.005, 1)])
def test_the_size_of_what_is_kept_is_known_beforehand(theta, kept):
    experiment = config.build(
        [
            {"data": {"public_samples": 100}, "model": {"group": "MLP", "feature_dim": 8}, "run": {"clients": 2}},
            {"method": {"name": "fedpkd", "theta": theta, "server_model": "MLP"}},
        ]
    )
    setting = assembly.setting_of(experiment, Federation(experiment))
    module = methods.load("fedpkd")
    assert module.sizes(setting) == {"Np": 100, "inputs": 28 * 28, "kept": kept}


def test_cost():
    module = methods.load("fedpkd")
    letters = {"M": 3, "C": 10, "K": 512, "ΣC": 12, "U": 9, "Np": 2500, "inputs": 3072, "kept": 2000}
    cost = formulae(module.contract(module.Config()))
    assert cost["up"].evaluate(letters) == 3 * 2500 * 10 + 12 * (512 + 1)
    assert cost["down"].evaluate(letters) == 3 * (2000 * 10 + 9 * 512)
