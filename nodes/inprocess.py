"""The oracle: the same experiment in one process, without sockets. A cluster run gives the same bits."""

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

import torch

from fedsim import assembly
from fedsim.contract import Arrays
from fedsim.errors import UserError
from fedsim.method import Client, State, Upload
from fedsim.metrics import Row
from fedsim.results.folder import RunFolder
from nodes.border import Border, Items, Passage, check_metrics, require_frames_fit, travelled_bytes
from nodes.checkpoint import StateFiles
from nodes.launchers.placement import use_server_device, use_server_threads
from nodes.server.events import EventLog, Watcher
from nodes.server.learner import Learner, Plan
from nodes.server.program import results_summary
from nodes.work import Report, carry_out, num_bytes
from protocol.codec import Parcel, unpack
from protocol.limits import Limits


class Oracle:
    """A server and its clients as objects; each message passes the border twice, as if it travelled."""

    def __init__(self, folder: RunFolder):
        self.folder = folder
        self.experiment = folder.experiment()
        self.federation = assembly.check(self.experiment)
        folder.write_partition(*self.federation.class_counts())
        self._device = use_server_device(self.experiment.cluster)
        use_server_threads(self.experiment.cluster)
        try:
            self.learner = self._new_learner()
        except UserError:
            shutil.rmtree(folder.path)  # a run that could not begin leaves nothing behind
            raise
        torch.set_num_threads(1)  # as in a client's process
        everyone = range(self.experiment.run.clients)
        self.clients = [self._new_client(client) for client in everyone]
        self._borders = [self._new_border() for _ in everyone]
        self.sizes = {client: len(half.data.train) for client, half in enumerate(self.clients)}
        self._agreed = Parcel()

    def set_up(self) -> None:
        """What is agreed on once, before the first round."""
        uploads = [Upload(client, self.sizes[client], self._set_up(client)) for client in self.sizes]
        use_server_threads(self.experiment.cluster)
        self._agreed = self.learner.border.outgoing(self.learner.setup(uploads), Passage("setup_down"))
        torch.set_num_threads(1)
        for client in self.sizes:
            self._tell(client)

    def play(self, round: int, answered: Callable[[int], None] = lambda client: None) -> Row:
        """One round: every client after the other, each of which is `answered`, then the server."""
        plan, reports = self.learner.plan(round), {}
        down = self.learner.border.outgoing(self.learner.down, Passage("down", round=round))
        for client in sorted([*plan.cohort, *plan.others]):
            try:
                reports[client] = self._ask(client, plan, down)
            except Exception as error:
                error.add_note(f"client {client} failed in round {round}")
                raise
            answered(client)
        use_server_threads(self.experiment.cluster)
        row = self.learner.conclude(plan, reports, self.sizes, num_bytes(down))
        torch.set_num_threads(1)
        return row

    def _ask(self, client: int, plan: Plan, down: Parcel) -> Report:
        round = plan.order.round
        received = self._borders[client].incoming(self._arrived(down), Passage("down", client, round))
        report = carry_out(self.clients[client], plan.order_for(client), received)
        passage = Passage("up", client, round)
        check_metrics(report.metrics, str(passage))
        items = self._arrived(self._borders[client].outgoing(report.arrays, passage))
        arrays = self.learner.border.incoming(items, passage)
        return Report(report.metrics, report.seconds, arrays, travelled_bytes(items))

    def restart(self, *, server: bool) -> None:
        """All clients, and on request the server, are made anew and take up what a checkpoint holds of them."""
        for client, half in enumerate(self.clients):
            state = self._saved(f"client-{client:05d}", half.state())
            memory = self._saved(f"border-{client:05d}", self._borders[client].state())
            self.clients[client], self._borders[client] = self._new_client(client), self._new_border()
            self.clients[client].load_state(state)
            self._borders[client].load_state(memory)
        if server:
            history, state = self.learner.history, self._saved("server", self.learner.state())
            self.learner = self._new_learner()
            self.learner.load_state(state, history)
            self.set_up()
        else:  # they join again, and the server remembers what was agreed
            for client in self.sizes:
                self._set_up(client)
                self._tell(client)

    def _new_learner(self) -> Learner:
        return Learner(self.experiment, self.federation, self.folder, self._device)

    def _new_client(self, client: int) -> Client:
        return assembly.make_client(self.experiment, self.federation, client, self._device)

    def _new_border(self) -> Border:
        server = self.learner.border
        return Border(server.contract, server.dimensions, self.experiment.wire or {}, self.experiment.run.seed)

    def _set_up(self, client: int) -> Arrays:
        return self._sent_up(client, self.clients[client].setup(), Passage("setup_up", client))

    def _sent_up(self, client: int, arrays: Arrays, passage: Passage) -> Arrays:
        """Through the client's border and the server's, as it would go over the wire."""
        items = self._arrived(self._borders[client].outgoing(arrays, passage))
        return self.learner.border.incoming(items, passage)

    def _tell(self, client: int) -> None:
        if self._agreed.specs or self.learner.border.contract.setup_down:
            down = self._borders[client].incoming(self._arrived(self._agreed), Passage("setup_down", client))
            self.clients[client].receive_setup(down)

    def _arrived(self, parcel: Parcel) -> Items:
        """The arrays as whoever receives them finds them; what no node of a cluster would take is refused."""
        most = self.experiment.cluster.max_frame_mib
        require_frames_fit(parcel, most)
        return unpack(parcel, Limits.of_frames(most))

    def _saved(self, name: str, state: State) -> State:
        files = StateFiles(self.folder.checkpoints / name)
        files.save(0, state)
        return files.load(0)


def run_in_process(folder: RunFolder, watcher: Watcher | None = None) -> int:
    """Returns the exit code. Ctrl-C ends a run with the results so far; whatever else is raised comes out as it
    is, with the client and the round as a note."""
    with folder.in_use(), closing(EventLog(folder.path / "events.jsonl", watcher, folder.experiment())) as events:
        started = time.monotonic()
        oracle = Oracle(folder)
        completed, reason = True, "the run is complete"
        try:
            _play_all(oracle, events)
        except KeyboardInterrupt:
            completed, reason = False, "the run was stopped (Ctrl-C)"
        if oracle.learner.down:
            folder.write_final(oracle.learner.down)
        ended = {"completed": completed, "reason": reason, "seconds": time.monotonic() - started}
        summary = {**results_summary(oracle.learner), **ended}
        folder.write_summary(summary)
        events.say("finished", summary=summary)
        return 0 if completed else 1


def _say_answered(events: EventLog, round: int, client: int) -> None:
    events.say("answered", round=round, client=client)


def _play_all(oracle: Oracle, events: EventLog) -> None:
    events.say("started", address="in process", resumed_from=None)
    oracle.set_up()
    for round in range(oracle.learner.last_round + 1):
        begun, plan = time.monotonic(), oracle.learner.plan(round)
        events.say("round_started", round=round, cohort=len(plan.cohort), clients=plan.num_asked)
        row = oracle.play(round, partial(_say_answered, events, round))
        events.say_absences(round, oracle.learner.take_absences())
        if warning := oracle.learner.take_warning():
            events.say("warning", round=round, reason=warning)
        events.say("round_finished", **row, seconds=time.monotonic() - begun)
