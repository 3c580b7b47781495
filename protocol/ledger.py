"""Who sent how much of what in which round, at four levels, and whether the kernel saw the same.

    elements       numbers of knowledge, as the papers count them (indices and headers are not knowledge)
    payload bytes  the arrays
    message bytes  all frames: arrays and headers
    wire bytes     all frames with ZMTP's framing and, where on, CURVE; handshakes; heartbeats

Counts come from frame lengths before decoding, so that refused messages count too.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from protocol import wire
from protocol.kernel import TcpCounters
from protocol.messages import ArraySpec

# Payloads that travel beside the knowledge: counted in bytes, never in elements.
UNCOUNTED = frozenset({"index", "experiment"})
BEFORE_FIRST_ROUND = -1


class Part(NamedTuple):
    """What one frame of a message cost."""

    payload: str
    elements: int
    payload_bytes: int
    message_bytes: int
    wire_bytes: int


@dataclass(frozen=True)
class Receipt:
    """What one message cost, frame by frame."""

    message: str
    parts: tuple[Part, ...]

    @property
    def wire_bytes(self) -> int:
        return sum(part.wire_bytes for part in self.parts)


def receipt_of(message: str, lengths: Sequence[int], specs: Sequence[ArraySpec], *, curve: bool) -> Receipt:
    """A receipt from frame lengths; `specs` is empty for a message that could not be decoded."""
    header, *arrays = lengths
    parts = [Part("header", 0, 0, header, wire.frame_bytes(header, curve=curve))]
    for position, length in enumerate(arrays):
        spec = specs[position] if position < len(specs) else None
        payload = spec.payload if spec else "unknown"
        counted = spec is not None and payload not in UNCOUNTED
        elements = _product(spec.shape) if spec and counted else 0
        parts.append(Part(payload, elements, length, length, wire.frame_bytes(length, curve=curve)))
    return Receipt(message, tuple(parts))


def framing_receipt(message: str, wire_bytes: int) -> Receipt:
    """Bytes that belong to no message: handshakes and heartbeats."""
    return Receipt(message, (Part(message, 0, 0, 0, wire_bytes),))


def _product(shape: Iterable[int]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


class Key(NamedTuple):
    """What a row of the ledger is about."""

    round: int
    client: int
    direction: str  # "up" or "down"
    purpose: str  # "method", "evaluation", "setup" or "control"
    message: str
    payload: str


@dataclass
class Amounts:
    """The four levels, and how many frames they sum."""

    frames: int = 0
    elements: int = 0
    payload_bytes: int = 0
    message_bytes: int = 0
    wire_bytes: int = 0

    def add(self, part: Part) -> None:
        self.frames += 1
        self.elements += part.elements
        self.payload_bytes += part.payload_bytes
        self.message_bytes += part.message_bytes
        self.wire_bytes += part.wire_bytes

    def __iadd__(self, other: "Amounts") -> "Amounts":
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))
        return self


class Ledger:
    """The sum of all receipts."""

    def __init__(self) -> None:
        self._rows: dict[Key, Amounts] = defaultdict(Amounts)
        self.wire_bytes: Counter[str] = Counter()
        """By direction: a running sum, because every round asks for it and the rows grow with the rounds."""

    def record(self, receipt: Receipt, *, round: int, client: int, direction: str, purpose: str) -> None:
        for part in receipt.parts:
            key = Key(round, client, direction, purpose, receipt.message, part.payload)
            self._rows[key].add(part)
            self.wire_bytes[direction] += part.wire_bytes

    def total(self, **wanted: object) -> Amounts:
        """The sum over all rows that have the wanted values: `total(direction="up", purpose="method")`."""
        result = Amounts()
        for key, amounts in self._rows.items():
            if all(getattr(key, name) == value for name, value in wanted.items()):
                result += amounts
        return result

    def rows(self) -> list[dict[str, int | str]]:
        """One flat mapping a row, in a fixed order; what ledger.csv holds."""
        return [
            {**key._asdict(), **{item.name: getattr(amounts, item.name) for item in fields(amounts)}}
            for key, amounts in sorted(self._rows.items())
        ]

    def restore(self, rows: Iterable[Mapping[str, int | str]]) -> None:
        """Take back what `rows` gave."""
        for row in rows:
            texts = (str(row[name]) for name in Key._fields[2:])
            key = Key(int(row["round"]), int(row["client"]), *texts)
            self._rows[key] = Amounts(*(int(row[item.name]) for item in fields(Amounts)))
        self.wire_bytes = Counter()
        for key, amounts in self._rows.items():
            self.wire_bytes[key.direction] += amounts.wire_bytes


class Heartbeats(NamedTuple):
    """Only clients ping. The server answers every ping but perhaps the last, which may come as it closes."""

    pings: int
    pongs: int


NO_HEARTBEATS = Heartbeats(0, 0)


@dataclass(frozen=True)
class Audit:
    """One connection: what we counted beside what the kernel counted."""

    connection: int
    client: int | None
    counted: TcpCounters
    kernel: TcpCounters | None
    heartbeats: Heartbeats = NO_HEARTBEATS
    closed_early: bool = False

    @property
    def difference(self) -> TcpCounters | None:
        """Kernel minus ours, per direction; None where the platform has no counters."""
        if self.kernel is None:
            return None
        return TcpCounters(self.kernel.sent - self.counted.sent, self.kernel.received - self.counted.received)

    @property
    def agrees(self) -> bool:
        return self.difference == TcpCounters(0, 0)


def solve_heartbeats(sent_difference: int, received_difference: int, *, curve: bool) -> Heartbeats:
    """How many heartbeats explain both differences at once; none when no number does.

    k pings received are k pongs sent, or k − 1: two equations, and hardly more than one unknown.
    """
    pings, ping_rest = divmod(received_difference, wire.ping_bytes(curve=curve))
    pongs, pong_rest = divmod(sent_difference, wire.pong_bytes(curve=curve))
    explained = pings > 0 and ping_rest == pong_rest == 0 and pongs in (pings - 1, pings)
    return Heartbeats(pings, pongs) if explained else NO_HEARTBEATS
