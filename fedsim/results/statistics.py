"""A number that was measured once for each seed, and the difference between two such numbers."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import stats

from fedsim.results.settings import Seeds
from fedsim.results.wording import counted

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Sample:
    """One number per seed."""

    values: Mapping[Seeds, float]
    population: bool = False
    """Divide by n, as the papers do; otherwise by n − 1, for the seeds are a sample of all that might be."""

    @property
    def size(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return math.fsum(self.values.values()) / self.size

    @property
    def deviation(self) -> float | None:
        """A single run has none, rather than one of 0."""
        if self.size < 2:
            return None
        return float(np.std(list(self.values.values()), ddof=0 if self.population else 1))


@dataclass(frozen=True)
class Difference:
    """The mean of differences between runs of the same seeds, and between what it lies (Student's t)."""

    mean: float
    low: float
    high: float
    num_pairs: int


def paired_difference(ours: Sample, baseline: Sample, confidence: float = CONFIDENCE) -> Difference | None:
    """Seed by seed, so that what both owe to the seed cancels out; None where fewer than two seeds are common."""
    common = [seeds for seeds in ours.values if seeds in baseline.values]
    if len(common) < 2:
        return None
    differences = np.array([ours.values[seeds] - baseline.values[seeds] for seeds in common])
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(len(common))
    reach = float(stats.t.ppf((1 + confidence) / 2, len(common) - 1)) * error
    return Difference(mean, mean - reach, mean + reach, len(common))


def what_varies(seeds: Collection[Seeds]) -> str:
    """Over what a mean is: run seeds, partitions, or both at once."""
    runs, partitions = (sorted(set(numbers)) for numbers in zip(*seeds, strict=True))
    if len(seeds) == 1:
        return f"one run (seed {runs[0]}, partition {partitions[0]})"
    if len(partitions) == 1:
        return f"{len(runs)} run seeds ({_listed(runs)}) on one partition (data seed {partitions[0]})"
    if len(runs) == 1:
        return f"{len(partitions)} partitions (data seeds {_listed(partitions)}) with one run seed ({runs[0]})"
    if all(run == data for run, data in seeds):
        return f"{len(seeds)} seeds ({_listed(runs)}), each with a partition of its own, so that both vary"
    return (
        f"{counted(len(seeds), 'run')} of run seeds {_listed(runs)} on the partitions of data seeds "
        f"{_listed(partitions)}, so that both vary"
    )


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
