"""The server's loop: gathers clients, plays rounds, says goodbye. One loop with one visible deadline.

Messages are handled by `on_<message>`. Who is asked when is decided by `rounds.Round`, what is learned by
`conductor.Conductor`, and every byte is booked in `accounts.Accounts`.
"""

import contextlib
import logging
import secrets
import time
from dataclasses import dataclass, field

from fedsim.contract import Arrays, Fields
from fedsim.errors import ContractError
from fedsim.methods.base import Metrics, Upload
from nodes.accounts import NOBODY, Accounts
from nodes.border import check_metrics, where
from nodes.checkpoint import Checkpoints, Manifest
from nodes.client import experiment_parcel
from nodes.conductor import Conductor, Plan, Row
from nodes.events import EventLog
from nodes.members import Member, Members
from nodes.rounds import Round, Timing
from nodes.work import Report
from protocol import messages
from protocol.codec import Parcel
from protocol.errors import PeerUnreachable
from protocol.ledger import Audit
from protocol.transport import Arrived, Lost, Rejected, ServerSocket

log = logging.getLogger("server")

_POLL_SECONDS = 0.2
_GOODBYE_SECONDS = 5.0


class RunStopped(Exception):
    """The run cannot or shall not go on; the message says why. Results so far are kept."""


@dataclass
class Outcome:
    """How a run ended."""

    completed: bool
    reason: str
    audits: list[Audit] = field(default_factory=list)


class Coordinator:
    """Drives a conductor over a socket."""

    def __init__(
        self,
        conductor: Conductor,
        socket: ServerSocket,
        events: EventLog,
        resumed: Manifest | None = None,
    ):
        self.conductor = conductor
        self.experiment = conductor.experiment
        self.events = events
        self.accounts = Accounts(socket)
        self.members = Members(self.experiment.run.clients)
        self._stop_requested: str | None = None
        self._socket = socket
        self._run = secrets.token_hex(4)
        self._welcome = experiment_parcel(self.experiment)
        self._checkpoints = Checkpoints(conductor.folder.checkpoints)
        self._resumed = resumed
        self._goodbye: messages.Stop | None = None
        self._setups: dict[int, Arrays] = {}
        self._setup_parcel: Parcel | None = None
        self._round: Round | None = None
        self._plan: Plan | None = None
        self._down = Parcel()
        self._reports: dict[int, Report] = {}
        self._asked_at: dict[int, float] = {}
        if resumed is not None:
            self.accounts.ledger.restore(resumed.ledger)

    # ------------------------------------------------------------------------------------------ the run

    def run(self) -> Outcome:
        try:
            self._gather()
            first = 0 if self._resumed is None else self._resumed.round + 1
            for number in range(first, self.conductor.last_round + 1):
                self._play(self.conductor.plan(number))
            outcome = Outcome(True, "the run is complete")
        except RunStopped as stop:
            outcome = Outcome(False, str(stop))
        except ContractError as error:
            log.exception("the server's half of the method is to be mended")
            outcome = Outcome(False, str(error))
        outcome.audits = self._say_goodbye(outcome.reason)
        self.conductor.folder.write_ledger(self.accounts.ledger.rows())
        if self.conductor.down:
            self.conductor.folder.write_final(self.conductor.down)
        return outcome

    def request_stop(self, reason: str) -> None:
        """From a signal handler: the run ends at the next safe point, and at once inside the server's step."""
        self._stop_requested = reason
        if self.conductor.is_learning:
            raise RunStopped(reason)

    def _gather(self) -> None:
        """Wait for all clients; then the method's set-up, once."""
        started = time.monotonic()
        limit = self.experiment.cluster.join_seconds
        while missing := self.members.missing():
            if time.monotonic() - started > limit:
                raise RunStopped(
                    f"{len(missing)} of {self.members.num_clients} clients did not join within {limit:g} s: "
                    f"{_some(missing)}; start them, or raise cluster.join_seconds."
                )
            self._serve(_POLL_SECONDS)
        sizes = {client: self.members.by_id[client].num_train for client in self.members.by_id}
        down = self.conductor.setup([Upload(c, sizes[c], a) for c, a in self._setups.items()])
        fields = self.conductor.border.contract.setup_down
        self._setup_parcel = self.conductor.border.outgoing(down, fields, "server, set-up, down")
        for member in self.members.by_id.values():
            self._send_setup(member)
        memory = [member.ready.pss_bytes for member in self.members.by_id.values() if member.ready]
        self.events.say(
            "joined",
            clients=len(memory),
            seconds=time.monotonic() - started,
            pss_bytes_mean=sum(memory) / len(memory),
            start_seconds_max=max(m.ready.start_seconds for m in self.members.by_id.values() if m.ready),
        )

    def _play(self, plan: Plan) -> None:
        """One round from the first question to the last answer, then the server's own step."""
        started = time.monotonic()
        self._plan, self.accounts.round = plan, plan.order.round
        self._reports = {}
        contract, cluster = self.conductor.border.contract, self.experiment.cluster
        self._down = self.conductor.border.outgoing(
            self.conductor.down, contract.down, f"server, round {plan.order.round}, down"
        )
        current = self._round = Round(
            cohort=plan.cohort,
            others=plan.others,
            places=self.members.places(),
            lost_since=self.members.lost_since(started),
            expected_seconds=self.members.expected_seconds(),
            quorum=cluster.quorum,
            timing=Timing(cluster.deadline_seconds, cluster.rejoin_seconds),
            now=started,
        )
        self.events.say("round_started", round=plan.order.round, cohort=len(plan.cohort))
        while not current.done:
            self._ask(current)
            now = time.monotonic()
            self._serve(min(_POLL_SECONDS, current.next_deadline() - now))
            for client, reason in current.expire(time.monotonic()).items():
                self.events.say("left_out", round=plan.order.round, client=client, reason=reason)
        verdict = current.verdict()
        if not verdict.has_quorum:
            gone = ", ".join(f"client {client}: {reason}" for client, reason in verdict.missing.items())
            raise RunStopped(
                f"round {plan.order.round} has no quorum: {len(verdict.answered)} clients answered, "
                f"cluster.quorum = {cluster.quorum:g} of {len(plan.cohort)} is needed ({gone})."
            )
        collected = time.monotonic()
        self.events.say("collected", round=plan.order.round, train=plan.order.train)
        sizes = {client: self.members.by_id[client].num_train for client in self._reports}
        row = self.conductor.conclude(plan, self._reports, sizes)
        self.conductor.folder.add_timings(
            plan.order.round, {client: report.seconds for client, report in self._reports.items()}
        )
        if plan.save:
            self._save(plan.order.round)
        self._round = None
        self._say_round_finished(plan, row, started, collected)

    def _ask(self, current: Round) -> None:
        """Send work to everyone whose turn it is."""
        assert self._plan is not None
        for ask in current.asks(time.monotonic()):
            member, order = self.members.by_id[ask.client], self._plan.order_for(ask.client)
            work = messages.Work(
                run=self._run,
                round=order.round,
                attempt=ask.attempt,
                slot=ask.slot,
                train=order.train,
                evaluate=order.evaluate,
                save=self._plan.save,
            )
            purpose = "method" if ask.client in self._plan.cohort else "evaluation"
            parcel = self._down if order.train or order.evaluate else Parcel()
            self._asked_at[ask.client] = time.monotonic()
            if self._send(member, work, parcel, purpose):
                self.events.say("asked", round=order.round, client=ask.client, train=order.train)

    def _save(self, round: int) -> None:
        """All clients that answered have saved; the manifest makes the set a checkpoint."""
        manifest = Manifest(
            round=round,
            client_rounds={str(c): member.saved_round for c, member in self.members.by_id.items()},
            history=self.conductor.history,
            ledger=self.accounts.ledger.rows(),
        )
        self._checkpoints.save(manifest, self.conductor.state())
        self.events.say("checkpoint", round=round)

    def _say_round_finished(self, plan: Plan, row: Row, started: float, collected: float) -> None:
        so_far = self.accounts.ledger.wire_bytes
        now = time.monotonic()
        server_seconds = self.conductor.server_seconds if plan.order.train else 0.0
        self.events.say(
            "round_finished",
            **row,
            seconds=now - started,
            collect_seconds=collected - started,
            server_seconds=server_seconds,
            wire_bytes_up=so_far["up"],
            wire_bytes_down=so_far["down"],
        )

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

    # ------------------------------------------------------------------------------------------- events

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
            member.saved_round = self._resumed.client_rounds.get(str(member.client), -1)
        if member.has_answered and member.saved_round < 0:
            reason = f"client {member.client} has no saved state to go on with; use --checkpoint-every."
            self._refuse(arrived.route, member.client, reason)
            member.lost_since = time.monotonic()
            return
        welcome = messages.Welcome(run=self._run, restore=member.saved_round)
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

    def on_result(self, result: messages.Result, member: Member, arrived: Arrived) -> None:
        client, plan, now = member.client, self._plan, time.monotonic()
        in_cohort = plan is not None and client in plan.cohort
        self.accounts.received(arrived.receipt, client, "method" if in_cohort else "evaluation")
        if self._round is None or plan is None or result.round != self.accounts.round:
            return
        fields = self.conductor.border.contract.up
        place = where(client, result.round, "up")
        arrays = self._accept(member, arrived.decoded.arrays, fields, place, result.metrics)
        if arrays is None or not self._round.on_answer(client, result.attempt, now):
            return
        member.has_answered = True
        if plan.save:  # known at once: a client that dies before the round is over goes on from this state
            member.saved_round = result.round
        round_trip = now - self._asked_at[client]
        if "train" in result.seconds:
            member.train_seconds = round_trip
        seconds = {**result.seconds, "round_trip": round_trip}
        self._reports[client] = Report(dict(result.metrics), seconds, arrays)
        self.events.say("answered", round=result.round, client=client, seconds=round_trip)

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
        now = time.monotonic()
        member.lost_since = now
        if self._round is not None:
            if reason:
                self._round.drop(member.client, reason, now)
            else:
                self._round.on_lost(member.client, now)
        self.events.say("lost", client=member.client, round=self.accounts.round, reason=reason)

    def _on_returned(self, member: Member) -> None:
        if self._round is not None:
            self._round.on_return(member.client, time.monotonic())
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


def _some(clients: list[int], most: int = 10) -> str:
    shown = ", ".join(map(str, clients[:most]))
    return shown if len(clients) <= most else f"{shown} and {len(clients) - most} more"
