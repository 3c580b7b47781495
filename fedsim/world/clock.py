"""The virtual clock: how long rounds take over given links, without waiting for them. Arithmetic and nothing else.

    what comes down ──► it arrives ──► the client computes ──► its answer arrives ──► the server's own step
       bytes × 8 / rate + delay           seconds                bytes × 8 / rate + delay     seconds

Every client has its link for itself, and the server has room for all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedsim.seeds import Streams
from fedsim.world.links import Direction, Link


@dataclass(frozen=True)
class Part:
    """One client's part of a round."""

    client: int
    down_bytes: int
    compute_seconds: float
    up_bytes: int


@dataclass(frozen=True)
class RoundTime:
    """When a round happens, in seconds since the run began."""

    round: int
    begins: float
    arrives: float
    """When what came down is with everyone, so that its accuracy can be had."""
    ends: float

    @property
    def seconds(self) -> float:
        return self.ends - self.begins


@dataclass(frozen=True)
class Air:
    """All clients' links, with the jitter of each message drawn by the seed."""

    links: Sequence[Link | None]
    seed: int

    def seconds(self, client: int, direction: Direction, num_bytes: float, round: int) -> float:
        """Of a message; nothing where a client has no link."""
        link = self.links[client]
        if link is None:
            return 0.0
        return link.seconds(direction, num_bytes) + link.jitter_seconds * self._luck(client, direction, round)

    def _luck(self, client: int, direction: Direction, round: int) -> float:
        stream = Streams(self.seed).numpy(f"world/jitter/{direction}", client=client, round=round)
        return float(stream.uniform(-1, 1))


def finish(part: Part, air: Air, round: int) -> float:
    """Seconds from the question to the answer, of a client that computes on a device of its own."""
    return (
        air.seconds(part.client, "down", part.down_bytes, round)
        + part.compute_seconds
        + air.seconds(part.client, "up", part.up_bytes, round)
    )


def on_own_devices(
    rounds: Mapping[int, Sequence[Part]], server_seconds: Mapping[int, float], air: Air
) -> list[RoundTime]:
    """One round after the other, each as long as its slowest client and the server's own step."""
    times, now = [], 0.0
    for round, parts in sorted(rounds.items()):
        down = [air.seconds(part.client, "down", part.down_bytes, round) for part in parts]
        length = max((finish(part, air, round) for part in parts), default=0.0) + server_seconds.get(round, 0.0)
        times.append(RoundTime(round, now, now + max(down, default=0.0), now + length))
        now += length
    return times
