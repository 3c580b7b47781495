"""The host of a local cluster: what its launcher makes of its end. No process is started."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsim import config
from fedsim.results.folder import RunFolder
from nodes.launchers import local
from nodes.launchers.base import MAX_RESTARTS, LaunchOptions
from nodes.launchers.local import LocalLauncher

PROCESS = 4711


class Screen:
    """What the user is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_event(self, event: dict[str, Any]) -> None:
        assert event["event"] == "note"
        self.notes.append(event["text"])


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[LocalLauncher, Screen]]:
    """`launched(run_clients, status)`: its clients are started, by a host whose process did this and ended with
    what it returned, or with that status."""

    def start(run_clients: Callable[..., int], status: int | None = None) -> tuple[LocalLauncher, Screen]:
        codes: list[int] = []
        folder, screen = RunFolder.create(tmp_path / "run", config.build([])), Screen()
        monkeypatch.setattr(local, "run_clients", run_clients)
        monkeypatch.setattr(local.zygote, "redirect_output", lambda path: None)
        monkeypatch.setattr(local.zygote, "fork", lambda main: codes.append(main()) or PROCESS)
        monkeypatch.setattr(local.capacity, "plan_host", lambda *_: local.capacity.HostPlan({}, "own", []))
        monkeypatch.setattr(local.capacity.Expected, "of", lambda *_: None)
        monkeypatch.setattr(local, "Federation", lambda _: None)

        def wait(process: int, options: int) -> tuple[int, int]:
            assert (process, options) == (PROCESS, os.WNOHANG)
            return PROCESS, codes[-1] << 8 if status is None else status

        monkeypatch.setattr(os, "waitpid", wait)
        launcher = LocalLauncher(folder, screen, LaunchOptions())
        launcher.start_clients("tcp://here:1")
        return launcher, screen

    return start


def test_a_host_that_crashed_is_told_of(launched, capsys: pytest.CaptureFixture[str]) -> None:
    """Its clients have died with it, and were not told to stop."""

    def crash(*_: object) -> int:
        raise ValueError("no such core")

    launcher, screen = launched(crash)
    launcher.watch_clients()
    launcher.watch_clients()
    (note,) = screen.notes
    story = "the host of the clients exited with code 70, and all its clients have died with it"
    assert note == f"{story}; see {launcher.folder.logs / 'clients.log'}"
    assert "ValueError: no such core" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 1, 3, 4])
def test_a_host_whose_clients_have_ended_by_themselves_is_not(launched, code: int) -> None:
    """They were told to stop, or have said themselves why they ended."""
    launcher, screen = launched(lambda *_: code)
    launcher.watch_clients()
    assert screen.notes == []


def test_notes_are_told_when_all_is_forked(launched, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live view draws in a thread from then on, and no fork may come upon that."""
    launcher, screen = launched(lambda *_: 0)
    plan = local.capacity.HostPlan({}, "own", ["little memory"])
    monkeypatch.setattr(local.capacity, "plan_host", lambda *_: plan)
    monkeypatch.setattr(local.zygote, "fork", lambda main: screen.notes.append("forked") or PROCESS)
    launcher.start_clients("tcp://here:1")
    assert screen.notes == ["forked", "little memory"]


def test_a_host_that_is_killed_again_and_again_is_told_of_at_last(launched) -> None:
    starts: list[int] = []
    launcher, screen = launched(lambda *_: starts.append(0) or 0, status=signal.SIGKILL)
    for _ in range(2 * MAX_RESTARTS):
        launcher.watch_clients()
    assert len(starts) == 1 + MAX_RESTARTS
    (note,) = screen.notes
    assert note.startswith("the host of the clients was killed by signal 9 (SIGKILL)")
