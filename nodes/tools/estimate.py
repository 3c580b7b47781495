"""How long a batch will still take: from the rounds that it has seen, and what is known of those that it has not.

A run that has begun goes on at its own pace. One that has not is given the pace of its like, which is the same
experiment with another seed; without one, its predicted cost times what a predicted second really took so far.
"""

import heapq
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from fedsim.config import Experiment
from fedsim.presets import cost

FEW_ROUNDS = 3
"""So many rounds of a run say enough of its pace."""


@dataclass
class _Pace:
    """What is known of one run."""

    kind: Experiment
    """With no seed."""
    num_rounds: int
    predicted: float | None
    """Operations of a round."""
    next_round: int = 0
    seconds: list[float] = field(default_factory=list)
    """Of the rounds that were seen."""
    is_over: bool = False

    @property
    def rounds_left(self) -> int:
        return 0 if self.is_over else max(self.num_rounds - self.next_round, 0)


class Estimate:
    """Of the runs of a batch, in the order in which they are started."""

    def __init__(self, experiments: Sequence[Experiment], at_once: int = 1):
        self._at_once = at_once
        self._paces = [_pace(experiment) for experiment in experiments]

    def on_round(self, run: int, round: int, seconds: float) -> None:
        """Round `round` of this run was finished after so many seconds."""
        self._paces[run].next_round = round + 1
        self._paces[run].seconds.append(seconds)

    def on_end(self, run: int) -> None:
        self._paces[run].is_over = True

    @property
    def num_rounds_seen(self) -> int:
        return sum(len(pace.seconds) for pace in self._paces)

    def seconds_left(self) -> float | None:
        """Until all have ended; None before anything was seen."""
        if not self.num_rounds_seen:
            return None
        left = [pace.rounds_left * self._seconds_a_round(pace) for pace in self._paces]
        lanes = [0.0] * self._at_once
        for seconds in left:  # as the pool does: each to the lane that is free first
            heapq.heappush(lanes, heapq.heappop(lanes) + seconds)
        return max(lanes)

    def _seconds_a_round(self, pace: _Pace) -> float:
        if pace.seconds:
            return statistics.fmean(pace.seconds)
        seen = [other for other in self._paces if other.seconds]
        if alike := [statistics.fmean(other.seconds) for other in seen if other.kind == pace.kind]:
            return statistics.fmean(alike)
        rates = [statistics.fmean(other.seconds) / other.predicted for other in seen if other.predicted]
        if rates and pace.predicted:
            return statistics.fmean(rates) * pace.predicted
        return statistics.fmean(statistics.fmean(other.seconds) for other in seen)


def _pace(experiment: Experiment) -> _Pace:
    operations = cost.operations(experiment)
    rounds = experiment.run.rounds
    return _Pace(
        kind=replace(experiment, run=replace(experiment.run, seed=0)),
        num_rounds=rounds + 1,  # the last one only evaluates
        predicted=operations / rounds if operations and rounds else None,
    )
