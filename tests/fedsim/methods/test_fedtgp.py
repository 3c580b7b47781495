"""FedTGP's server half: margins and settings as they reach the optimizer, and what goes down."""

import numpy as np
import pytest
import torch

from fedsim.method import Upload
from fedsim.server_optimizers.tgp import TrainablePrototypes

SQUARE = np.array([[0, 0, 0, 0], [3, 0, 0, 0], [0, 7, 0, 0]], np.float32)  # nearest neighbours: 3, 3, 7


def uploads() -> list[Upload]:
    """Two clients around the corners of a triangle; class 4 is nobody's, class 2 only the second's."""
    first = {"prototypes": SQUARE[:2] - 1, "class_ids": np.array([0, 1], np.int32)}
    second = {
        "prototypes": np.concatenate([SQUARE[:2] + 1, SQUARE[2:]]),
        "class_ids": np.array([0, 1, 2], np.int32),
    }
    return [Upload(0, 10, first), Upload(1, 10, second)]


@pytest.mark.parametrize(
    ("options", "margin"),
    [
        ({}, 7.0),  # the centres are SQUARE itself; the largest nearest-neighbour distance
        ({"tau": 5.0}, 5.0),
        ({"margin": "fixed", "tau": 20.0}, 20.0),
        ({"margin": "none"}, 0.0),
    ],
)
def test_margin_in_force(toy, options, margin):
    step = toy("fedtgp", server_epochs=1, **options).server.aggregate(0, uploads())
    assert step.metrics["margin_delta"] == pytest.approx(margin)


def test_all_classes_go_down_even_those_nobody_holds(toy):
    step = toy("fedtgp", server_epochs=1).server.aggregate(0, uploads())
    assert set(step.down) == {"prototypes"}
    assert step.down["prototypes"].shape == (5, 4)
    assert step.down["prototypes"].dtype == np.float32
    assert np.isfinite(step.records["global_margins"]).all()


@pytest.mark.parametrize(
    ("options", "epochs", "batch_size", "lr"),
    [
        ({}, 100, 6, 0.1),  # batch size and learning rate are the clients'
        ({"server_epochs": 2, "server_batch_size": 2, "server_lr": 0.5}, 2, 2, 0.5),
        ({"use_transform": False, "server_epochs": 3}, 3, 6, 0.1),
    ],
)
def test_server_step_equals_the_optimizer_used_alone(toy, options, epochs, batch_size, lr):
    some = toy("fedtgp", **options)
    streams = some.server.context.streams
    alone = TrainablePrototypes(
        5,
        4,
        generator=streams.torch("trainable-prototypes"),
        use_transform=options.get("use_transform", True),
    )
    everything = [upload.arrays for upload in uploads()]
    for round in range(2):
        step = some.server.aggregate(round, uploads())
        fit = alone.fit(
            torch.from_numpy(np.concatenate([arrays["prototypes"] for arrays in everything])),
            torch.from_numpy(np.concatenate([arrays["class_ids"] for arrays in everything]).astype(np.int64)),
            margins_C=torch.full((5,), 7.0),
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            generator=streams.torch("server-order", round=round),
        )
        np.testing.assert_array_equal(step.down["prototypes"], alone().detach().numpy())
        assert step.metrics["server_loss"] == fit.loss
        assert step.metrics["server_loss_first"] == fit.first_loss
        assert step.metrics["server_loss_last_batch"] == fit.last_batch_loss


def test_what_went_down_is_not_altered_by_the_next_round(toy):
    some = toy("fedtgp", use_transform=False, server_epochs=1)
    first = some.server.aggregate(0, uploads()).down["prototypes"]
    kept = first.copy()
    some.server.aggregate(1, uploads())
    np.testing.assert_array_equal(first, kept)


def test_prototypes_are_pulled_apart_further_than_the_mean_s(toy):
    trained = toy("fedtgp", server_epochs=200).server.aggregate(0, uploads())
    averaged = toy("fedproto").server.aggregate(0, uploads())
    held = slice(0, 3)
    assert np.nanmin(trained.records["global_margins"][held]) > np.nanmin(averaged.records["global_margins"][held])
