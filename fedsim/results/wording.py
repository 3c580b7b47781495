"""Numbers and findings in words: the same on the terminal and on the page."""

from typing import Any


def counted(number: int, noun: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size(count: int) -> str:
    """Bytes for people: powers of ten, as communication costs are given."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1000
    return f"{value:.2f} TB"


def audit_line(audit: dict[str, Any]) -> str:
    if not audit["connections"]:
        return "no client ever joined, so there is nothing to reconcile"
    if not audit["checked"]:
        return "not reconciled: this platform has no TCP byte counters"
    return (
        f"the kernel agrees to the byte on {audit['agree']} of {audit['connections']} connections, "
        "in both directions"
    )


def difference_line(difference: dict[str, Any]) -> str:
    early = ", which ended early" if difference["ended_early"] else ""
    return (
        f"AUDIT: connection {difference['connection']} (client {difference['client']}){early}: against the ledger "
        f"the kernel sent {difference['sent_difference_bytes']:+d} bytes "
        f"and received {difference['received_difference_bytes']:+d}"
    )
