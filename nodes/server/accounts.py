"""The run's books: every message that the server sends or receives goes through here, then the kernel is asked."""

from collections.abc import Iterable
from typing import Any

from protocol.audit import Audit, Traffic, Verdict
from protocol.ledger import BEFORE_FIRST_ROUND, Ledger, Receipt, framing_receipt
from protocol.transport import ServerSocket

NOBODY = -1
"""The client of a message whose sender is not known."""

LEVELS = ("elements", "payload_bytes", "message_bytes", "wire_bytes")
PURPOSES = ("method", "evaluation", "setup", "control")


class Accounts:
    """A ledger that knows the round we are in, and whose part in it is the method's own cost."""

    def __init__(self, socket: ServerSocket):
        self.ledger = Ledger()
        self.round = BEFORE_FIRST_ROUND
        self._cohort: frozenset[int] = frozenset()
        self._socket = socket
        self._must_agree: frozenset[int] = frozenset()

    def begin_round(self, round: int, cohort: Iterable[int]) -> None:
        self.round, self._cohort = round, frozenset(cohort)

    def purpose_of_work(self, client: int) -> str:
        """What questions to a client, and its answers, are booked as in this round."""
        return "method" if client in self._cohort else "evaluation"

    def sent(self, receipt: Receipt, client: int, purpose: str) -> None:
        self.ledger.record(receipt, round=self.round, client=client, direction="down", purpose=purpose)

    def received(self, receipt: Receipt, client: int, purpose: str) -> None:
        self.ledger.record(receipt, round=self.round, client=client, direction="up", purpose=purpose)

    def note_open_connections(self) -> None:
        """Called when all has been said, before everybody is told to stop: what ends now ends in order."""
        self._must_agree = frozenset(c.number for c in self._socket.connections.all if c.is_open)

    def kernel_total(self) -> Traffic | None:
        """What the kernel has counted so far on all connections together; None where it has no counters."""
        counters = [c.read() for c in self._socket.connections.all if c.client is not None]
        known = [item for item in counters if item is not None]
        if len(known) < len(counters):
            return None
        return Traffic(sum(item.sent for item in known), sum(item.received for item in known))

    def audit(self) -> list[Audit]:
        """Every client's connection beside the kernel's counters; adds handshakes to the ledger."""
        audits = []
        for connection in self._socket.connections.all:
            if connection.client is None:
                continue
            for direction, size in zip(("down", "up"), connection.handshake_bytes(), strict=True):
                self.ledger.record(
                    framing_receipt("handshake", size),
                    round=BEFORE_FIRST_ROUND,
                    client=connection.client,
                    direction=direction,
                    purpose="control",
                )
            audits.append(connection.audit(must_agree=connection.number in self._must_agree))
        return audits


def traffic_summary(ledger: Ledger) -> dict[str, dict[str, dict[str, int]]]:
    """{purpose: {direction: the four levels}}, with the sum of all purposes as `total`; and decoded bytes, where
    arrays were encoded."""
    everything = ledger.total()
    is_coded = everything.decoded_bytes != everything.payload_bytes
    levels = (*LEVELS, "decoded_bytes") if is_coded else LEVELS

    def both(**wanted: str) -> dict[str, dict[str, int]]:
        totals = {way: ledger.total(direction=way, **wanted) for way in ("up", "down")}
        return {way: {level: getattr(total, level) for level in levels} for way, total in totals.items()}

    return {**{purpose: both(purpose=purpose) for purpose in PURPOSES}, "total": both()}


def audit_summary(audits: list[Audit]) -> dict[str, Any]:
    """What the closing table says of the kernel check; what was cut has the kernel's bounds beside it."""
    by_verdict = {verdict: [audit for audit in audits if audit.verdict is verdict] for verdict in Verdict}
    return {
        "connections": len(audits),
        "checked": len(audits) - len(by_verdict[Verdict.UNCHECKED]),
        "agree": len(by_verdict[Verdict.AGREES]),
        "cut": [_bounds(audit) for audit in by_verdict[Verdict.CUT]],
        "differences": [_difference(audit) for audit in by_verdict[Verdict.DIFFERS]],
    }


def _bounds(audit: Audit) -> dict[str, Any]:
    """How much of what was booked has certainly arrived, and how much has left or come at all."""
    assert audit.kernel is not None
    return {
        "connection": audit.connection,
        "client": audit.client,
        "booked_sent_bytes": audit.counted.sent,
        "sent_bytes": [audit.kernel.acknowledged, audit.kernel.sent],
        "booked_received_bytes": audit.counted.received,
        "received_bytes": audit.kernel.received,
    }


def _difference(audit: Audit) -> dict[str, Any]:
    assert audit.difference is not None
    return {
        "connection": audit.connection,
        "client": audit.client,
        "sent_difference_bytes": audit.difference.sent,
        "received_difference_bytes": audit.difference.received,
    }
