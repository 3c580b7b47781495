"""Serving a run folder: what becomes of a run that a signal or an error of the server's own ends."""

import csv
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

import pytest
from stage import Stage, in_round

from fedsim.errors import UserError
from nodes.server import program
from protocol import messages

Build = Callable[..., Stage]
Serve = Callable[..., int]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """Those that reach the handlers of before: by default they would end this process."""

    def __init__(self) -> None:
        self.heard: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.heard.append(number)

    @property
    def all_are_ours(self) -> bool:
        return all(signal.getsignal(number) is self for number in SIGNALS)


@pytest.fixture
def signals() -> Iterator[Signals]:
    before, ours = {number: signal.getsignal(number) for number in SIGNALS}, Signals()
    for number in SIGNALS:
        signal.signal(number, ours)
    yield ours
    signal.alarm(0)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, signals: Signals) -> Serve:
    """`serve(play, client_1=habit)`: a run over the doubles, as a server started by hand would make it."""

    def run(play: Stage, **habits: Callable[..., object]) -> int:
        play.server.addresses = [play.server.address]
        for client in range(play.experiment.run.clients):
            if client not in play.peers:
                play.peer(client, habits.get(f"client_{client}"))
        monkeypatch.setattr(program, "_prepare", lambda *_: (play.learner, None, play.server, {}))
        return program.serve(play.folder, watcher=play.said.append)

    return run


def press(number: int) -> None:
    os.kill(os.getpid(), number)


def is_armed() -> bool:
    """Whether something will kill this process if it takes too long."""
    return signal.getitimer(signal.ITIMER_REAL)[0] > 0


# ------------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("number", SIGNALS)
def test_what_follows_a_run_that_was_stopped_takes_the_time_it_takes(
    stage: Build, serve: Serve, signals: Signals, number: int
) -> None:
    """Such as drawing its report; who presses Ctrl-C then wants that to end."""
    play, armed = stage(run={"clients": 2, "rounds": 5}), []
    peer = play.peer(0, in_round(1, lambda *_: press(number)))
    peer.on_stop = lambda: (armed.append(is_armed()), peer.socket.close())
    assert serve(play) == 1
    summary = play.folder.summary()
    assert summary is not None and summary["reason"].startswith("the run was stopped (")
    assert armed == [True] and not is_armed()
    assert signals.all_are_ours and signals.heard == []


def test_after_a_run_that_nobody_stopped_signals_are_what_they_were(
    stage: Build, serve: Serve, signals: Signals
) -> None:
    assert serve(stage(run={"clients": 2, "rounds": 1})) == 0
    assert signals.all_are_ours and not is_armed()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_is_no_longer_the_run_s(stage: Build, serve: Serve, signals: Signals, number: int) -> None:
    play = stage(run={"clients": 2, "rounds": 5})
    peer = play.peer(0, in_round(1, lambda *_: press(signal.SIGUSR1)))
    peer.on_stop = lambda: (press(number), peer.socket.close())
    assert serve(play) == 1
    assert signals.heard == [number]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_under_a_launcher_the_same_signal_may_come_twice(
    stage: Build, serve: Serve, signals: Signals, number: int
) -> None:
    """To the whole group and once more from the launcher, which kills when it wants to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    play = stage(run={"clients": 2, "rounds": 5})
    peer = play.peer(0, in_round(1, lambda *_: (press(number), press(number))))
    peer.on_stop = lambda: (press(number), peer.socket.close())
    assert serve(play) == 1
    press(number)  # also after the run: its process only has to end
    assert signals.heard == [] and signal.getsignal(signal.SIGINT) is signal.SIG_IGN


# -------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("error", "sentence"),
    [(ValueError("no"), "ValueError: no"), (UserError("there is no such thing."), "there is no such thing.")],
)
def test_when_the_server_s_own_step_fails_everyone_is_told_and_results_are_kept(
    stage: Build, serve: Serve, error: Exception, sentence: str
) -> None:
    play = stage(run={"clients": 2, "rounds": 5})
    learn = play.learner.server.aggregate

    def fail_in_round_1(round: int, uploads: list[object]) -> object:
        def fail() -> NoReturn:
            raise error

        return fail() if round == 1 else learn(round, uploads)

    play.learner.server.aggregate = fail_in_round_1
    with pytest.raises(type(error), match=str(error)):
        serve(play)
    reason = f"the server failed: {sentence}"
    assert [peer.last() for peer in play.peers.values()] == 2 * [messages.Stop(reason=reason)]
    (failed,) = play.events_of("failed")
    assert failed["reason"] == sentence and str(play.folder.logs / "server.log") in failed["where"]
    summary = play.folder.summary()
    assert summary is not None and (summary["completed"], summary["reason"]) == (False, reason)
    assert summary["rounds"] == 1 and summary["audit"]["connections"] == 2
    assert (play.folder.path / "ledger.csv").exists() and "prototypes" in play.folder.final()


def test_an_error_after_the_end_does_not_end_it_twice(
    stage: Build, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise ValueError("no")

    monkeypatch.setattr(program, "summarise", fail)
    play = stage(run={"clients": 2, "rounds": 1})
    with pytest.raises(ValueError, match="no"):
        serve(play)
    for peer in play.peers.values():
        stops = [message for message in peer.heard if isinstance(message, messages.Stop)]
        assert stops == [messages.Stop(reason="the run is complete")]
    with (play.folder.path / "ledger.csv").open() as file:
        books = [int(row["wire_bytes"]) for row in csv.DictReader(file) if row["message"] == "handshake"]
    assert sorted(books) == sorted(2 * [*play.server.connections.all[0].handshake_bytes()])


# --------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("spare", [0, -1])
def test_a_server_needs_two_open_files_for_each_client(spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeroMQ's of its connection, and the duplicate by which its bytes are counted at last."""
    limit = 2 * 500 + 64 + spare
    monkeypatch.setattr(program.processes, "raise_file_limit", lambda: limit)
    if spare == 0:
        program._require_files(500)
        return
    with pytest.raises(UserError, match=f"^500 clients need about 1064 open files .* and {limit} are allowed"):
        program._require_files(500)
