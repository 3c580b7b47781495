"""One client's part of a round: receive what came down, evaluate, train, upload. The same in every node."""

import time
from dataclasses import dataclass, field

from fedsim.contract import Arrays
from fedsim.method import Client
from fedsim.metrics import Metrics, number


@dataclass(frozen=True)
class Order:
    """What a client is asked to do. With neither train nor evaluate it is only asked to save its state."""

    round: int
    train: bool
    evaluate: bool


@dataclass(frozen=True)
class Report:
    """What a client answers: scalars, where its time went, and what goes up."""

    metrics: Metrics = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


def carry_out(client: Client, order: Order, down: Arrays) -> Report:
    """`down` is empty before the first aggregation."""
    metrics: Metrics = {}
    seconds: dict[str, float] = {}
    arrays: Arrays = {}
    clock = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        seconds[name] = now - clock
        clock = now

    if order.train or order.evaluate:
        client.receive(order.round, down)
        lap("receive")
    if order.evaluate:
        metrics |= client.evaluate()
        lap("evaluate")
    if order.train:
        metrics |= client.train(order.round)
        lap("train")
        arrays = client.upload()
        lap("upload")
    # As they come off the wire: a number that travelled is a float.
    return Report({name: number(name, value) for name, value in metrics.items()}, seconds, arrays)
