"""Mean, deviation and paired differences against formulas written out by hand."""

import math

import pytest
from scipy import stats

from fedsim.results.settings import Seeds
from fedsim.results.statistics import Sample, paired_difference, what_varies


def sample(*values, population=False, first=1):
    return Sample({Seeds(seed, 1): value for seed, value in enumerate(values, first)}, population)


def test_deviation_of_a_sample_and_of_a_population():
    assert sample(1.0, 2.0, 6.0).mean == 3.0
    assert sample(1.0, 2.0, 6.0).deviation == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert sample(1.0, 2.0, 6.0, population=True).deviation == pytest.approx(math.sqrt((4 + 1 + 9) / 3))
    assert sample(5.0).deviation is None


def test_a_paired_difference_is_student_s_interval():
    ours, theirs = (90.0, 92.0, 97.0), (89.0, 90.0, 93.0)
    found = paired_difference(sample(*ours), sample(*theirs))
    test = stats.ttest_rel(ours, theirs)
    low, high = test.confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((7 / 3, low, high))
    assert found.num_pairs == 3


def test_only_common_seeds_are_paired():
    ours, theirs = sample(1.0, 2.0, 3.0), sample(20.0, 10.0, first=2)  # seeds 2 and 3
    found = paired_difference(ours, theirs)
    assert found.num_pairs == 2 and found.mean == pytest.approx((2 - 20 + 3 - 10) / 2)
    assert paired_difference(ours, sample(1.0, first=3)) is None


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ([(1, 1)], "one run (seed 1, partition 1)"),
        ([(1, 1), (2, 1)], "2 run seeds (1, 2) on one partition (data seed 1)"),
        ([(1, 4), (1, 5)], "2 partitions (data seeds 4, 5) with one run seed (1)"),
        ([(1, 1), (2, 2)], "2 seeds (1, 2), each with a partition of its own, so that both vary"),
        (
            [(1, 4), (1, 5), (2, 4), (2, 5)],
            "4 runs of run seeds 1, 2 on the partitions of data seeds 4, 5, so that both vary",
        ),
    ],
)
def test_what_varies(seeds, words):
    assert what_varies([Seeds(*pair) for pair in seeds]) == words
