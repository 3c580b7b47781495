"""The server's loop: gathers clients, plays rounds, says goodbye. One loop with one visible deadline.

Who may join and how messages travel is `reception.Reception`'s matter, who is asked when is decided by
`rounds.Round`, what is learned by `conductor.Conductor`, and every byte is booked in `accounts.Accounts`.
"""

import logging
import time
from dataclasses import dataclass, field

from fedsim.errors import ContractError
from fedsim.method import Upload
from nodes.border import where
from nodes.checkpoint import Checkpoints, Manifest
from nodes.server.events import EventLog
from nodes.server.learner import Conductor, Plan, Row
from nodes.server.members import Member
from nodes.server.reception import Reception, RunStopped
from nodes.server.rounds import Round, Timing
from nodes.work import Report
from protocol import messages
from protocol.codec import Parcel
from protocol.ledger import Audit
from protocol.transport import Arrived, ServerSocket

log = logging.getLogger("server")

_POLL_SECONDS = 0.2


@dataclass
class Outcome:
    """How a run ended."""

    completed: bool
    reason: str
    audits: list[Audit] = field(default_factory=list)


class Coordinator(Reception):
    """Drives a conductor with the clients that the reception has let in."""

    def __init__(
        self,
        conductor: Conductor,
        socket: ServerSocket,
        events: EventLog,
        resumed: Manifest | None = None,
    ):
        super().__init__(conductor, socket, events, resumed)
        self._checkpoints = Checkpoints(conductor.folder.checkpoints)
        self._round: Round | None = None
        self._plan: Plan | None = None
        self._down = Parcel()
        self._reports: dict[int, Report] = {}
        self._asked_at: dict[int, float] = {}

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
        self._say_round_finished(row, started, collected)

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
                keep=member.named_round,
            )
            purpose = "method" if ask.client in self._plan.cohort else "evaluation"
            parcel = self._down if order.train or order.evaluate else Parcel()
            self._asked_at[ask.client] = time.monotonic()
            if self._send(member, work, parcel, purpose):
                self.events.say("asked", round=order.round, client=ask.client, train=order.train)

    def _save(self, round: int) -> None:
        """All clients that answered have saved; the manifest makes the set a checkpoint."""
        members = self.members.by_id.values()
        manifest = Manifest(
            round=round,
            client_rounds={str(member.client): member.saved_round for member in members},
            history=self.conductor.history,
            ledger=self.accounts.ledger.rows(),
            states=self._states,
        )
        self._checkpoints.save(manifest, self.conductor.state())
        for member in members:
            member.named_round = member.saved_round
        self.events.say("checkpoint", round=round)

    def _say_round_finished(self, row: Row, started: float, collected: float) -> None:
        so_far = self.accounts.ledger.wire_bytes
        now = time.monotonic()
        self.events.say(
            "round_finished",
            **row,
            seconds=now - started,
            collect_seconds=collected - started,
            wire_bytes_up=so_far["up"],
            wire_bytes_down=so_far["down"],
            **self._kernel_so_far(),
        )

    def _kernel_so_far(self) -> dict[str, int]:
        """Nothing is under way between rounds, so a rehearsal can hold each round against the kernel."""
        kernel = self.accounts.kernel_total() if self.experiment.run.rehearsal else None
        return {} if kernel is None else {"kernel_bytes_up": kernel.received, "kernel_bytes_down": kernel.sent}

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

    def client_lost(self, member: Member, reason: str) -> None:
        if self._round is not None:
            if reason:
                self._round.drop(member.client, reason, time.monotonic())
            else:
                self._round.on_lost(member.client, time.monotonic())

    def client_returned(self, member: Member) -> None:
        if self._round is not None:
            self._round.on_return(member.client, time.monotonic())


def _some(clients: list[int], most: int = 10) -> str:
    shown = ", ".join(map(str, clients[:most]))
    return shown if len(clients) <= most else f"{shown} and {len(clients) - most} more"
