"""One client's part of a round: receive what came down, evaluate, train, upload. The same in every node."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedsim.contract import Arrays
from fedsim.metrics import Metrics, Reported, number
from protocol.codec import Parcel

LARGE_BYTES = 1 << 16
"""A message of more than this may travel for a while: half a second at 1 Mbit/s. No slot is held meanwhile."""


def num_bytes(parcel: Parcel) -> int:
    """Of its arrays, as they travel."""
    return sum(map(len, parcel.frames))


def is_large(parcel: Parcel) -> bool:
    return num_bytes(parcel) > LARGE_BYTES


if TYPE_CHECKING:  # a client that has its work done by others never loads torch
    from fedsim.method import Client


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
    """By part; and, on a GPU, its peak memory."""
    arrays: Arrays = field(default_factory=dict)
    num_bytes: int = 0
    """Of the arrays, as they travelled; known to whoever received them."""


def carry_out(client: Client, order: Order, down: Arrays) -> Report:
    """`down` is empty before the first aggregation."""
    metrics: Reported = {}
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
        if not client.drops(order.round):
            arrays = client.upload()
            lap("upload")
    # As they come off the wire: a number that travelled is a float.
    told = {name: number(name, value) for name, value in metrics.items() if value is not None}
    return Report(told, seconds, arrays)
