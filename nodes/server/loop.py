"""The server's loop: gathers clients, plays rounds, says goodbye. One loop with one visible deadline.

Who is here and what they say comes from `reception.Reception`, who is asked when is decided by `rounds.Round`,
what is learned by `learner.Learner`. Only this loop knows all three.
"""

import logging
from dataclasses import dataclass, field

from fedsim.contract import Arrays
from fedsim.errors import ContractError, UserError
from fedsim.method import Upload
from fedsim.metrics import Row
from nodes.border import Passage, require_frames_fit
from nodes.checkpoint import Checkpoints, Manifest
from nodes.server.events import EventLog
from nodes.server.learner import Learner, Plan
from nodes.server.reception import (
    Answered,
    Event,
    Failed,
    Gone,
    Joined,
    Progressed,
    Reception,
    Refused,
    Rejected,
    Returned,
)
from nodes.server.remarks import Remarks
from nodes.server.rounds import NO_SLOT, Round, Timing
from nodes.work import Report, is_large, num_bytes
from protocol import messages
from protocol.audit import Audit
from protocol.codec import Parcel

log = logging.getLogger("server")

_POLL_SECONDS = 0.2
_WAITING_SECONDS = 5.0  # between words about who has not joined yet


class RunStopped(Exception):
    """The run cannot or shall not go on; the message says why. Results so far are kept."""


class ClientsLost(RunStopped):
    """More clients are missing than the user allows: whoever is left would be another experiment."""


@dataclass
class Outcome:
    """How a run ended."""

    completed: bool
    reason: str
    lacks_clients: bool = False
    audits: list[Audit] = field(default_factory=list)


@dataclass(frozen=True)
class _OpenRound:
    """A round that is being played: what was planned, what goes down, how far it is, what came up."""

    plan: Plan
    down: Parcel
    state: Round
    reports: dict[int, Report] = field(default_factory=dict)


class ServerLoop:
    """Drives a learner with the clients that the reception has let in."""

    def __init__(self, learner: Learner, reception: Reception, events: EventLog, first_round: int = 0):
        self.learner = learner
        self.reception = reception
        self.events = events
        self._members = reception.members
        self._cluster = learner.experiment.cluster
        self.checkpoints = Checkpoints(learner.folder.checkpoints)
        self._first_round = first_round
        self._clock = reception.clock
        self._stop_requested: str | None = None
        self._setups: dict[int, Arrays] = {}
        self._setup: Parcel | None = None
        """What every client gets before its first round; None until all have joined."""
        self._without_setup: set[int] = set()
        """Of whom it is not known that they have it: a connection may break while it is on its way."""
        self._open: _OpenRound | None = None
        self._remarks = Remarks(events, self._cluster.deadline_seconds)
        self._lost_in: dict[int, int] = {}
        """Clients that are not here, and the round in which they were lost."""

    def run(self) -> Outcome:
        try:
            self._gather()
            for number in range(self._first_round, self.learner.last_round + 1):
                self._play(self.learner.plan(number))
            outcome = Outcome(True, "the run is complete")
        except RunStopped as stop:
            outcome = Outcome(False, str(stop), lacks_clients=isinstance(stop, ClientsLost))
        except ContractError as error:
            log.exception("the server's half of the method is to be mended")
            outcome = Outcome(False, str(error))
        return self.end(outcome)

    def end(self, outcome: Outcome) -> Outcome:
        """Tell everyone, and keep the books and what was learned so far."""
        for event in self.reception.goodbye(outcome.reason, completed=outcome.completed):
            self._on(event)
        outcome.audits = self.reception.accounts.audit()
        self.learner.folder.write_ledger(self.reception.accounts.ledger.rows())
        if self.learner.down:
            self.learner.folder.write_final(self.learner.down)
        return outcome

    def request_stop(self, reason: str) -> None:
        """From a signal handler: the run ends at the next safe point, and at once inside the server's step."""
        self._stop_requested = reason
        if self.learner.is_learning:
            raise RunStopped(reason)

    def _gather(self) -> None:
        """Wait for all clients, as long as they come; then the method's set-up, once."""
        started, limit = self._clock(), self._cluster.join_seconds
        said = last_came = started
        fewest = self._members.num_clients
        while missing := self._members.missing():
            now = self._clock()
            if len(missing) < fewest:
                last_came, fewest = now, len(missing)
            if now - said > _WAITING_SECONDS:
                said = now
                self.events.say("waiting", missing=missing, joined=self._members.ready_by_place())
            if now - last_came > limit:
                raise ClientsLost(
                    f"{len(missing)} of {self._members.num_clients} clients did not join within {limit:g} s: "
                    f"{_some(missing)}; start them, or raise cluster.join_seconds."
                )
            self._listen(_POLL_SECONDS)
        ready = [member.ready for member in self._members.by_id.values() if member.ready]
        sizes = self._members.num_train()
        down = self.learner.setup([Upload(c, sizes[c], arrays) for c, arrays in self._setups.items()])
        self._setup = self._outgoing(down, Passage("setup_down"))
        for client in self._members.by_id:
            self._send_setup(client)
        self.events.say(
            "joined",
            clients=len(ready),
            seconds=self._clock() - started,
            pss_bytes_mean=sum(item.pss_bytes for item in ready) / len(ready),
            start_seconds_max=max(item.start_seconds for item in ready),
        )

    def _outgoing(self, arrays: Arrays, passage: Passage) -> Parcel:
        """What goes down to everyone, or the end of the run where clients would not take it."""
        parcel = self.learner.border.outgoing(arrays, passage)
        try:
            require_frames_fit(parcel, self._cluster.max_frame_mib)
        except UserError as error:
            raise RunStopped(str(error)) from None
        return parcel

    # ------------------------------------------------------------------------------------------ one round

    def _play(self, plan: Plan) -> None:
        """From the first question to the server's own step."""
        round, started = plan.order.round, self._clock()

        # 1. Who takes part, and what goes down to them.
        current = self._open = self._begin(plan, started)
        self.events.say("round_started", round=round, cohort=len(plan.cohort), clients=plan.num_asked)

        # 2. Ask and listen, until everyone has answered or is left out.
        while not current.state.done:
            self._ask(current)
            self._listen(min(_POLL_SECONDS, current.state.next_deadline() - self._clock()))
            for client, reason in current.state.expire(self._clock()).items():
                self.events.say("left_out", round=round, client=client, reason=reason)
            for client, seconds in current.state.working_seconds(self._clock()).items():
                self._remarks.waits_for(round, client, seconds, self._members.by_id[client].train_seconds)

        # 3. Are these enough?
        self._require_quorum(current)
        collected = self._clock()
        self.events.say("collected", round=round, train=plan.order.train)

        # 4. The server's own step.
        row = self.learner.conclude(plan, current.reports, self._members.num_train(), num_bytes(current.down))

        # 5. A state to go on from.
        if plan.save:
            self._save(round)
        self._open = None
        self.events.say_absences(round, self.learner.take_absences())
        if warning := self.learner.take_warning():
            self.events.say("warning", round=round, reason=warning)
        self._say_round_finished(row, started, collected)

    def _begin(self, plan: Plan, now: float) -> _OpenRound:
        round, members = plan.order.round, self._members
        self.reception.accounts.begin_round(round, plan.cohort)
        down = self._outgoing(self.learner.down, Passage("down", round=round))
        state = Round(
            cohort=plan.cohort,
            others=plan.others,
            places=members.places(),
            lost_since=members.lost_since(now),
            expected_seconds=members.expected_seconds(),
            quorum=self._cluster.quorum,
            timing=Timing(self._cluster.deadline_seconds, self._cluster.rejoin_seconds),
            now=now,
            ahead=is_large(down),
        )
        return _OpenRound(plan, down, state)

    def _ask(self, current: _OpenRound) -> None:
        """Send work to everyone who is to have it now, and word to those whose turn it is."""
        for ask in current.state.asks(self._clock()):
            order = current.plan.order_for(ask.client)
            work = messages.Work(
                run=self.reception.run,
                round=order.round,
                attempt=ask.attempt,
                slot=ask.slot,
                train=order.train,
                evaluate=order.evaluate,
                save=current.plan.save,
                keep=self._members.by_id[ask.client].named_round,
            )
            parcel = current.down if order.train or order.evaluate else Parcel()
            purpose = self.reception.accounts.purpose_of_work(ask.client)
            if self.reception.send(ask.client, work, parcel, purpose):
                ahead = {"ahead": True} if ask.slot == NO_SLOT else {}
                self.events.say("asked", round=order.round, client=ask.client, train=order.train, **ahead)
        for turn in current.state.turns(self._clock()):
            order = current.plan.order_for(turn.client)
            begin = messages.Turn(run=self.reception.run, round=order.round, attempt=turn.attempt, slot=turn.slot)
            if self.reception.send(turn.client, begin):
                self.events.say("begins", round=order.round, client=turn.client, train=order.train)

    def _require_quorum(self, current: _OpenRound) -> None:
        """The run's last sentence names the missing and since when, and what the user can do about it."""
        verdict, plan, cluster = current.state.verdict(), current.plan, self._cluster
        if verdict.has_quorum:
            return
        lost_in = {client: f" since round {round}" for client, round in self._lost_in.items()}
        gone = [f"client {client}: {why}{lost_in.get(client, '')}" for client, why in verdict.missing.items()]
        late = any(reason.startswith("late") for reason in verdict.missing.values())
        remedy = f"; who is late needs more than cluster.deadline_seconds = {cluster.deadline_seconds:g}"
        raise ClientsLost(
            f"round {plan.order.round} lacks {len(gone)} of {len(plan.cohort) + len(plan.others)} clients "
            f"({', '.join(gone)}), and cluster.quorum = {cluster.quorum:g} must answer{remedy if late else ''}."
        )

    def _save(self, round: int) -> None:
        """All clients that answered have saved; the manifest makes the set a checkpoint."""
        members = self._members.by_id.values()
        manifest = Manifest(
            round=round,
            client_rounds={str(member.client): member.saved_round for member in members},
            history=self.learner.history,
            ledger=self.reception.accounts.ledger.rows(),
            states=self.reception.states,
        )
        self.checkpoints.save(manifest, self.learner.state())
        for member in members:
            member.named_round = member.saved_round
        self.events.say("checkpoint", round=round)

    def _say_round_finished(self, row: Row, started: float, collected: float) -> None:
        accounts = self.reception.accounts
        # Nothing is under way between rounds, so a rehearsal can hold each round against the kernel.
        kernel = accounts.kernel_total() if self.learner.experiment.run.rehearsal else None
        self.events.say(
            "round_finished",
            **row,
            seconds=self._clock() - started,
            collect_seconds=collected - started,
            wire_bytes_up=accounts.ledger.wire_bytes["up"],
            wire_bytes_down=accounts.ledger.wire_bytes["down"],
            **({"kernel_bytes_up": kernel.received, "kernel_bytes_down": kernel.sent} if kernel else {}),
        )

    # -------------------------------------------------------------------------------------- what happened

    def _listen(self, seconds: float) -> None:
        for event in self.reception.events(seconds):
            self._on(event)
        if self._stop_requested:
            raise RunStopped(self._stop_requested)

    def _on(self, event: Event) -> None:
        if isinstance(event, Answered | Progressed):  # it had its work, and the set-up went before
            self._without_setup.discard(event.client)
        match event:
            case Joined():
                self._on_joined(event)
            case Answered():
                self._on_answered(event)
            case Progressed(client, message) if self._open is not None:
                state = self._open.state
                happened = state.on_done if isinstance(message, messages.Done) else state.on_delivered
                happened(client, message.attempt, self._clock())
            case Returned(client):
                self._on_returned(client)
            case Gone(client, reason):
                self._on_gone(client, reason)
            case Refused(reason):
                self._remarks.turned_away("refused", reason=reason)
            case Rejected(client, reason):
                self._remarks.turned_away("rejected", client=client, reason=reason)
            case Failed(client, round, text):
                error, _, where = text.partition("\n")
                if where:
                    self.events.say("client_failed", client=client, round=round, where=where)
                raise RunStopped(f"client {client} failed in round {round}: {error}")

    def _on_joined(self, joined: Joined) -> None:
        client, member = joined.client, self._members.by_id[joined.client]
        self.events.say(
            "client_ready",
            client=client,
            place=member.place.name,
            slots=member.place.slots,
            start_seconds=joined.ready.start_seconds,
            pss_bytes=joined.ready.pss_bytes,
        )
        for remark in joined.remarks:
            self._remarks.note(remark)
        self._lost_in.pop(client, None)
        self._without_setup.add(client)
        if self._setup is None:
            self._setups[client] = joined.arrays
        else:  # it was started again
            self.events.say("restored", client=client, round=member.saved_round)
            self._on_returned(client)

    def _on_answered(self, answered: Answered) -> None:
        client, result, current, now = answered.client, answered.result, self._open, self._clock()
        if current is None or not current.state.on_answer(client, result.attempt, now):
            return
        member = self._members.by_id[client]
        order = current.plan.order_for(client)
        if order.train or order.evaluate:  # whoever was only asked to save is as it was
            member.answered_round = result.round
        if current.plan.save:  # known at once: a client that dies before the round is over goes on from this state
            member.saved_round = result.round
        worked, travelled = current.state.seconds(client)
        round_trip = worked + travelled
        if "train" in result.seconds:
            member.train_seconds = worked
        seconds = {**result.seconds, "round_trip": round_trip}
        current.reports[client] = Report(dict(result.metrics), seconds, answered.arrays, answered.num_bytes)
        self.events.say("answered", round=result.round, client=client, seconds=round_trip)

    def _on_returned(self, client: int) -> None:
        if not self._send_setup(client):
            return
        if self._open is not None:
            self._open.state.on_return(client, self._members.by_id[client].place, self._clock())
        self._lost_in.pop(client, None)
        self.events.say("returned", client=client, round=self.reception.accounts.round)

    def _on_gone(self, client: int, reason: str) -> None:
        round, current = self.reception.accounts.round, self._open
        self.events.say("lost", client=client, round=round, reason=reason)
        self._lost_in.setdefault(client, round)
        if current is not None and not reason:
            current.state.on_lost(client, self._clock())
        elif current is not None and current.state.drop(client, reason, self._clock()):
            self.events.say("left_out", round=round, client=client, reason="refused")

    def _send_setup(self, client: int) -> bool:
        """To whoever may lack it, before its work. Whether the client is still there; a method without a set-up
        sends nothing."""
        if self._setup is None or not self._setup.specs or client not in self._without_setup:
            return True
        return self.reception.send(client, messages.Setup(run=self.reception.run), self._setup, "setup")


def _some(clients: list[int], most: int = 10) -> str:
    shown = ", ".join(map(str, clients[:most]))
    return shown if len(clients) <= most else f"{shown} and {len(clients) - most} more"
