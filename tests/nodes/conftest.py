"""Whole runs in one thread, over doubles of the sockets, and the oracle to hold them against."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from loopback import Clock, LoopbackClient, LoopbackServer

from fedsim import assembly
from fedsim.config import Experiment
from fedsim.results.folder import RunFolder
from nodes.client.node import ClientNode
from nodes.client.options import ClientOptions
from nodes.client.own import OwnWorker
from nodes.client.worker import Worker
from nodes.inprocess import run_in_process
from nodes.launchers import processes
from nodes.launchers.placement import Placement, host_name, place_clients
from nodes.server.events import EventLog
from nodes.server.learner import Learner
from nodes.server.loop import ServerLoop
from nodes.server.reception import Reception
from protocol.audit import Verdict

PLACEMENT = place_clients([0], host=host_name(), cores=processes.cores())[0]  # as in a real cluster
MakeWorker = Callable[[int, Placement], Worker]


def own_worker(client: int, placement: Placement) -> Worker:
    return OwnWorker(client, placement, processes.Turnstile(1))


@pytest.fixture
def play(tmp_path: Path, command_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """`play(experiment)`: the folder of a run over the doubles; with `cut`, answers of that client are lost. Who
    computes for a client is `make_worker`'s choice."""
    monkeypatch.setattr(processes, "pin", lambda core: None)
    monkeypatch.setenv("FEDSIM_CACHE", str(command_cache))
    num_threads = torch.get_num_threads()

    def run(experiment: Experiment, cut: int | None = None, make_worker: MakeWorker = own_worker) -> Path:
        torch.set_num_threads(1)
        folder = RunFolder.create(tmp_path / "loopback", experiment)
        clock = Clock()
        server = LoopbackServer(clock)
        learner = Learner(experiment, assembly.check(experiment), folder, torch.device("cpu"))
        reception = Reception(server, experiment, learner.border, clock=clock)
        for client in range(experiment.run.clients):
            worker = make_worker(client, PLACEMENT)
            server.turns.append(live(client, LoopbackClient(server, client), clock, client == cut, worker))
        with closing(EventLog(folder.path / "events.jsonl", None, experiment)) as log:
            outcome = ServerLoop(learner, reception, log).run()
        assert outcome.completed and not [audit for audit in outcome.audits if audit.verdict is Verdict.DIFFERS]
        return folder.path

    def live(
        client: int, socket: LoopbackClient, clock: Clock, is_cut: bool, worker: Worker
    ) -> Callable[[], None]:
        options = ClientOptions(connect="tcp://loopback:1", ids=[client], state_dir=tmp_path / "states")
        node = ClientNode(client, options, PLACEMENT, socket, worker, clock)
        num_connects = num_messages = 0

        def turn() -> None:
            """As many steps as there is something to do. A connection that `is_cut` loses every other answer."""
            nonlocal num_connects, num_messages
            while node.exit_code is None and (socket.inbox or socket.num_connects > num_connects):
                num_connects, num_messages = socket.num_connects, num_messages + bool(socket.inbox)
                had_message = bool(socket.inbox)
                node.step()
                if is_cut and had_message and num_messages % 2 == 0:
                    socket.cut(lossy=True)
                    clock.after(1, socket.connect)
            if node.exit_code is not None:
                socket.close()

        return turn

    yield run
    torch.set_num_threads(num_threads)


@pytest.fixture
def oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Experiment], Path]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(experiment: Experiment) -> Path:
        folder = RunFolder.create(tmp_path / "oracle", experiment)
        assert run_in_process(folder) == 0
        return folder.path

    return run
