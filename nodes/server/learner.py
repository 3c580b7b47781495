"""The learning half of the server: whom a round asks, what it makes of the answers, what is recorded.

No sockets and no processes: the cluster's server and the in-process oracle are driven by the same learner,
which is why they give the same bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from fedsim import assembly
from fedsim.config import Experiment
from fedsim.contract import Arrays
from fedsim.data import Federation
from fedsim.learning.stopwatch import Stopwatch
from fedsim.method import State, Upload
from fedsim.metrics import GPU_PEAK_BYTES, Attendance, Metrics, Row, recorded, round_row
from fedsim.results.folder import RunFolder
from fedsim.seeds import Streams
from fedsim.world.cohort import cohort_of, dropped_of
from fedsim.world.referee import Referee
from fedsim.world.ruling import COUNTS, Ruling
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

    @property
    def num_asked(self) -> int:
        return len(self.cohort) + len(self.others)

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
        contract, seed = assembly.contract_of(experiment), experiment.run.seed
        self.border = Border(contract, setting.dimensions, experiment.wire or {}, seed)
        self.down: Arrays = {}
        self.history: list[Row] = []
        self.gpu_peak_bytes = 0.0
        """The most that any client has had of a GPU; 0 on CPUs."""
        self.warning = ""
        """Of the last step; whoever takes it tells the user."""
        self.is_learning = False
        """True inside the server's own step, which may take minutes and can be thrown away at any moment."""
        self._streams = Streams(experiment.run.seed)
        self._referee = Referee(experiment, federation) if Referee.is_needed(experiment) else None
        self.absences: list[Ruling] = []
        """Of the last round; whoever takes them tells the user."""

    @property
    def last_round(self) -> int:
        return self.experiment.run.rounds

    def plan(self, round: int) -> Plan:
        run, every = self.experiment.run, self.experiment.cluster.checkpoint_every
        train = round < self.last_round
        evaluate = run.is_evaluated(round)
        # Nothing needs saving after the last round: a finished run is not resumed.
        save = every > 0 and train and (round + 1) % every == 0
        cohort = self._referee.cohort(round) if self._referee and train else cohort_of(run, round)
        everyone = range(run.clients) if evaluate or save else ()
        others = [client for client in everyone if client not in set(cohort)]
        return Plan(Order(round, train, evaluate), cohort, others, save)

    def setup(self, uploads: list[Upload]) -> Arrays:
        return self.server.setup(sorted(uploads, key=lambda upload: upload.client))

    def conclude(
        self, plan: Plan, reports: Mapping[int, Report], sizes: Mapping[int, int], down_bytes: int = 0
    ) -> Row:
        """Record a round and let the server learn from it. `sizes` are the clients' training set sizes,
        `down_bytes` those of the arrays that went down to each of them."""
        round = plan.order.round
        # Whoever was only asked to save has no part in the round: checkpoints change no result.
        took_part = [client for client in sorted(reports) if plan.order.evaluate or client in plan.cohort]
        ordered = {client: reports[client] for client in took_part}
        of_server: Metrics = {}
        if plan.order.train:
            absent = self._absent(plan, ordered, down_bytes)
            uploads = [
                Upload(client, sizes[client], {} if client in absent else report.arrays)
                for client, report in ordered.items()
                if client in plan.cohort
            ]
            if not absent or len(absent) < len(uploads):
                of_server = self._learn(round, uploads)
            if self._referee:
                of_server = of_server | {"late": sum(ruling.outcome == "late" for ruling in self.absences)}
        of_clients = {client: report.metrics for client, report in ordered.items()}
        run = self.experiment.run
        if run.drop_rate and plan.order.train:
            of_server = of_server | {"dropped": len(dropped_of(run, round) & set(plan.cohort))}
        row = round_row(
            round,
            list(of_clients.values()),
            of_server,
            run.metric,
            plan.attendance(run.clients),
            spread=run.measures == "all",
        )
        self.history.append(row)
        self.folder.add_metrics(row)
        self.folder.add_client_metrics(round, {client: recorded(given) for client, given in of_clients.items()})
        self.folder.add_timings(round, {client: report.seconds for client, report in reports.items()})
        peaks = [report.seconds.get(GPU_PEAK_BYTES, 0.0) for report in reports.values()]
        self.gpu_peak_bytes = max(self.gpu_peak_bytes, *peaks, 0.0)
        return row

    def _learn(self, round: int, uploads: list[Upload]) -> Metrics:
        """The server's own step."""
        self.is_learning = True
        try:
            with self.stopwatch.part("aggregation"):
                step = self.server.aggregate(round, uploads)
        finally:
            self.is_learning = False
        self.folder.add_server_timings(round, self.stopwatch.take())
        self.down, self.warning = step.down, step.warning
        self.folder.add_records(round, step.records)
        return step.metrics

    def _absent(self, plan: Plan, reports: Mapping[int, Report], down_bytes: int) -> set[int]:
        """Those that have trained and do not count, by the virtual clock."""
        if self._referee is None:
            return set()
        sent = {client: report.num_bytes for client, report in reports.items()}
        rulings = self._referee.rule(plan.order.round, plan.cohort, down_bytes, sent)
        self.folder.add_rulings(plan.order.round, rulings)
        self.absences = [ruling for ruling in rulings if ruling.outcome != COUNTS]
        return {ruling.client for ruling in self.absences} & set(plan.cohort)

    def take_absences(self) -> list[Ruling]:
        """Who did not count in the last round, once."""
        absences, self.absences = self.absences, []
        return absences

    def take_warning(self) -> str:
        """What the server's last step has to say to the user, once; mostly nothing."""
        warning, self.warning = self.warning, ""
        return warning

    def state(self) -> State:
        """What a checkpoint of the server holds: the method's state and what goes down next."""
        down = {f"down.{name}": array for name, array in self.down.items()}
        world = {"world.now": np.array(self._referee.now)} if self._referee else {}
        return down | world | {f"server.{name}": array for name, array in self.server.state().items()}

    def load_state(self, state: State, history: list[Row]) -> None:
        parts: dict[str, State] = {"down": {}, "server": {}, "world": {}}
        for name, array in state.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = array
        self.down = parts["down"]
        if self._referee:
            self._referee.now = float(parts["world"]["now"])
        self.server.load_state(parts["server"])
        self.history = history
