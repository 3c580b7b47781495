"""A reception without a network, and peers whose every word the test chooses."""

from loopback import Clock, LoopbackServer
from stage import Peer, say_nothing

from fedsim import config
from fedsim.contract import Contract, Field, Payload
from nodes.border import Border
from nodes.checkpoint import Manifest
from nodes.server.reception import (
    Event,
    Joined,
    Reception,
)
from protocol import messages

EXPERIMENT = config.build([{"run": {"clients": 3}}])
CONTRACT = Contract(
    up={"prototypes": Field(Payload.PROTOTYPES, "n K"), "class_ids": Field(Payload.INDEX, "n", "int32")},
    setup_up={"counts": Field(Payload.COUNTS, "C", "int32")},
)
WORK = messages.Work(run="", round=4, attempt=0, slot=0, train=True, evaluate=True, save=False, keep=-1)


class Desk:
    """A reception in round 4 with client 0 and 1 in its cohort, and peers whose every word the test chooses."""

    def __init__(self, resumed: Manifest | None = None, **facts: str):
        self.clock = Clock()
        self.server = LoopbackServer(self.clock)
        border = Border(CONTRACT, {"C": 3, "K": 2})
        self.reception = Reception(self.server, EXPERIMENT, border, resumed, self.clock, facts)
        self.reception.accounts.begin_round(4, [0, 1])

    def stranger(self, client: int, **options: int) -> Peer:
        """Has connected and greets with its first turn; it hangs up only when the test says so."""
        peer = Peer(self.server, client, say_nothing, **options)
        peer.on_stop = lambda: None
        return peer

    def member(self, client: int) -> Peer:
        peer = self.stranger(client)
        assert self.events() == []  # it was welcomed, which is nothing to tell
        (joined,) = self.events()
        assert isinstance(joined, Joined)
        return peer

    def events(self) -> list[Event]:
        return list(self.reception.events(0))

    def booked(self, **wanted: object) -> int:
        return self.reception.accounts.ledger.total(**wanted).frames
