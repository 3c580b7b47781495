"""Who takes part in a round: a pure function of the experiment and the round, so that every node knows it."""

from collections.abc import Sequence

from fedsim.config import Run
from fedsim.seeds import Streams


def cohort_of(run: Run, round: int, there: Sequence[int] | None = None) -> list[int]:
    """The clients that train in a round, ascending; of those that are there, if not all are."""
    candidates = range(run.clients) if there is None else there
    size = min(max(1, int(run.clients * run.participation)), len(candidates))
    drawn = Streams(run.seed).numpy("cohort", round=round).choice(len(candidates), size, replace=False)
    return sorted(candidates[place] for place in drawn)


def dropped_of(run: Run, round: int) -> set[int]:
    """Those that drop after training, if they train: drawn of the cohort as it is where all clients are there, of
    which at least one stays. A client need not know who is away (`world.availability`) to know this of itself."""
    if not run.drop_rate:
        return set()
    cohort = cohort_of(run, round)
    num = min(int(run.drop_rate * len(cohort)), len(cohort) - 1)
    drawn = Streams(run.seed).numpy("dropped", round=round).choice(len(cohort), num, replace=False)
    return {cohort[place] for place in drawn}
