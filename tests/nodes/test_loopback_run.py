"""A whole run in one thread: the real server and real clients, all but the network, against the oracle."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from socket import gethostname

import pytest
import torch
from commands import bits, events, rows
from loopback import Clock, LoopbackClient, LoopbackServer

from fedsim import assembly, config
from fedsim.config import Experiment
from fedsim.results.folder import RunFolder
from nodes.client.node import ClientNode
from nodes.client.options import ClientOptions
from nodes.inprocess import run_in_process
from nodes.launchers import processes
from nodes.launchers.placement import place_client
from nodes.server.events import EventLog
from nodes.server.learner import Learner
from nodes.server.loop import ServerLoop
from nodes.server.reception import Reception

POINTS = {
    "data": {"dataset": "spiral", "samples_per_class": 20},
    "model": {"group": "MLP", "feature_dim": 3},
    "run": {"clients": 3, "rounds": 2, "participation": 0.7},
    "cluster": {"server_threads": 1},
}


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """`play(experiment)`: the folder of a run over the doubles; with `cut`, answers of that client are lost."""
    monkeypatch.setattr(processes, "pin", lambda core: None)
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    num_threads = torch.get_num_threads()

    def run(experiment: Experiment, cut: int | None = None) -> Path:
        torch.set_num_threads(1)
        folder = RunFolder.create(tmp_path / "loopback", experiment)
        clock = Clock()
        server = LoopbackServer(clock)
        learner = Learner(experiment, assembly.check(experiment), folder, torch.device("cpu"))
        reception = Reception(server, experiment, learner.border, clock=clock)
        for client in range(experiment.run.clients):
            server.turns.append(live(client, LoopbackClient(server, client), clock, is_cut=client == cut))
        with closing(EventLog(folder.path / "events.jsonl")) as log:
            outcome = ServerLoop(learner, reception, log).run()
        assert outcome.completed and all(audit.agrees for audit in outcome.audits if not audit.closed_early)
        return folder.path

    def live(client: int, socket: LoopbackClient, clock: Clock, is_cut: bool) -> Callable[[], None]:
        options = ClientOptions(connect="tcp://loopback:1", ids=[client], state_dir=tmp_path / "states")
        cores = processes.cores()
        placement = place_client(client, host=gethostname(), gpus=[], cores=cores, slots=0)  # as in a real cluster
        node = ClientNode(client, options, placement, socket, clock)
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


@pytest.mark.parametrize("method", ["fedproto", "fedgen"])  # without and with a set-up
def test_a_run_over_the_doubles_gives_the_bits_of_the_oracle(play, oracle, method: str) -> None:
    experiment = config.build([POINTS, {"method": {"name": method}}])
    assert bits(play(experiment)) == bits(oracle(experiment))


def test_the_ledger_of_a_run_over_the_doubles_is_that_of_a_run_over_sockets(play, cluster) -> None:
    """To the byte, with all handshakes and all that only clients without a network could leave out."""
    run = cluster().succeed()
    experiment = RunFolder.open(run.folder).experiment()
    assert rows(play(experiment) / "ledger.csv") == rows(run.folder / "ledger.csv")


def test_answers_that_are_lost_with_the_connection_change_no_bit(play, oracle) -> None:
    """In every round the client is asked again, and answers again without working twice."""
    experiment = config.build([POINTS, {"method": {"name": "fedproto"}}])
    folder = play(experiment, cut=1)
    assert bits(folder) == bits(oracle(experiment))
    ready, *happened = [event for event in events(folder) if event.get("client") == 1]
    assert ready["event"] == "client_ready"
    assert [(event["event"], event["round"]) for event in happened] == [
        (kind, round) for round in range(3) for kind in ("asked", "lost", "returned", "asked", "answered")
    ]
