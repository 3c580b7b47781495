"""A client's link to the server: what goes up and down in a second, how long a byte is under way, how much that
varies. Described in words, by the name of a profile, or as a mixture of both that is drawn for each client.

    up=10mbit down=50mbit delay=40ms jitter=5ms
    4g
    wifi:5,4g:3,up=1mbit down=2mbit delay=80ms:2        of ten clients five, three and two, on average
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedsim.config import Experiment
from fedsim.errors import UserError
from fedsim.world import mixtures
from fedsim.world.words import BITS, SECONDS, Grammar

Direction = Literal["up", "down"]

PROFILES: Mapping[str, str] = {
    "fibre": "up=100mbit down=100mbit delay=5ms jitter=1ms",
    "cable": "up=1mbit down=5mbit delay=14ms jitter=2ms",
    "wifi": "up=15mbit down=30mbit delay=2ms jitter=1ms",
    "4g": "up=12mbit down=12mbit delay=35ms jitter=5ms",
    "3g": "up=768kbit down=1600kbit delay=150ms jitter=20ms",
    "satellite": "up=3mbit down=25mbit delay=300ms jitter=10ms",
}
"""The sources are in docs/time.md: cable, 4g (LTE) and 3g are WebPageTest's, wifi is Firefox's; fibre
is a common small contract, satellite one over a geostationary orbit. Jitter is our own choice."""

_GRAMMAR = Grammar(
    what="link",
    units={"up": BITS, "down": BITS, "delay": SECONDS, "jitter": SECONDS},
    needed=("up", "down"),
    profiles=PROFILES,
    example="write up=10mbit down=50mbit delay=40ms jitter=5ms, or a profile",
)


@dataclass(frozen=True)
class Link:
    """Rates in bits a second; the delay is one way, and the same both ways."""

    up_bits: float
    down_bits: float
    delay_seconds: float = 0.0
    jitter_seconds: float = 0.0
    """A byte is under way for the delay, give or take as much as this; none overtakes another."""

    def bits(self, direction: Direction) -> float:
        return self.up_bits if direction == "up" else self.down_bits

    def seconds(self, direction: Direction, num_bytes: float) -> float:
        """From the first byte's departure to the last one's arrival, on an idle link."""
        return 8 * num_bytes / self.bits(direction) + self.delay_seconds


def parse(text: str) -> Link:
    """One link: a profile's name or a description."""
    said = _GRAMMAR.read(text)
    link = Link(said["up"], said["down"], said.get("delay", 0.0), said.get("jitter", 0.0))
    if link.jitter_seconds > link.delay_seconds:
        raise UserError(
            f"the link {text!r} has more jitter than delay, so bytes would arrive before they were sent; lower it."
        )
    return link


def of_clients(experiment: Experiment) -> list[Link | None]:
    """A link for each client: its own, else one drawn for it; None, no limits, where nothing is said."""
    world, run = experiment.world_config(), experiment.run
    return mixtures.deal("link", parse, world.link, world.links, run.clients, run.seed)
