"""The oracle: the same experiment in one process, without sockets. A cluster run gives the same bits."""

import shutil
import time

import torch

from fedsim import assembly
from fedsim.contract import Arrays
from fedsim.errors import UserError
from fedsim.method import Client, State, Upload
from fedsim.metrics import Row
from fedsim.results.folder import RunFolder
from nodes.border import check_metrics, where
from nodes.checkpoint import StateFiles
from nodes.launchers.placement import use_server_device, use_server_threads
from nodes.server.events import EventLog, Watcher
from nodes.server.learner import Learner
from nodes.server.program import results_summary
from nodes.work import Report, carry_out


class Oracle:
    """A server and its clients as objects; each message is checked at the border as if it travelled."""

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
        self.border, self.contract = self.learner.border, self.learner.border.contract
        torch.set_num_threads(1)  # as in a client's process
        self.clients = [self._new_client(client) for client in range(self.experiment.run.clients)]
        self.sizes = {client: len(half.data.train) for client, half in enumerate(self.clients)}
        self._agreed: Arrays = {}

    def set_up(self) -> None:
        """What is agreed on once, before the first round."""
        uploads = [Upload(client, self.sizes[client], self._set_up(client)) for client in self.sizes]
        use_server_threads(self.experiment.cluster)
        self._agreed = self.learner.setup(uploads)
        torch.set_num_threads(1)
        for client in self.sizes:
            self._tell(client)

    def play(self, round: int) -> Row:
        """One round: every client after the other, then the server."""
        plan, reports = self.learner.plan(round), {}
        for client in sorted([*plan.cohort, *plan.others]):
            down = self.border.incoming(self.learner.down, self.contract.down, where(client, round, "down"))
            report = carry_out(self.clients[client], plan.order_for(client), down)
            check_metrics(report.metrics, where(client, round, "up"))
            arrays = self.border.incoming(report.arrays, self.contract.up, where(client, round, "up"))
            reports[client] = Report(report.metrics, report.seconds, arrays)
        use_server_threads(self.experiment.cluster)
        row = self.learner.conclude(plan, reports, self.sizes)
        torch.set_num_threads(1)
        return row

    def restart(self, *, server: bool) -> None:
        """All clients, and on request the server, are made anew and take up what a checkpoint holds of them."""
        for client, half in enumerate(self.clients):
            state = self._saved(f"client-{client:05d}", half.state())
            self.clients[client] = self._new_client(client)
            self.clients[client].load_state(state)
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

    def _set_up(self, client: int) -> Arrays:
        arrays = self.clients[client].setup()
        return self.border.incoming(arrays, self.contract.setup_up, f"client {client}, set-up, up")

    def _tell(self, client: int) -> None:
        if fields := self.contract.setup_down:
            down = self.border.incoming(self._agreed, fields, f"client {client}, set-up, down")
            self.clients[client].receive_setup(down)

    def _saved(self, name: str, state: State) -> State:
        files = StateFiles(self.folder.checkpoints / name)
        files.save(0, state)
        return files.load(0)


def run_in_process(folder: RunFolder, watcher: Watcher | None = None) -> int:
    with folder.in_use():
        return _run(folder, watcher)


def _run(folder: RunFolder, watcher: Watcher | None) -> int:
    started = time.monotonic()
    oracle = Oracle(folder)
    events = EventLog(folder.path / "events.jsonl", watcher)
    events.say("started", address="in process", resumed_from=None)
    oracle.set_up()
    for round in range(oracle.learner.last_round + 1):
        begun, cohort = time.monotonic(), oracle.learner.plan(round).cohort
        events.say("round_started", round=round, cohort=len(cohort))
        row = oracle.play(round)
        events.say("round_finished", **row, seconds=time.monotonic() - begun)
    if oracle.learner.down:
        folder.write_final(oracle.learner.down)
    summary = {
        **results_summary(oracle.learner),
        "completed": True,
        "reason": "the run is complete",
        "seconds": time.monotonic() - started,
    }
    folder.write_summary(summary)
    events.say("finished", summary=summary)
    events.close()
    return 0
