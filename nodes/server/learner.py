"""The learning half of the server: whom a round asks, what it makes of the answers, what is recorded.

No sockets and no processes: the cluster's server and the in-process oracle are driven by the same learner,
which is why they give the same bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedsim import assembly
from fedsim.config import Experiment
from fedsim.contract import Arrays
from fedsim.data import Federation
from fedsim.learning.stopwatch import Stopwatch
from fedsim.method import State, Upload
from fedsim.metrics import Attendance, Metrics, Row, recorded, round_row
from fedsim.results.folder import RunFolder
from fedsim.seeds import Streams
from nodes.border import Border
from nodes.work import Order, Report


@dataclass(frozen=True)
class Plan:
    """Who is asked what in one round. The cohort carries the method; the others are asked to evaluate or save."""

    order: Order
    cohort: list[int]
    others: list[int]
    save: bool

    def attendance(self, num_clients: int) -> Attendance:
        """Whom the round is about: who trains, and who is only tested."""
        expected = len(self.cohort) + (len(self.others) if self.order.evaluate else 0)
        return Attendance(expected, num_clients - expected)

    def order_for(self, client: int) -> Order:
        return self.order if client in self.cohort else Order(self.order.round, False, self.order.evaluate)


class Learner:
    """Round after round: `plan`, then `conclude` with the reports. Rounds count from 0; round `rounds` only
    evaluates, so that the last aggregation counts."""

    def __init__(self, experiment: Experiment, federation: Federation, folder: RunFolder, device: torch.device):
        self.experiment = experiment
        self.folder = folder
        self.stopwatch = Stopwatch(torch.cuda.synchronize if device.type == "cuda" else None)
        self.server = assembly.make_server(experiment, federation, device, self.stopwatch)
        setting = assembly.setting_of(experiment, federation)
        self.border = Border(assembly.contract_of(experiment), setting.dimensions)
        self.down: Arrays = {}
        self.history: list[Row] = []
        self.is_learning = False
        """True inside the server's own step, which may take minutes and can be thrown away at any moment."""
        self._streams = Streams(experiment.run.seed)

    @property
    def last_round(self) -> int:
        return self.experiment.run.rounds

    def plan(self, round: int) -> Plan:
        run, every = self.experiment.run, self.experiment.cluster.checkpoint_every
        train = round < self.last_round
        evaluate = run.is_evaluated(round)
        # Nothing needs saving after the last round: a finished run is not resumed.
        save = every > 0 and train and (round + 1) % every == 0
        size = max(1, int(run.clients * run.participation))
        drawn = self._streams.numpy("cohort", round=round).choice(run.clients, size, replace=False)
        cohort = sorted(int(client) for client in drawn)
        everyone = range(run.clients) if evaluate or save else ()
        others = [client for client in everyone if client not in set(cohort)]
        return Plan(Order(round, train, evaluate), cohort, others, save)

    def setup(self, uploads: list[Upload]) -> Arrays:
        return self.server.setup(sorted(uploads, key=lambda upload: upload.client))

    def conclude(self, plan: Plan, reports: Mapping[int, Report], sizes: Mapping[int, int]) -> Row:
        """Record a round and let the server learn from it. `sizes` are the clients' training set sizes."""
        round = plan.order.round
        # Whoever was only asked to save has no part in the round: checkpoints change no result.
        took_part = [client for client in sorted(reports) if plan.order.evaluate or client in plan.cohort]
        ordered = {client: reports[client] for client in took_part}
        of_server: Metrics = {}
        if plan.order.train:
            uploads = [
                Upload(client, sizes[client], report.arrays)
                for client, report in ordered.items()
                if client in plan.cohort
            ]
            self.is_learning = True
            try:
                with self.stopwatch.part("aggregation"):
                    step = self.server.aggregate(round, uploads)
            finally:
                self.is_learning = False
            self.folder.add_server_timings(round, self.stopwatch.take())
            self.down, of_server = step.down, step.metrics
            self.folder.add_records(round, step.records)
        of_clients = {client: report.metrics for client, report in ordered.items()}
        run = self.experiment.run
        row = round_row(round, list(of_clients.values()), of_server, run.metric, plan.attendance(run.clients))
        self.history.append(row)
        self.folder.add_metrics(row)
        self.folder.add_client_metrics(round, {client: recorded(given) for client, given in of_clients.items()})
        self.folder.add_timings(round, {client: report.seconds for client, report in reports.items()})
        return row

    def state(self) -> State:
        """What a checkpoint of the server holds: the method's state and what goes down next."""
        down = {f"down.{name}": array for name, array in self.down.items()}
        return down | {f"server.{name}": array for name, array in self.server.state().items()}

    def load_state(self, state: State, history: list[Row]) -> None:
        parts: dict[str, State] = {"down": {}, "server": {}}
        for name, array in state.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = array
        self.down = parts["down"]
        self.server.load_state(parts["server"])
        self.history = history
