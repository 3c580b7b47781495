"""What a round costs: the formula beside what was measured, for methods in a setting.

Four levels as in the ledger, and the kernel's count of the same bytes as the witness. A round is one in which all
clients take part: everyone is sent what the last round made, and everyone answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedsim.costs.formula import Formula
from fedsim.costs.printed import Printed

WAYS = ("up", "down")


@dataclass(frozen=True)
class Flow:
    """All that went one way in the rounds that were measured."""

    way: str
    """up, down, both, or set-up up and set-up down: what travels once, before the first round."""
    formula: str
    """Of one round, or of the set-up."""
    expected: int
    """Elements by the formula."""
    elements: int
    payload_bytes: int
    message_bytes: int
    wire_bytes: int
    kernel_bytes: int | None
    """None where there is nothing to compare: no counters on this platform, or part of joining."""
    largest_client_bytes: int = 0
    """Wire bytes of the client with the most of them."""
    heartbeat_bytes: int = 0
    """Of the wire bytes."""
    printed: Printed | None = None

    @property
    def formula_agrees(self) -> bool:
        return self.expected == self.elements

    @property
    def kernel_agrees(self) -> bool:
        return self.kernel_bytes is None or self.kernel_bytes == self.wire_bytes

    @property
    def overhead_percent(self) -> float | None:
        """Wire bytes beyond the payload; None where there is no payload."""
        return 100 * (self.wire_bytes / self.payload_bytes - 1) if self.payload_bytes else None


@dataclass(frozen=True)
class MethodCost:
    """One method in one setting."""

    name: str
    title: str
    formulae: Mapping[str, Formula]
    """By direction, as the contract names them."""
    letters: Mapping[str, int]
    """What the letters of its formulae stand for."""
    flows: tuple[Flow, ...]
    """Up and down of the measured rounds, then the set-up where the method has one."""
    num_connections: int
    num_agreeing: int
    """Connections on which the kernel counted the same bytes from the first to the last, both ways."""
    num_reconciled: int
    """Connections for which the platform has counters."""
    differences: tuple[str, ...] = ()
    """Of the others, in words."""
    num_heartbeats: int = 0
    seconds: float = 0.0
    printed_both: Printed | None = None
    note: str = ""
    """What formulae cannot say, from the contract."""

    @property
    def agrees(self) -> bool:
        """Every formula is its measurement, and every wire count the kernel's."""
        flows_agree = all(flow.formula_agrees and flow.kernel_agrees for flow in self.flows)
        return flows_agree and self.num_agreeing == self.num_reconciled

    def flow(self, way: str) -> Flow:
        return next(flow for flow in self.flows if flow.way == way)

    @property
    def both(self) -> Flow:
        """Up and down together, as FedTGP's table 5 counts."""
        up, down = (self.flow(way) for way in WAYS)
        known = up.kernel_bytes is not None and down.kernel_bytes is not None
        return Flow(
            way="both",
            formula="",
            expected=up.expected + down.expected,
            elements=up.elements + down.elements,
            payload_bytes=up.payload_bytes + down.payload_bytes,
            message_bytes=up.message_bytes + down.message_bytes,
            wire_bytes=up.wire_bytes + down.wire_bytes,
            kernel_bytes=(up.kernel_bytes or 0) + (down.kernel_bytes or 0) if known else None,
            largest_client_bytes=up.largest_client_bytes + down.largest_client_bytes,
            heartbeat_bytes=up.heartbeat_bytes + down.heartbeat_bytes,
            printed=self.printed_both,
        )

    @property
    def lines(self) -> tuple[Flow, ...]:
        """In the order of a table: up, down, both, set-up."""
        return (*self.flows[:2], self.both, *self.flows[2:])


@dataclass(frozen=True)
class SettingCosts:
    """All methods in one setting."""

    dataset: str
    group: str
    num_clients: int
    num_rounds: int
    letters: Mapping[str, int]
    """Those that every method shares: C, K, M, the classes held, the image."""
    methods: tuple[MethodCost, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    """Methods that cannot work here, by title, and why: the dash in the papers' tables."""
    curve: bool = False
    heartbeat_seconds: float = 0.0

    @property
    def title(self) -> str:
        rounds = "one round" if self.num_rounds == 1 else f"{self.num_rounds} rounds"
        secured = ", CURVE" if self.curve else ""
        return f"{self.dataset}, {self.group}, {self.num_clients} clients: {rounds}{secured}"

    @property
    def agrees(self) -> bool:
        return all(method.agrees for method in self.methods)
