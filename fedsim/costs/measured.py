"""What a round costs: the formula beside what was measured, for methods in a setting.

Four levels as in the ledger, and the kernel's count of the same bytes as the witness. A round is one in which all
clients take part: everyone is sent what the last round made, and everyone answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedsim.costs.formula import Formula
from fedsim.costs.printed import Printed

WAYS = ("up", "down")


AMOUNTS = (
    *("formula_elements", "elements", "payload_bytes", "message_bytes", "wire_bytes"),
    *("kernel_bytes", "largest_client_bytes", "formula_bytes", "decoded_bytes"),
)


@dataclass(frozen=True, kw_only=True)
class Flow:
    """All that went one way in the rounds that were measured: a line of a table."""

    way: str
    """up, down, both, or set-up up and set-up down: what travels once, before the first round."""
    formula: str = ""
    """Of one round, or of the set-up; none for both ways together."""
    formula_elements: int
    elements: int
    payload_bytes: int
    message_bytes: int
    wire_bytes: int
    kernel_bytes: int | None = None
    """None where there is nothing to compare: no counters on this platform, or part of joining."""
    largest_client_bytes: int = 0
    """Wire bytes of the client with the most of them."""
    printed: Printed | None = None
    encoding: str = ""
    """Which kinds travel in which encoding; nothing where all are as they are."""
    formula_bytes: int | None = None
    """Payload bytes that follow from shapes and encodings; None where they are not known."""
    decoded_bytes: int | None = None
    """The payload as both ends have it in memory; None where it is not known."""

    @property
    def formula_agrees(self) -> bool:
        return self.formula_elements == self.elements and self.formula_bytes in (None, self.payload_bytes)

    @property
    def kernel_agrees(self) -> bool | None:
        return None if self.kernel_bytes is None else self.kernel_bytes == self.wire_bytes

    @property
    def agrees(self) -> bool:
        return self.formula_agrees and self.kernel_agrees is not False

    @property
    def overhead_percent(self) -> float | None:
        """Wire bytes beyond the payload; None where there is no payload."""
        return 100 * (self.wire_bytes / self.payload_bytes - 1) if self.payload_bytes else None


def both_ways(up: Flow, down: Flow, printed: Printed | None = None) -> Flow:
    """Up and down together, as FedTGP's table 5 counts."""
    sums: dict[str, Any] = {"way": "both", "printed": printed}
    sums["encoding"] = up.encoding if up.encoding == down.encoding else ""
    for name in AMOUNTS:
        amounts = (getattr(up, name), getattr(down, name))
        sums[name] = None if None in amounts else sum(amounts)
    return Flow(**sums)


@dataclass(frozen=True, kw_only=True)
class MethodCost:
    """One method in one setting."""

    name: str
    title: str
    formulae: Mapping[str, Formula]
    """By direction, as the contract names them."""
    letters: Mapping[str, int]
    """What the letters of its formulae stand for."""
    note: str = ""
    """What formulae cannot say, from the contract."""
    flows: tuple[Flow, ...]
    """Up, down and both of the measured rounds, then the set-up where the method has one."""
    audit: Mapping[str, Any]
    """The kernel's word on whole connections, as in a run's summary."""

    @property
    def agrees(self) -> bool:
        """Every formula is its measurement, and every wire count the kernel's."""
        return all(flow.agrees for flow in self.flows) and self.audit["agree"] == self.audit["checked"]

    def flow(self, way: str) -> Flow:
        return next(flow for flow in self.flows if flow.way == way)


@dataclass(frozen=True, kw_only=True)
class SettingCosts:
    """All methods in one setting."""

    dataset: str
    group: str
    num_clients: int
    num_rounds: int
    letters: Mapping[str, int]
    """Those that every method shares: C, K, M, the classes held, the input."""
    methods: tuple[MethodCost, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    """Methods that cannot work here, by title, and why: the dash in the papers' tables."""
    curve: bool = False

    @property
    def title(self) -> str:
        rounds = "one round" if self.num_rounds == 1 else f"{self.num_rounds} rounds"
        secured = ", CURVE" if self.curve else ""
        return f"{self.dataset}, {self.group}, {self.num_clients} clients: {rounds}{secured}"

    @property
    def agrees(self) -> bool:
        return all(method.agrees for method in self.methods)
