"""From measured rounds to rounds that cannot be measured: more clients, and a link of a given speed.

A formula that was held against measurements at several numbers of clients is trusted for a million. Clients are
taken to be alike: each holds as many classes as one does on average in the largest measured setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedsim.costs.formula import ALL_HELD
from fedsim.costs.measured import WAYS, Flow, MethodCost, SettingCosts
from fedsim.errors import UserError

BITS_PER_BYTE = 8


@dataclass(frozen=True)
class Link:
    """A client's line, in megabits per second."""

    up_mbit: float
    down_mbit: float

    def seconds(self, flow: Flow, num_rounds: int) -> float:
        """How long the client with the most bytes needs in a round."""
        speed = self.up_mbit if flow.way == "up" else self.down_mbit
        return flow.largest_client_bytes / num_rounds * BITS_PER_BYTE / (speed * 1e6)


def parse_link(text: str) -> Link:
    """`10/50`: 10 Mbit/s up, 50 down."""
    up, _, down = text.partition("/")
    try:
        link = Link(float(up), float(down))
    except ValueError:
        link = Link(0.0, 0.0)
    if not (0 < link.up_mbit < float("inf") and 0 < link.down_mbit < float("inf")):
        raise UserError(f"--link wants the speed up and down in Mbit/s, such as 10/50, not {text!r}.")
    return link


@dataclass(frozen=True)
class Point:
    """One round of a method with a number of clients."""

    method: str
    clients: int
    measured: bool
    elements_up: int
    elements_down: int
    wire_bytes: int

    @property
    def elements(self) -> int:
        return self.elements_up + self.elements_down


def points(series: Sequence[SettingCosts], num_clients: int) -> list[Point]:
    """All that was measured, with ascending numbers of clients, and on by the formulae to `num_clients`."""
    measured = []
    for setting in series:
        for method in setting.methods:
            amounts = (*(method.flow(way).elements for way in WAYS), method.flow("both").wire_bytes)
            a_round = (amount // setting.num_rounds for amount in amounts)
            measured.append(Point(method.name, setting.num_clients, True, *a_round))
    return [*measured, *(project(method, series[-1], num_clients) for method in series[-1].methods)]


def project(method: MethodCost, setting: SettingCosts, num_clients: int) -> Point:
    """By the formulae and the letters of the setting. As many wire bytes for each element, or without any elements
    for each client, as were measured."""
    letters = {
        name: value * num_clients // setting.num_clients if name in ("M", ALL_HELD) else value
        for name, value in method.letters.items()
    }
    up, down = (method.formulae[way].evaluate(letters) for way in WAYS)
    wire_bytes = 0.0
    for way, elements in zip(WAYS, (up, down), strict=True):
        flow = method.flow(way)
        grown = elements * setting.num_rounds / flow.elements if flow.elements else None
        wire_bytes += flow.wire_bytes / setting.num_rounds * (grown or num_clients / setting.num_clients)
    return Point(method.name, num_clients, False, up, down, round(wire_bytes))
