"""Who is here and how we speak with them: the server's side of joining, refusing, losing and sending.

    socket ── Arrived, Rejected, Lost ──► reception ── Joined, Answered, Gone, Returned, ... ──► loop
                                              ▲                                                   │
                                              └──────────────────── send, goodbye ────────────────┘

`events` yields what happened, in order, as plain values; what is done about it is the loop's matter. By then every
message is booked, strangers are turned away, and what a client sent is what the method's contract declares.
"""

import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fedsim.config import Experiment
from fedsim.contract import Arrays
from fedsim.errors import ContractError
from fedsim.method import Metrics
from nodes import likeness
from nodes.border import Border, Items, Passage, check_metrics, pack_experiment, travelled_bytes
from nodes.checkpoint import Manifest
from nodes.server.accounts import NOBODY, Accounts
from nodes.server.members import Member, Members, Taken
from protocol import messages, transport
from protocol.codec import Parcel
from protocol.errors import PeerUnreachable, VersionMismatch
from protocol.messages import Message
from protocol.transport import Arrived, ServerSocket

log = logging.getLogger("server")

NOTHING = Parcel()
"""Beside a message without arrays."""
NO_FACTS: Mapping[str, str] = {}

_GOODBYE_SECONDS = 5.0
_MAX_REASON_CHARS = 2000  # as many as a message may carry


@dataclass(frozen=True)
class Joined:
    """A client has loaded its data and its model; `arrays` are its part of the method's set-up."""

    client: int
    ready: messages.Ready
    arrays: Arrays
    remarks: tuple[str, ...] = ()
    """In what its machine differs from ours."""


@dataclass(frozen=True)
class Answered:
    """A client has answered in the round we are in; whether that question is still open is not known here."""

    client: int
    result: messages.Result
    arrays: Arrays
    num_bytes: int = 0
    """Of the arrays, as they travelled."""


@dataclass(frozen=True)
class Progressed:
    """A client has its work, or is done with it and sends its answer."""

    client: int
    message: messages.Delivered | messages.Done


@dataclass(frozen=True)
class Failed:
    """A client's own code has failed, and the client has ended."""

    client: int
    round: int
    error: str


@dataclass(frozen=True)
class Gone:
    """A client cannot be reached any more; with a reason it was sent away and will not come back."""

    client: int
    reason: str = ""


@dataclass(frozen=True)
class Returned:
    """The same process of a client has connected again; it may have missed a question."""

    client: int


@dataclass(frozen=True)
class Refused:
    """A peer was told that it may not join or stay."""

    reason: str


@dataclass(frozen=True)
class Rejected:
    """Frames came that are no message of ours; `client` is NOBODY where the sender is not a member."""

    client: int
    reason: str


@dataclass(frozen=True)
class _Guest:
    """Has greeted under an id that is taken, and waits until its owner has gone or the time is over."""

    hello: messages.Hello
    arrived: Arrived
    until: float


Event = Joined | Answered | Progressed | Failed | Gone | Returned | Refused | Rejected


class Reception:
    """Serves the socket. Messages are handled by `on_<message>`."""

    def __init__(
        self,
        socket: ServerSocket,
        experiment: Experiment,
        border: Border,
        resumed: Manifest | None = None,
        clock: Callable[[], float] = time.monotonic,
        facts: Mapping[str, str] = NO_FACTS,
    ):
        """`facts` are those of the server's own machine."""
        self._facts = facts
        self.accounts = Accounts(socket)
        self.members = Members(experiment.run.clients)
        self.run = secrets.token_hex(4)
        self.states = resumed.states if resumed else secrets.token_hex(4)
        self._socket = socket
        self._border = border
        self.clock = clock
        self._welcome = pack_experiment(experiment)
        self._saved_rounds = resumed.client_rounds if resumed else {}
        self._needs_everyone = experiment.cluster.quorum == 1
        self._rejoin_seconds = experiment.cluster.rejoin_seconds
        self._guests: dict[bytes, _Guest] = {}
        self._goodbye: messages.Stop | None = None
        self._happened: deque[Event] = deque()
        if resumed is not None:
            self.accounts.ledger.restore(resumed.ledger)

    def events(self, timeout_seconds: float) -> Iterator[Event]:
        """Wait at most this long, then yield all that happened; not at all where a `send` has met with a loss."""
        arrivals = self._socket.events(0 if self._happened else timeout_seconds)
        yield from self._take()
        for event in arrivals:
            match event:
                case transport.Arrived():
                    self._on_message(event)
                case transport.Rejected():
                    self._on_rejected(event)
                case transport.Lost():
                    self._on_lost(event)
            yield from self._take()
        self._look_after_guests()
        yield from self._take()

    def send(self, client: int, message: Message, parcel: Parcel = NOTHING, purpose: str = "control") -> bool:
        """Hand a message over and account for it; a client that cannot be reached is `Gone`."""
        member = self.members.by_id[client]
        try:
            receipt = self._socket.send(member.route, message, parcel)
        except PeerUnreachable as error:
            log.warning("client %d: %s", client, error)
            self._lose(member)
            self._socket.hang_up(member.route)  # so that it learns of it, and comes again
            return False
        self.accounts.sent(receipt, client, purpose)
        return True

    def goodbye(self, reason: str, *, completed: bool) -> Iterator[Event]:
        """Tell everyone to stop, and yield what still happens until they have hung up. Nobody joins any more."""
        self._goodbye = messages.Stop(reason=reason[:_MAX_REASON_CHARS])
        self._look_after_guests()
        if completed:
            self.accounts.note_open_connections()
        for member in self.members.by_id.values():
            if member.lost_since is None:
                self.send(member.client, self._goodbye)
        deadline = self.clock() + _GOODBYE_SECONDS
        connections = self._socket.connections
        while self.clock() <= deadline and any(c.is_open for c in connections.all if c.client is not None):
            yield from self.events(0.05)
        yield from self._take()

    # ---------------------------------------------------------------------------------------- receiving

    def _on_message(self, arrived: Arrived) -> None:
        message = arrived.decoded.message
        if isinstance(message, messages.Hello):
            self.on_hello(message, arrived)
            return
        member = self.members.of_route(arrived.route)
        if member is not None and isinstance(message, messages.Refusal):
            self.on_refusal(message, member, arrived)
            return
        if member is None or getattr(message, "run", None) != self.run:
            self.accounts.received(arrived.receipt, NOBODY, "control")
            return
        purposes = {"ready": "setup", "result": self.accounts.purpose_of_work(member.client)}
        purpose = purposes.get(messages.kind_of(message), "control")
        self.accounts.received(arrived.receipt, member.client, purpose)
        if self._goodbye is not None:
            return
        match message:
            case messages.Ready():
                self.on_ready(message, member, arrived.decoded.arrays)
            case messages.Result():
                self.on_result(message, member, arrived.decoded.arrays)
            case messages.Delivered() | messages.Done():
                if message.round == self.accounts.round:
                    self._happened.append(Progressed(member.client, message))
            case messages.Failure():
                member.lost_since = self.clock()  # it has ended, and nobody needs to be told
                self._happened.append(Failed(member.client, message.round, message.error))
            case other:
                log.warning("ignored a %s of client %d", messages.kind_of(other), member.client)

    def on_hello(self, hello: messages.Hello, arrived: Arrived, wait_until: float | None = None) -> None:
        if arrived.route in self._guests:  # it is impatient
            self.accounts.received(arrived.receipt, NOBODY, "control")
            return
        if self._goodbye is not None:  # too late
            self.accounts.received(arrived.receipt, NOBODY, "control")
            self._tell(arrived.route, NOBODY, self._goodbye)
            return
        known = self.members.by_id.get(hello.client)
        old = self._socket.connections.of_route(known.route) if known else None
        member = self.members.admit(hello, arrived, old_is_open=old is not None and old.is_open)
        until = self.clock() + self._rejoin_seconds if wait_until is None else wait_until
        if isinstance(member, Taken) and self.clock() < until:
            # A process that was killed takes a while to end, and a machine that was switched off never says so:
            # whoever was started in its place may come first.
            self._guests[arrived.route] = _Guest(hello, arrived, until)
            return
        if not isinstance(member, Member):
            self.accounts.received(arrived.receipt, NOBODY, "control")
            self._refuse(arrived.route, NOBODY, member.reason if isinstance(member, Taken) else member)
            return
        if known is not None and member is not known and known.lost_since is None:
            self._happened.append(Gone(member.client))  # its loss is read later, and its route is nobody's by then
        arrived.connection.client = member.client
        if old is not None and old is not arrived.connection:
            old.hang_up()  # nobody is there any more, though its end may not have been noticed yet
        self.accounts.received(arrived.receipt, member.client, "control")
        if member.ready is not None:
            self._happened.append(Returned(member.client))
            return
        if known is None:
            member.saved_round = member.named_round = self._saved_rounds.get(str(member.client), -1)
        if reason := self._cannot_go_on(member):
            self._refuse(arrived.route, member.client, f"client {member.client} {reason}.")
            self._lose(member, f"it {reason}")
            return
        welcome = messages.Welcome(run=self.run, states=self.states, restore=member.saved_round)
        self.send(member.client, welcome, self._welcome)

    def _look_after_guests(self) -> None:
        """Let in those whose place is free by now, refuse those who have waited long enough."""
        guests, self._guests = self._guests, {}
        for guest in guests.values():
            self.on_hello(guest.hello, guest.arrived, guest.until)

    def _cannot_go_on(self, member: Member) -> str:
        """Why a client that was started again cannot take part; empty where it can.

        Its state is older than what it has learned since. With all clients asked for, going on from there would
        end in other numbers than an undisturbed run; where the user allows fewer, it is better than nothing.
        """
        if member.answered_round <= member.saved_round:
            return ""
        if member.saved_round < 0:
            return "has no saved state to go on with; use --checkpoint-every"
        if self._needs_everyone:
            return (
                f"has learned until round {member.answered_round} and saved its state in round "
                f"{member.saved_round}; --resume goes back to there with all clients"
            )
        return ""

    def on_ready(self, ready: messages.Ready, member: Member, items: Items) -> None:
        if reason := likeness.difference(self._facts, ready.facts):
            self._refuse(member.route, member.client, f"client {member.client} {reason}.")
            member.lost_since = self.clock()
            return
        accepted = self._accept(member, items, Passage("setup_up", member.client))
        if accepted is not None:
            member.ready, member.num_train = ready, ready.num_train
            remarks = likeness.remarks(self._facts, ready.facts, member.place.name)
            self._happened.append(Joined(member.client, ready, accepted, tuple(remarks)))

    def on_refusal(self, refusal: messages.Refusal, member: Member, arrived: Arrived) -> None:
        """A client that cannot take part says so and hangs up: its code is not the run's or, later on, there was
        no memory for its work. It is lost, and nothing is wrong with the run."""
        self.accounts.received(arrived.receipt, member.client, "control")
        if self._goodbye is not None:
            return
        if member.ready is not None:
            self._lose(member, refusal.reason)
        else:
            self._happened.append(Refused(f"client {member.client}: {refusal.reason}"))
            member.lost_since = self.clock()

    def on_result(self, result: messages.Result, member: Member, items: Items) -> None:
        if result.round != self.accounts.round:  # that round is over, or never was
            return
        passage = Passage("up", member.client, result.round)
        accepted = self._accept(member, items, passage, result.metrics)
        if accepted is not None:
            self._happened.append(Answered(member.client, result, accepted, travelled_bytes(items)))

    def _accept(
        self, member: Member, items: Items, passage: Passage, metrics: Metrics | None = None
    ) -> Arrays | None:
        """Check what a client sent; one that breaks the contract is refused and leaves the run."""
        try:
            check_metrics(metrics or {}, str(passage))
            return self._border.incoming(items, passage)
        except ContractError as error:
            self._refuse(member.route, member.client, str(error))
            self._lose(member, str(error))
            return None

    def _on_rejected(self, rejected: transport.Rejected) -> None:
        member = self.members.of_route(rejected.route)
        client = member.client if member else NOBODY
        self.accounts.received(rejected.receipt, client, "control")
        self._happened.append(Rejected(client, str(rejected.error)))
        if isinstance(rejected.error, VersionMismatch) and rejected.connection is not None:
            self._tell(rejected.route, client, messages.Refusal(reason=str(rejected.error)))

    def _on_lost(self, lost: transport.Lost) -> None:
        if (guest := self._guests.pop(lost.route, None)) is not None:
            self.accounts.received(guest.arrived.receipt, NOBODY, "control")
        member = self.members.of_route(lost.route)
        if member is not None and member.lost_since is None and self._goodbye is None:
            self._lose(member)

    # -------------------------------------------------------------------------------- losing and refusing

    def _lose(self, member: Member, reason: str = "") -> None:
        member.lost_since = self.clock()
        self._happened.append(Gone(member.client, reason))

    def _refuse(self, route: bytes, client: int, reason: str) -> None:
        self._happened.append(Refused(reason))
        self._tell(route, client, messages.Refusal(reason=reason[:_MAX_REASON_CHARS]))

    def _tell(self, route: bytes, client: int, message: Message) -> None:
        """The last word to a peer, unless it has gone already."""
        with contextlib.suppress(PeerUnreachable):
            self.accounts.sent(self._socket.send(route, message), client, "control")

    def _take(self) -> Iterator[Event]:
        while self._happened:
            yield self._happened.popleft()
