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
    cut = audit.get("cut", [])
    bounded = f"; {counted(len(cut), 'connection')} cut, within the kernel's bounds" if cut else ""
    return (
        f"the kernel agrees to the byte on {audit['agree']} of {audit['connections']} connections, "
        f"in both directions{bounded}"
    )


def cut_line(cut: dict[str, Any]) -> str:
    least, most = cut["sent_bytes"]
    arrived = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    unknown = "" if least == most else ", how many cannot be known"
    return (
        f"connection {cut['connection']} (client {cut['client']}) was cut: of {cut['booked_sent_bytes']:,} bytes "
        f"sent {arrived} arrived{unknown}; of {cut['received_bytes']:,} that came "
        f"{cut['booked_received_bytes']:,} were whole messages"
    )


def difference_line(difference: dict[str, Any]) -> str:
    return (
        f"AUDIT: connection {difference['connection']} (client {difference['client']}): against the ledger "
        f"the kernel sent {difference['sent_difference_bytes']:+d} bytes "
        f"and received {difference['received_difference_bytes']:+d}"
    )
