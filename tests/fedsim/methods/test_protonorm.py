"""ProtoNorm: alignment and upscaling, each on and off."""

import numpy as np
import pytest

from fedsim.method import Upload

ROWS = np.array([[1, 0.2, 0, 0], [1, 0, 0.3, 0], [2, 0, 0, 0.5]], np.float32)
IDS = np.array([0, 1, 3], np.int32)


def uploads() -> list[Upload]:
    """Two clients whose mean is ROWS; nobody holds classes 2 and 4."""
    offset = np.full_like(ROWS, 0.25)
    return [
        Upload(0, 10, {"prototypes": ROWS - offset, "class_ids": IDS}),
        Upload(1, 10, {"prototypes": ROWS + offset, "class_ids": IDS}),
    ]


def test_aligned_prototypes_are_unit_vectors_as_far_apart_as_they_go(toy):
    step = toy("protonorm", tolerance=0.0).server.aggregate(0, uploads())
    down = step.down["prototypes"]
    assert step.down["class_ids"].tolist() == [0, 1, 3]
    np.testing.assert_allclose(np.linalg.norm(down, axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose((down @ down.T)[np.triu_indices(3, 1)], -0.5, atol=1e-4)
    np.testing.assert_allclose(step.records["global_margins"][IDS], np.sqrt(3), rtol=1e-4)
    assert np.isnan(step.records["global_margins"][[2, 4]]).all()


def test_what_alignment_reports(toy):
    step = toy("protonorm").server.aggregate(0, uploads())
    unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    pairs = [np.linalg.norm(unit[j] - unit[k]) for j, k in ((0, 1), (0, 2), (1, 2))]
    assert step.metrics["energy_before"] == pytest.approx(-np.log(pairs).sum(), rel=1e-5)
    # At rest three points are √3 apart: Eq. 10 gives −3 log √3.
    assert step.metrics["energy"] == pytest.approx(-1.5 * np.log(3), abs=1e-3)
    assert 20 <= step.metrics["alignment_iterations"] < 500
    assert len(step.records["alignment_distances"]) == step.metrics["alignment_iterations"] + 1
    assert step.records["alignment_distances"][0] == pytest.approx(np.mean(pairs), rel=1e-5)


def test_alignment_off_is_the_mean_and_with_normalize_its_direction(toy):
    plain = toy("protonorm", alignment=False).server.aggregate(0, uploads())
    np.testing.assert_allclose(plain.down["prototypes"], ROWS, rtol=1e-6)
    directed = toy("protonorm", alignment=False, normalize=True).server.aggregate(0, uploads())
    unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    np.testing.assert_allclose(directed.down["prototypes"], unit, rtol=1e-6)
    assert plain.metrics["energy"] == pytest.approx(directed.metrics["energy"])


@pytest.mark.parametrize(
    ("options", "scale"),
    [({}, 20.0), ({"prototype_scale": 400.0}, 400.0), ({"upscaling": False}, 1.0)],
)
def test_upscaling_happens_on_the_client(toy, options, scale):
    client = toy("protonorm", **options).clients[0]
    client.receive(1, {"prototypes": ROWS, "class_ids": IDS})
    np.testing.assert_allclose(client.global_prototypes.vectors_CK[IDS].numpy(), scale * ROWS, rtol=1e-6)


def test_options_reach_the_alignment(toy):
    few = toy("protonorm", max_iterations=7).server.aggregate(0, uploads())
    assert few.metrics["alignment_iterations"] == 7
    still = toy("protonorm", alignment_lr=1e-9, momentum=0.0).server.aggregate(0, uploads())
    unit = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
    np.testing.assert_allclose(still.down["prototypes"], unit, atol=1e-6)
    riesz = toy("protonorm", kernel_s=1.0, tolerance=0.0).server.aggregate(0, uploads())
    assert riesz.metrics["energy"] == pytest.approx(3 / np.sqrt(3), rel=1e-3)


@pytest.mark.parametrize(("round", "scale", "warns"), [(10, 100.0, True), (9, 100.0, False), (10, 5.0, False)])
def test_features_far_shorter_than_the_scale_are_said_once(toy, round, scale, warns):
    warning = toy("protonorm", prototype_scale=scale).server.aggregate(round, uploads()).warning
    assert bool(warning) == warns
    if warns:
        length = np.mean([np.linalg.norm(upload.arrays["prototypes"], axis=1).mean() for upload in uploads()])
        assert f"are {length:.3g} long" in warning and "lower method.prototype_scale" in warning


def test_predictions_do_not_depend_on_the_scale(toy):
    small, large = toy("protonorm", prototype_scale=1.0), toy("protonorm", prototype_scale=300.0)
    down = small.server.aggregate(0, uploads()).down
    for one, other in zip(small.clients, large.clients, strict=True):
        one.receive(0, down)
        other.receive(0, down)
        assert one.evaluate() == other.evaluate()
        assert one.evaluate()["tested"] > 0
