"""Who is here and how we speak with them: the server's side of joining, refusing, losing and sending.

What is done with the clients that are here is the coordinator's matter, which is built on this.
"""

import contextlib
import logging
import secrets
import time
from abc import ABC, abstractmethod

from fedsim.contract import Arrays, Fields
from fedsim.errors import ContractError
from fedsim.method import Metrics
from nodes.border import check_metrics
from nodes.checkpoint import Manifest
from nodes.client.node import experiment_parcel
from nodes.server.accounts import NOBODY, Accounts
from nodes.server.events import EventLog
from nodes.server.learner import Conductor
from nodes.server.members import Member, Members
from protocol import messages
from protocol.codec import Parcel
from protocol.errors import PeerUnreachable
from protocol.ledger import Audit
from protocol.transport import Arrived, Lost, Rejected, ServerSocket

log = logging.getLogger("server")

_GOODBYE_SECONDS = 5.0


class RunStopped(Exception):
    """The run cannot or shall not go on; the message says why. Results so far are kept."""


class Reception(ABC):
    """Serves the socket. Messages are handled by `on_<message>`."""

    def __init__(self, conductor: Conductor, socket: ServerSocket, events: EventLog, resumed: Manifest | None):
        self.conductor = conductor
        self.experiment = conductor.experiment
        self.events = events
        self.accounts = Accounts(socket)
        self.members = Members(self.experiment.run.clients)
        self._socket = socket
        self._run = secrets.token_hex(4)
        self._states = resumed.states if resumed else secrets.token_hex(4)
        self._welcome = experiment_parcel(self.experiment)
        self._resumed = resumed
        self._stop_requested: str | None = None
        self._goodbye: messages.Stop | None = None
        self._setups: dict[int, Arrays] = {}
        self._setup_parcel: Parcel | None = None
        if resumed is not None:
            self.accounts.ledger.restore(resumed.ledger)

    @abstractmethod
    def on_result(self, result: messages.Result, member: Member, arrived: Arrived) -> None:
        """A client has done what it was asked to do."""

    @abstractmethod
    def client_lost(self, member: Member, reason: str) -> None:
        """A client has gone; with a reason it was sent away and will not come back."""

    @abstractmethod
    def client_returned(self, member: Member) -> None:
        """A client that was lost, or whose connection broke, is here again."""

    def request_stop(self, reason: str) -> None:
        """From a signal handler: the run ends at the next safe point, and at once inside the server's step."""
        self._stop_requested = reason
        if self.conductor.is_learning:
            raise RunStopped(reason)

    def _serve(self, timeout_seconds: float) -> None:
        for event in self._socket.events(timeout_seconds):
            match event:
                case Arrived():
                    self._on_message(event)
                case Rejected():
                    self._on_rejected(event)
                case Lost(route=route):
                    self._on_lost(route)
        if self._stop_requested and not self._goodbye:
            raise RunStopped(self._stop_requested)

    def _on_message(self, arrived: Arrived) -> None:
        message = arrived.decoded.message
        if isinstance(message, messages.Hello):
            self.on_hello(message, arrived)
            return
        member = self.members.of_route(arrived.route)
        if member is None or getattr(message, "run", None) != self._run:
            self.accounts.received(arrived.receipt, NOBODY, "control")
            return
        match message:
            case messages.Ready():
                self.on_ready(message, member, arrived)
            case messages.Result():
                self.on_result(message, member, arrived)
            case messages.Failure():
                self.accounts.received(arrived.receipt, member.client, "control")
                if self._goodbye:
                    return
                raise RunStopped(f"client {member.client} failed in round {message.round}: {message.error}")
            case other:
                self.accounts.received(arrived.receipt, member.client, "control")
                log.warning("ignored a %s of client %d", messages.kind_of(other), member.client)

    def on_hello(self, hello: messages.Hello, arrived: Arrived) -> None:
        if self._goodbye is not None:  # too late
            self.accounts.received(arrived.receipt, NOBODY, "control")
            with contextlib.suppress(PeerUnreachable):
                self.accounts.sent(self._socket.send(arrived.route, self._goodbye), NOBODY, "control")
            return
        known = self.members.by_id.get(hello.client)
        old = self._socket.connections.of_route(known.route) if known else None
        member = self.members.admit(hello, arrived, old_is_open=old is not None and old.is_open)
        if isinstance(member, str):
            self.accounts.received(arrived.receipt, NOBODY, "control")
            self._refuse(arrived.route, NOBODY, member)
            return
        arrived.connection.client = member.client
        self.accounts.received(arrived.receipt, member.client, "control")
        if member.ready is not None:  # the same process has reconnected; it may have missed a question
            self._on_returned(member)
            return
        if known is None and self._resumed is not None:
            member.saved_round = member.named_round = self._resumed.client_rounds.get(str(member.client), -1)
        if member.has_answered and member.saved_round < 0:
            reason = f"client {member.client} has no saved state to go on with; use --checkpoint-every."
            self._refuse(arrived.route, member.client, reason)
            member.lost_since = time.monotonic()
            return
        welcome = messages.Welcome(run=self._run, states=self._states, restore=member.saved_round)
        self._send(member, welcome, self._welcome)

    def on_ready(self, ready: messages.Ready, member: Member, arrived: Arrived) -> None:
        self.accounts.received(arrived.receipt, member.client, "setup")
        fields = self.conductor.border.contract.setup_up
        place = f"client {member.client}, set-up, up"
        arrays = self._accept(member, arrived.decoded.arrays, fields, place)
        if arrays is None:
            return
        member.ready, member.num_train = ready, ready.num_train
        self._setups.setdefault(member.client, arrays)
        self.events.say(
            "client_ready",
            client=member.client,
            place=member.place.name,
            start_seconds=ready.start_seconds,
            pss_bytes=ready.pss_bytes,
        )
        if self._setup_parcel is not None:  # a client that was started again
            self._send_setup(member)
            self.events.say("restored", client=member.client, round=member.saved_round)
            self._on_returned(member)

    def _accept(
        self, member: Member, arrays: Arrays, fields: Fields, place: str, metrics: Metrics | None = None
    ) -> Arrays | None:
        """Check what a client sent; one that breaks the contract is refused and leaves the run."""
        try:
            check_metrics(metrics or {}, place)
            return self.conductor.border.incoming(arrays, fields, place)
        except ContractError as error:
            self.events.say("refused", reason=str(error))
            self._send(member, messages.Refusal(reason=str(error)[:2000]))
            self._lose(member, str(error))
            return None

    def _on_rejected(self, rejected: Rejected) -> None:
        member = self.members.of_route(rejected.route)
        client = member.client if member else NOBODY
        self.accounts.received(rejected.receipt, client, "control")
        self.events.say("rejected", client=client, reason=str(rejected.error))

    def _on_lost(self, route: bytes) -> None:
        if self._goodbye:
            return
        member = self.members.of_route(route)
        if member is not None and member.lost_since is None:
            self._lose(member, "")

    def _lose(self, member: Member, reason: str) -> None:
        member.lost_since = time.monotonic()
        self.client_lost(member, reason)
        self.events.say("lost", client=member.client, round=self.accounts.round, reason=reason)

    def _on_returned(self, member: Member) -> None:
        self.client_returned(member)
        self.events.say("returned", client=member.client, round=self.accounts.round)

    # ------------------------------------------------------------------------------------------ sending

    def _send_setup(self, member: Member) -> None:
        if self._setup_parcel is not None and self._setup_parcel.specs:
            self._send(member, messages.Setup(run=self._run), self._setup_parcel, "setup")

    def _send(
        self,
        member: Member,
        message: messages.Message,
        parcel: Parcel = Parcel(),  # noqa: B008
        purpose: str = "control",
    ) -> bool:
        """Hand a message over and account for it; a client that cannot be reached is lost."""
        try:
            receipt = self._socket.send(member.route, message, parcel)
        except PeerUnreachable as error:
            log.warning("client %d: %s", member.client, error)
            self._lose(member, "")
            return False
        self.accounts.sent(receipt, member.client, purpose)
        return True

    def _refuse(self, route: bytes, client: int, reason: str) -> None:
        """Tell a peer that it may not join, unless it has gone already."""
        self.events.say("refused", reason=reason)
        with contextlib.suppress(PeerUnreachable):
            receipt = self._socket.send(route, messages.Refusal(reason=reason))
            self.accounts.sent(receipt, client, "control")

    def _say_goodbye(self, reason: str) -> list[Audit]:
        """Tell everyone to stop, wait until they have hung up, then compare our count with the kernel's."""
        self._goodbye = messages.Stop(reason=reason[:2000])
        self.accounts.note_ended_connections()
        for member in self.members.by_id.values():
            if member.lost_since is None:
                self._send(member, self._goodbye)
        deadline = time.monotonic() + _GOODBYE_SECONDS
        while any(c.is_open for c in self._socket.connections.all if c.client is not None):
            if time.monotonic() > deadline:
                break
            self._serve(0.05)
        return self.accounts.audit()
