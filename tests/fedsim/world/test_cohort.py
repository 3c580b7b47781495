"""Clients that drop after training."""

from fedsim.config import Run
from fedsim.world.cohort import cohort_of, dropped_of


def test_a_share_of_the_cohort_drops_and_one_always_stays():
    run = Run(clients=20, participation=0.5, drop_rate=0.3)
    for round in range(5):
        dropped = dropped_of(run, round)
        assert len(dropped) == 3
        assert dropped <= set(cohort_of(run, round))
    assert dropped_of(run, 0) != dropped_of(run, 1) or dropped_of(run, 1) != dropped_of(run, 2)
    assert len(dropped_of(Run(clients=3, drop_rate=0.99), 0)) == 2
    assert dropped_of(Run(clients=3), 0) == set()
