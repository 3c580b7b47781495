"""The oracle: the same experiment in one process, without sockets. A cluster run gives the same bits."""

import shutil
import time

import torch

from fedsim import assembly
from fedsim.data import Federation
from fedsim.errors import UserError
from fedsim.method import Upload
from fedsim.results.folder import RunFolder
from nodes.border import check_metrics, where
from nodes.launchers.placement import use_server_device, use_server_threads
from nodes.server.events import EventLog, Watcher
from nodes.server.learner import Learner
from nodes.server.program import results_summary
from nodes.work import Report, carry_out


def run_in_process(folder: RunFolder, watcher: Watcher | None = None) -> int:
    """Every client after the other, each message checked at the border as if it travelled."""
    with folder.in_use():
        return _run(folder, watcher)


def _run(folder: RunFolder, watcher: Watcher | None) -> int:
    experiment = folder.experiment()
    started = time.monotonic()
    federation: Federation = assembly.check(experiment)
    folder.write_partition(*federation.class_counts())
    device = use_server_device(experiment.cluster)
    use_server_threads(experiment.cluster)
    try:
        learner = Learner(experiment, federation, folder, device)
    except UserError:
        shutil.rmtree(folder.path)  # a run that could not begin leaves nothing behind
        raise
    border, contract = learner.border, learner.border.contract
    torch.set_num_threads(1)  # as in a client's process
    clients = [assembly.make_client(experiment, federation, i, device) for i in range(experiment.run.clients)]
    sizes = {client: len(half.data.train) for client, half in enumerate(clients)}
    events = EventLog(folder.path / "events.jsonl", watcher)
    events.say("started", address="in process", resumed_from=None)

    uploads = []
    for client, half in enumerate(clients):
        arrays = border.incoming(half.setup(), contract.setup_up, f"client {client}, set-up, up")
        uploads.append(Upload(client, sizes[client], arrays))
    use_server_threads(experiment.cluster)
    setup = learner.setup(uploads)
    torch.set_num_threads(1)
    for client, half in enumerate(clients):
        if contract.setup_down:
            half.receive_setup(border.incoming(setup, contract.setup_down, f"client {client}, set-up, down"))

    for round in range(learner.last_round + 1):
        plan, begun = learner.plan(round), time.monotonic()
        events.say("round_started", round=round, cohort=len(plan.cohort))
        reports = {}
        for client in sorted([*plan.cohort, *plan.others]):
            down = border.incoming(learner.down, contract.down, where(client, round, "down"))
            report = carry_out(clients[client], plan.order_for(client), down)
            check_metrics(report.metrics, where(client, round, "up"))
            arrays = border.incoming(report.arrays, contract.up, where(client, round, "up"))
            reports[client] = Report(report.metrics, report.seconds, arrays)
        use_server_threads(experiment.cluster)
        row = learner.conclude(plan, reports, sizes)
        torch.set_num_threads(1)
        events.say("round_finished", **row, seconds=time.monotonic() - begun)

    if learner.down:
        folder.write_final(learner.down)
    summary = {
        **results_summary(learner),
        "completed": True,
        "reason": "the run is complete",
        "seconds": time.monotonic() - started,
    }
    folder.write_summary(summary)
    events.say("finished", summary=summary)
    events.close()
    return 0
