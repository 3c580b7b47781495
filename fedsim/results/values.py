"""What a table can say of a run: any column of metrics.csv in its best or last round, and a few numbers beside."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from pandas import Series

from fedsim.errors import UnknownName
from fedsim.metrics import ROUND_COLUMNS, describe, worst_tenth
from fedsim.results.load import LoadedRun

Which = Literal["best", "last"]
PERCENT = 100.0


@dataclass(frozen=True)
class Value:
    """A number of a run. `read` gives None where a run has none."""

    title: str
    read: Callable[[LoadedRun, Which], float | None]
    unit: str = ""
    better: Literal["higher", "lower", ""] = ""
    """Empty where nobody can say."""
    by_round: bool = True
    """Whether a run has one in its best and one in its last round."""

    def text(self, number: float, beside: float | None = None) -> str:
        """With as many decimals as the number that it stands `beside`."""
        if not self.unit:
            return f"{number:.4g}"
        is_large = abs(number if beside is None else beside) >= 10
        return f"{number:.2f}" if self.unit == "%" or is_large else f"{number:.3f}"


def accuracies_of_clients(run: LoadedRun, which: Which) -> Series:
    """Of all clients that were tested in the round that counts, in percent."""
    series = run.series("accuracy")
    whole = series[~series.index.isin(run.partial_rounds)]
    if not len(whole):
        return Series(dtype=float)
    round = whole.idxmax() if which == "best" else whole.index[-1]
    table = run.client_shares
    return PERCENT * table[table["round"] == round].set_index("client")["accuracy"].dropna()


def _of_clients(reduce: Callable[[Series], float | None]) -> Callable[[LoadedRun, Which], float | None]:
    def read(run: LoadedRun, which: Which) -> float | None:
        shares = accuracies_of_clients(run, which)
        return reduce(shares) if len(shares) else None

    return read


def _megabytes(way: str) -> Callable[[LoadedRun, Which], float | None]:
    def read(run: LoadedRun, which: Which) -> float | None:
        sent = run.wire_bytes(way)
        return None if sent is None else sent / 1e6

    return read


def _best_round(run: LoadedRun, which: Which) -> float | None:
    return float(run.best[0]) if run.best else None


FURTHER = {
    "worst_tenth": Value("worst tenth of clients", _of_clients(worst_tenth), "%", "higher"),
    # Of the clients that there are, not of those that might be: the population's.
    "client_deviation": Value(
        "deviation among clients", _of_clients(lambda shares: float(shares.std(ddof=0))), "%", "lower"
    ),
    "bytes_up": Value("sent up", _megabytes("up"), "MB", "lower", by_round=False),
    "bytes_down": Value("sent down", _megabytes("down"), "MB", "lower", by_round=False),
    "best_round": Value("best round", _best_round, by_round=False),
    "seconds": Value("time", lambda run, which: run.seconds, "s", by_round=False),
}
"""Numbers that are no column of metrics.csv."""


def value(name: str) -> Value:
    if name in FURTHER:
        return FURTHER[name]
    metric = describe(name)
    factor = PERCENT if metric.is_share else 1.0

    def read(run: LoadedRun, which: Which) -> float | None:
        found = run.best_and_last(name)
        if found is None:
            return None
        # Whether more or less of another number is better, nobody says: then the last round counts.
        return factor * (found.best if which == "best" and metric.is_share else found.last)

    return Value(
        metric.title,
        read,
        "%" if metric.is_share else "",
        ("lower" if metric.lower_is_better else "higher") if metric.is_share else "",
        by_round=metric.is_share,
    )


def require_known(names: Collection[str], runs: Collection[LoadedRun]) -> None:
    """A name that no run knows is a mistake; one that some do not know leaves a gap."""
    columns = {name for run in runs for name in run.metrics.columns} - {"round"}
    for name in names:
        if name not in columns | set(FURTHER) | set(ROUND_COLUMNS):
            raise UnknownName("metric", name, columns | set(FURTHER))
