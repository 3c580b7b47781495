"""Whether the kernel saw the bytes that we counted, connection by connection.

A connection that ended in order agrees to the byte. One that was cut cannot: what was handed to ZeroMQ may have
left in part, and of the last message that came a part may be missing. But the kernel's counters bound it, and
the ledger is held to the bounds:

    acknowledged ≤ sent by the kernel ≤ counted as sent        counted as received ≤ received by the kernel
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from protocol.kernel import TcpCounters


class Traffic(NamedTuple):
    """Bytes of one connection, in each direction."""

    sent: int
    received: int


class Verdict(StrEnum):
    AGREES = "agrees"
    """To the byte, in both directions."""
    CUT = "cut"
    """How much arrived cannot be known; what we counted is within the kernel's bounds."""
    DIFFERS = "differs"
    """Nothing explains the difference: we have counted wrongly."""
    UNCHECKED = "unchecked"
    """There are no counters."""


@dataclass(frozen=True)
class Audit:
    """One connection: what we counted beside what the kernel counted."""

    connection: int
    client: int | None
    counted: Traffic
    kernel: TcpCounters | None
    must_agree: bool = True
    """It lived until everybody was told to stop, after all had been said."""

    @property
    def difference(self) -> Traffic | None:
        """Kernel minus ours, per direction; None where the platform has no counters."""
        if self.kernel is None:
            return None
        return Traffic(self.kernel.sent - self.counted.sent, self.kernel.received - self.counted.received)

    @property
    def verdict(self) -> Verdict:
        kernel, counted = self.kernel, self.counted
        if kernel is None:
            return Verdict.UNCHECKED
        if self.difference == Traffic(0, 0):
            return Verdict.AGREES
        if self.must_agree and kernel.peer_closed:
            return Verdict.DIFFERS
        within = kernel.sent <= counted.sent and counted.received <= kernel.received
        return Verdict.CUT if within else Verdict.DIFFERS

    @property
    def agrees(self) -> bool:
        return self.verdict is Verdict.AGREES
