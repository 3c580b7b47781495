"""Which rounds' prototypes a server records: enough for a map, never more than a few megabytes."""

import numpy as np
import pytest

from fedsim.equations.class_vectors import ClassVectors
from fedsim.families import prototypes


def test_all_rounds_where_they_are_small(toy):
    run = toy("fedproto", prototype_scale=3.0)
    run.play(2)
    for step in run.steps:
        uploaded = step.records["client_prototypes"]
        assert len(uploaded) == len(step.records["client_ids"]) == len(step.records["client_classes"])
        np.testing.assert_array_equal(step.records["global_prototypes"], 3 * step.down["prototypes"])
        np.testing.assert_array_equal(step.records["global_classes"], step.down["class_ids"])
        assert step.records["prototype_scale"] == 3.0
    # The mean over clients of what they sent for class 1 is what is sent back.
    records = run.steps[0].records
    rows = records["client_prototypes"][records["client_classes"] == 1]
    sent_back = run.steps[0].down["prototypes"][records["global_classes"] == 1]
    np.testing.assert_allclose(rows.mean(axis=0), sent_back[0], rtol=1e-5)


@pytest.mark.parametrize("method", ["fedprotokd", "fedpkd"])
def test_methods_with_public_samples_record_the_prototypes_as_clients_use_them(toy, method):
    run = toy(method, prototype_scale=3.0, server_model="MLP", server_epochs=1)
    run.play(1)
    records, down = run.steps[0].records, run.steps[0].down
    np.testing.assert_array_equal(records["global_prototypes"], 3 * down["prototypes"])
    assert len(records["global_classes"]) == len(down["prototypes"])
    run.clients[0].receive(1, down)
    used = run.clients[0].global_prototypes.vectors_CK[records["global_classes"]]
    np.testing.assert_array_equal(records["global_prototypes"], used)


@pytest.mark.parametrize(
    ("limit_in_rounds", "kept"),
    [
        (15, range(15)),
        (5, [0, 3, 6, 9, 12, 14]),
        (1, [0, 14]),
        (0.01, [0, 14]),
        (7.5, [0, 2, 4, 6, 8, 10, 12, 14]),
    ],
)
def test_of_many_rounds_some_and_always_the_last(toy, monkeypatch, limit_in_rounds, kept):
    server = toy("fedproto").server  # its experiment has 15 rounds
    monkeypatch.setattr(prototypes, "MAX_RECORDED_BYTES", int(100_000 * limit_in_rounds))
    assert [round for round in range(15) if server._keeps_prototypes(round, 100_000)] == list(kept)


def test_a_round_without_prototypes(toy):
    run = toy("fedproto")
    step = run.server.aggregate(0, [])
    assert "client_prototypes" not in step.records  # nothing to keep, and nothing to fail on
    assert not ClassVectors.empty(5, 4, run.server.context.device).any
