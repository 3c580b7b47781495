"""Metrics have one home: what clients and the server may report, how it is pooled, and how it is shown.

A client answers with named scalars, and so does the server's step. All of them are recorded, whatever their names:

    a client's `correct` of `tested`       clients.csv, and over all clients `accuracy` in metrics.csv
               `x_correct` of `x_tested`   clients.csv, and over all clients `x_accuracy` in metrics.csv
               `loss`                      clients.csv, and its mean `train_loss` in metrics.csv; a client that
                                           trained no batch has none
               any other `x`               clients.csv, and its mean `x` over the clients that reported it
    the server's `x`                       metrics.csv

Each column of metrics.csv is a line in TensorBoard and is in the report: its last value, its range, and a curve.
What a name means to people is said in `KNOWN`; a name that is not there is shown as it is.

A number that is not finite says nothing: it stays in clients.csv, but no mean, best round or curve counts it. Only
of a loss that is not finite the mean is not finite either, for the training of a client has gone wrong.
"""

import math
import re
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from fedsim.errors import ContractError

Metrics = dict[str, float]
"""What a half of a method reports."""
Reported = dict[str, float | None]
"""The same as it comes from a client's training: what is None, such as the loss of no batches, is left out."""
Row = dict[str, float | int | None]
"""One round in metrics.csv; None where there is nothing to say."""

CLIENT_COLUMNS = ("round", "client", "correct", "tested", "loss")
"""What clients.csv always has; further columns are what else clients report."""
GPU_PEAK_BYTES = "gpu_peak_bytes"
"""Among what a client's work took: the most memory that it had of its GPU."""


@dataclass(frozen=True)
class Metric:
    """How a column of metrics.csv is shown to people."""

    title: str
    is_share: bool = False
    """Written in per cent and judged by its best round; all others are numbers."""
    lower_is_better: bool = False
    plot: Literal["accuracy", "panel", ""] = "panel"
    """Drawn among the accuracies, in a panel of its own, or nowhere: other pictures say more."""
    meaning: str = ""
    """A sentence for those that a title does not explain."""

    @property
    def label(self) -> str:
        """For a line or a column where it is plain that it is an accuracy of clients."""
        return self.title.removeprefix("clients ").removesuffix(" accuracy")

    def text(self, value: float | None) -> str:
        if value is None or not math.isfinite(value):
            return "–"
        return percent(value) if self.is_share else f"{value:,.6g}"


def _accuracy(title: str) -> Metric:
    return Metric(title, is_share=True, plot="accuracy")


_ALWAYS = {
    "accuracy": Metric("accuracy", is_share=True, plot=""),  # one of the next two, as run.metric says
    "pooled_accuracy": _accuracy("all samples"),
    "client_mean_accuracy": _accuracy("mean client"),
    "correct": Metric("correct", plot=""),
    "tested": Metric("tested", plot=""),
    "clients": Metric("clients", plot=""),
    "expected": Metric("clients expected", plot=""),
    "absent": Metric("clients absent as planned", plot=""),
    "lost": Metric("clients lost", plot=""),
    "train_loss": Metric("train loss"),
}
ROUND_COLUMNS = ("round", *_ALWAYS)
"""What metrics.csv always has."""

KNOWN = _ALWAYS | {
    "server_accuracy": _accuracy("server"),
    "logit_accuracy": _accuracy("clients by logits"),
    "prototype_accuracy": _accuracy("clients by prototypes"),
    "trained_accuracy": _accuracy("clients before distillation"),
    "distilled_accuracy": _accuracy("clients after distillation"),
    "global_accuracy": _accuracy("clients on the global test set"),
    "worst_tenth_accuracy": _accuracy("worst tenth of clients"),
    "client_deviation": Metric("deviation over clients", is_share=True, lower_is_better=True),
    "macro_f1": Metric("F1 (macro, mean client)", is_share=True),
    "micro_auc": Metric("AUC (micro)", is_share=True),
    "mmd": Metric(
        "MMD",
        meaning="FedKTL's server: how far latents that its transformer F makes of the clients' prototypes are, "
        "as a distribution, from latents that the generator takes for valid (maximum mean discrepancy, Eq. 3), at "
        "the end of a round's training; mmd_first is the same before it. It falls as F learns what is valid.",
    ),
    "mse": Metric(
        "MSE",
        meaning="FedKTL's server: the mean squared distance between latents of the same class and their centre "
        "(Eq. 2), at the end of the round's training; mse_first is the same before it. It falls when classes stay "
        "apart and prototypes of one class share a latent.",
    ),
    "margin_max": Metric("margin max", plot=""),
    "margin_mean": Metric("margin mean", plot=""),
    "feature_norm": Metric("length of features", plot=""),
    "prototype_norm": Metric("length of prototypes, mean", plot=""),
    "prototype_norm_min": Metric("length of prototypes, shortest", plot=""),
    "prototype_norm_max": Metric("length of prototypes, longest", plot=""),
}

_SAID_OF_A_ROUND = (
    *("event", "time", "seconds", "collect_seconds"),
    *("wire_bytes_up", "wire_bytes_down", "kernel_bytes_up", "kernel_bytes_down"),
)
"""Beside the row of metrics.csv, in the event of a finished round: a metric cannot have such a name."""
_TAKEN = {*ROUND_COLUMNS, *CLIENT_COLUMNS, *_SAID_OF_A_ROUND}
_FOR_CLIENTS = {"correct", "tested", "loss"}
_WEIGHED = {"micro_auc", "trained_micro_auc", "distilled_micro_auc"}
_NAME = re.compile(r"[\w./-]{1,64}")
_MOST = 64
"""Scalars that a client may report in a round: as many as an answer may carry."""


def describe(name: str) -> Metric:
    """Any column of metrics.csv."""
    title = name.replace("_", " ")
    return KNOWN.get(name) or (_accuracy(title) if name.endswith("_accuracy") else Metric(title))


def percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2f} %"


def check_metrics(metrics: Mapping[str, float], where: str) -> None:
    """A client's. The server computes with the numbers of samples, so they must be numbers of samples."""
    if len(metrics) > _MOST:
        raise ContractError(
            f"{where}: {len(metrics)} metrics, and a client may report {_MOST} a round; report fewer"
        )
    tests = tests_of(metrics)
    _check_names(metrics.keys() - _FOR_CLIENTS, _TAKEN | {f"{prefix}accuracy" for prefix in tests}, where)
    for prefix in tests:
        given = {name: metrics.get(name) for name in (f"{prefix}correct", f"{prefix}tested")}
        correct, tested = (-1.0 if number is None else float(number) for number in given.values())
        if not (correct.is_integer() and tested.is_integer() and 0 <= correct <= tested):
            raise ContractError(f"{where}: metrics {given} are not whole numbers with 0 <= correct <= tested")


def number(name: str, value: object) -> float:
    """A scalar as a method may give it: a number, or a tensor or array of one."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ContractError(f"metric {name!r} is {value!r}, which is not a number") from None


def recorded(metrics: Mapping[str, float]) -> Metrics:
    """A client's as clients.csv has them: counts of samples are whole numbers, whatever they travelled as."""
    return {name: int(value) if _is_count(name) else value for name, value in metrics.items()}


@dataclass(frozen=True)
class Attendance:
    """Who a round is about. Planned absence, such as a share of clients that train at a time, is no loss."""

    expected: int
    absent: int = 0


def round_row(
    round: int,
    of_clients: Sequence[Mapping[str, float]],
    of_server: Mapping[str, Any],
    metric: Literal["pooled", "client_mean"],
    attendance: Attendance | None = None,
    *,
    spread: bool = False,
) -> Row:
    """A row of metrics.csv: what all clients that answered amount to, then what the server has to say.

    Without `attendance` all that were expected have answered. `spread` adds how far clients are apart.
    """
    row = {"round": round, **_pooled(of_clients, metric, attendance or Attendance(len(of_clients)))}
    row |= _spread(_shares(of_clients)) if spread else {}
    _check_names(of_server, _TAKEN | row.keys(), f"server, round {round}")
    return row | {name: value if type(value) is int else number(name, value) for name, value in of_server.items()}


def _pooled(of_clients: Sequence[Mapping[str, float]], metric: str, attendance: Attendance) -> Row:
    """Nothing where nobody could be tested yet."""
    shares = _shares(of_clients)
    correct, tested = _counts(of_clients, "")
    pooled, mean = _share(correct, tested), _mean(shares)
    tests = sorted({prefix for metrics in of_clients for prefix in tests_of(metrics)} - {""})
    own = dict.fromkeys(name for metrics in of_clients for name in metrics if not _is_count(name))
    own.pop("loss", None)
    return {
        "accuracy": pooled if metric == "pooled" else mean,
        "pooled_accuracy": pooled,
        "client_mean_accuracy": mean,
        "correct": correct,
        "tested": tested,
        "clients": len(of_clients),
        "expected": attendance.expected,
        "absent": attendance.absent,
        "lost": attendance.expected - len(of_clients),
        "train_loss": _mean([metrics["loss"] for metrics in of_clients if "loss" in metrics]),
        **{f"{prefix}accuracy": _share(*_counts(of_clients, prefix)) for prefix in tests},
        **{name: _mean_of(of_clients, name) for name in own},
    }


def _shares(of_clients: Sequence[Mapping[str, float]]) -> list[float]:
    """The accuracy of each client that could be tested."""
    return [metrics["correct"] / metrics["tested"] for metrics in of_clients if metrics.get("tested")]


def _spread(shares: Sequence[float]) -> Row:
    """The deviation of clients' accuracies, of all there are, so divided by their number."""
    return {
        "client_deviation": statistics.pstdev(shares) if shares else None,
        "worst_tenth_accuracy": worst_tenth(shares),
    }


def worst_tenth(shares: Sequence[float]) -> float | None:
    """The mean of the tenth of the clients that has the lowest accuracies; at least one client."""
    return _mean(sorted(shares)[: max(1, len(shares) // 10)])


def _mean_of(of_clients: Sequence[Mapping[str, float]], name: str) -> float | None:
    """Over the clients that reported a finite number; of AUC weighed by their test samples, as others report
    it."""
    told = [metrics for metrics in of_clients if math.isfinite(metrics.get(name, math.nan))]
    if name in _WEIGHED and (tested := math.fsum(metrics.get("tested", 0) for metrics in told)):
        return math.fsum(metrics[name] * metrics.get("tested", 0) for metrics in told) / tested
    return _mean([metrics[name] for metrics in told])


def _check_names(names: Collection[str], taken: Collection[str], where: str) -> None:
    for name in sorted(names):
        if not _NAME.fullmatch(name):
            raise ContractError(f"{where}: a metric is called {name!r}; use letters, digits and _ . / - only")
        if name in taken:
            raise ContractError(f"{where}: metric {name!r} has a name that is taken; give it another")


def tests_of(metrics: Iterable[str]) -> list[str]:
    """The tests that a client was put to: "" for its own test set, "global_" for `global_correct`."""
    return sorted({name.removesuffix(name.rpartition("_")[2]) for name in metrics if _is_count(name)})


def _is_count(name: str) -> bool:
    return name.rpartition("_")[2] in ("correct", "tested")


def _counts(of_clients: Sequence[Mapping[str, float]], prefix: str) -> tuple[int, int]:
    correct, tested = (sum(map(int, _values(of_clients, f"{prefix}{what}"))) for what in ("correct", "tested"))
    return correct, tested


def _values(of_clients: Sequence[Mapping[str, float]], name: str) -> list[float]:
    return [metrics[name] for metrics in of_clients if name in metrics]


def _share(correct: int, tested: int) -> float | None:
    return correct / tested if tested else None


def _mean(values: Sequence[float]) -> float | None:
    try:
        return math.fsum(values) / len(values) if values else None
    except (OverflowError, ValueError):  # of numbers that are too large, or infinite with both signs
        return math.nan


class BestAndLast(NamedTuple):
    """Of a metric over the rounds. The papers report the best round; of equals it is the earliest."""

    best: float
    best_round: int
    last: float


def best_and_last(name: str, points: Iterable[tuple[int, float | None]]) -> BestAndLast | None:
    """Of (round, value), in the order of rounds; None where nothing was measured."""
    known = [(round, value) for round, value in points if value is not None and math.isfinite(value)]
    if not known:
        return None
    choose = min if describe(name).lower_is_better else max
    best_round, best = choose(known, key=lambda point: point[1])
    return BestAndLast(float(best), int(best_round), float(known[-1][1]))


def further_shares(names: Collection[str]) -> list[str]:
    """Columns of metrics.csv that are shares beside the clients' accuracy: known ones first, as in the table."""
    ordered = [name for name in KNOWN if name in names] + [name for name in names if name not in KNOWN]
    return [name for name in ordered if name not in ROUND_COLUMNS and describe(name).is_share]


def summary(history: Sequence[Row], *, count_partial: bool = False) -> dict[str, Any]:
    """What was learned, for summary.json and the closing table.

    A round in which clients were lost is about the others only, who may have the easier data: it is neither the
    best nor the last one, unless the user wants it to be.
    """
    partial = [int(row["round"] or 0) for row in history if row.get("lost")]

    def of_run(name: str) -> BestAndLast | None:
        points = ((int(row["round"] or 0), row.get(name)) for row in history)
        return best_and_last(name, (point for point in points if count_partial or point[0] not in partial))

    own, names = of_run("accuracy"), dict.fromkeys(name for row in history for name in row)
    return {
        "best_accuracy": own and own.best,
        "best_round": own and own.best_round,
        "final_accuracy": own and own.last,
        "partial_rounds": partial,
        "accuracy_by_round": {
            str(row["round"]): row["accuracy"] for row in history if row["accuracy"] is not None
        },
        "further_accuracies": {
            name: found._asdict() for name in further_shares(names) if (found := of_run(name)) is not None
        },
    }
