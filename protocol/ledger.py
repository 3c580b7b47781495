"""Who sent how much of what in which round, at four levels.

    elements       numbers of knowledge, as the papers count them (indices and headers are not knowledge)
    payload bytes  the arrays, as they travel
    message bytes  all frames: arrays and headers
    wire bytes     all frames with ZMTP's framing and, where on, CURVE; handshakes

Where arrays travel in encodings there is one more: decoded bytes, the arrays as both ends have them in memory.
Counts come from frame lengths before decoding, so that refused messages count too.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from protocol import wire
from protocol.limits import DTYPES
from protocol.messages import ArraySpec

# Payloads that travel beside the knowledge: counted in bytes, never in elements.
UNCOUNTED = frozenset({"index", "experiment"})
BEFORE_FIRST_ROUND = -1
_ITEM_BYTES = {name: int(name[1:]) for name in DTYPES}


class Part(NamedTuple):
    """What one frame of a message cost."""

    payload: str
    elements: int
    payload_bytes: int
    message_bytes: int
    wire_bytes: int
    decoded_bytes: int


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
    parts = [Part("header", 0, 0, header, wire.frame_bytes(header, curve=curve), 0)]
    for position, length in enumerate(arrays):
        spec = specs[position] if position < len(specs) else None
        payload = spec.payload if spec else "unknown"
        counted = spec is not None and payload not in UNCOUNTED
        elements = _product(spec.shape) if spec and counted else 0
        decoded = _product(spec.shape) * _ITEM_BYTES[spec.dtype] if spec and spec.encoding else length
        parts.append(Part(payload, elements, length, length, wire.frame_bytes(length, curve=curve), decoded))
    return Receipt(message, tuple(parts))


def framing_receipt(message: str, wire_bytes: int) -> Receipt:
    """Bytes that belong to no message: handshakes."""
    return Receipt(message, (Part(message, 0, 0, 0, wire_bytes, 0),))


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
    """The four levels, how many frames they sum, and what the arrays were before they were encoded."""

    frames: int = 0
    elements: int = 0
    payload_bytes: int = 0
    message_bytes: int = 0
    wire_bytes: int = 0
    decoded_bytes: int = 0

    def add(self, part: Part) -> None:
        self.frames += 1
        self.elements += part.elements
        self.payload_bytes += part.payload_bytes
        self.message_bytes += part.message_bytes
        self.wire_bytes += part.wire_bytes
        self.decoded_bytes += part.decoded_bytes

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
        """One flat mapping a row, in a fixed order; what ledger.csv holds. Decoded bytes are in it only where they
        differ from the payload's in any row."""
        ordered = sorted(self._rows.items())
        names = [item.name for item in fields(Amounts)]
        if all(amounts.decoded_bytes == amounts.payload_bytes for _, amounts in ordered):
            names.remove("decoded_bytes")
        return [{**key._asdict(), **{name: getattr(amounts, name) for name in names}} for key, amounts in ordered]

    def restore(self, rows: Iterable[Mapping[str, int | str]]) -> None:
        """Take back what `rows` gave."""
        for row in rows:
            texts = (str(row[name]) for name in Key._fields[2:])
            key = Key(int(row["round"]), int(row["client"]), *texts)
            # A ledger without encodings does not repeat the payload's bytes.
            complete = {"decoded_bytes": row["payload_bytes"], **row}
            self._rows[key] = Amounts(*(int(complete[item.name]) for item in fields(Amounts)))
        self.wire_bytes = Counter()
        for key, amounts in self._rows.items():
            self.wire_bytes[key.direction] += amounts.wire_bytes
