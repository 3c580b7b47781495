"""The run's books: every message that the server sends or receives goes through here, then the kernel is asked."""

from collections.abc import Iterable
from typing import Any

from protocol.kernel import TcpCounters
from protocol.ledger import BEFORE_FIRST_ROUND, Audit, Ledger, Receipt, framing_receipt
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
        self._ended_early: set[int] = set()

    def begin_round(self, round: int, cohort: Iterable[int]) -> None:
        self.round, self._cohort = round, frozenset(cohort)

    def purpose_of_work(self, client: int) -> str:
        """What questions to a client, and its answers, are booked as in this round."""
        return "method" if client in self._cohort else "evaluation"

    def sent(self, receipt: Receipt, client: int, purpose: str) -> None:
        self.ledger.record(receipt, round=self.round, client=client, direction="down", purpose=purpose)

    def received(self, receipt: Receipt, client: int, purpose: str) -> None:
        self.ledger.record(receipt, round=self.round, client=client, direction="up", purpose=purpose)

    def note_ended_connections(self) -> None:
        """Called before everybody is told to stop: whoever has hung up by now did so early."""
        self._ended_early = {c.number for c in self._socket.connections.all if not c.is_open}

    def kernel_total(self) -> TcpCounters | None:
        """What the kernel has counted so far on all connections together; None where it has no counters."""
        counters = [c.read() for c in self._socket.connections.all if c.client is not None]
        known = [item for item in counters if item is not None]
        if len(known) < len(counters):
            return None
        return TcpCounters(sum(item.sent for item in known), sum(item.received for item in known))

    def audit(self) -> list[Audit]:
        """Every client's connection beside the kernel's counters; adds handshakes and heartbeats to the ledger."""
        audits = []
        for connection in self._socket.connections.all:
            if connection.client is None:
                continue
            audit = connection.audit(closed_early=connection.number in self._ended_early)
            for (kind, direction), size in connection.framing_bytes(audit.heartbeats).items():
                if size:
                    self.ledger.record(
                        framing_receipt(kind, size),
                        round=BEFORE_FIRST_ROUND,
                        client=connection.client,
                        direction=direction,
                        purpose="control",
                    )
            audits.append(audit)
        return audits


def traffic_summary(ledger: Ledger) -> dict[str, dict[str, dict[str, int]]]:
    """{purpose: {direction: the four levels}}, with the sum of all purposes as `total`."""

    def both(**wanted: str) -> dict[str, dict[str, int]]:
        totals = {way: ledger.total(direction=way, **wanted) for way in ("up", "down")}
        return {way: {level: getattr(total, level) for level in LEVELS} for way, total in totals.items()}

    return {**{purpose: both(purpose=purpose) for purpose in PURPOSES}, "total": both()}


def audit_summary(audits: list[Audit]) -> dict[str, Any]:
    """What the closing table says of the kernel check; every difference with its size."""
    checked = [(audit, audit.difference) for audit in audits if audit.difference is not None]
    differences = [
        {
            "connection": audit.connection,
            "client": audit.client,
            "sent_difference_bytes": difference.sent,
            "received_difference_bytes": difference.received,
            "ended_early": audit.closed_early,
        }
        for audit, difference in checked
        if not audit.agrees
    ]
    return {
        "connections": len(audits),
        "checked": len(checked),
        "agree": len(checked) - len(differences),
        "heartbeats": sum(audit.heartbeats.pings for audit in audits),
        "differences": differences,
    }
