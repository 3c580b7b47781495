"""How long is left: paces that were seen, runs alike, and predictions for the others."""

import pytest

from fedsim.config import build
from fedsim.presets import cost
from nodes.tools.estimate import Estimate


def experiment(method="fedproto", seed=1, rounds=10, **sections):
    return build([{"method": {"name": method}, "run": {"seed": seed, "rounds": rounds}}, sections])


def test_nothing_is_said_before_anything_was_seen():
    assert Estimate([experiment()]).seconds_left() is None


def test_a_run_goes_on_at_its_own_pace_and_others_like_it_too():
    estimate = Estimate([experiment(seed=1), experiment(seed=2)])
    estimate.on_round(0, 0, 2.0)
    estimate.on_round(0, 1, 4.0)
    assert estimate.seconds_left() == pytest.approx(3.0 * 9 + 3.0 * 11), "with the round that only evaluates"
    estimate.on_end(0)
    assert estimate.seconds_left() == pytest.approx(3.0 * 11)


def test_a_run_that_goes_on_begins_where_it_was():
    estimate = Estimate([experiment()])
    estimate.on_round(0, 7, 2.0)
    assert estimate.seconds_left() == pytest.approx(2.0 * 3)


def test_one_unlike_all_others_is_predicted_from_their_work():
    light, heavy = experiment(), experiment(train={"local_epochs": 4})
    estimate = Estimate([light, heavy])
    estimate.on_round(0, 0, 1.0)
    ratio = cost.operations(heavy) / cost.operations(light)
    assert ratio > 2
    assert estimate.seconds_left() == pytest.approx(10 + 11 * ratio)
    own = experiment(data={"dataset": "own.npz"})
    unknown = Estimate([light, own])
    unknown.on_round(0, 0, 1.0)
    assert unknown.seconds_left() == pytest.approx(10 + 11), "of work that nobody knows, the mean of what was seen"


def test_several_at_once_take_as_long_as_the_fullest_lane():
    estimate = Estimate([experiment(seed=seed) for seed in (1, 2, 3)], at_once=2)
    estimate.on_round(0, 0, 1.0)
    assert estimate.seconds_left() == pytest.approx(10 + 11)
