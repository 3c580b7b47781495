"""What became of one client in one round, by the virtual clock (referee.py)."""

from dataclasses import dataclass

COUNTS = "counts"


@dataclass(frozen=True)
class Ruling:
    """Seconds of the virtual clock since the run began."""

    client: int
    outcome: str
    """counts, late, dropped or away."""
    begins: float
    ends: float
    """When its answer came, or it went; the round's beginning of one that was away."""
