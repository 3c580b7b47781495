"""A cluster whose folder is thrown away: its reason must hold all that will be gone with it."""

from pathlib import Path

import pytest
from rich.console import Console

from fedsim.config import build
from fedsim.errors import UserError
from fedsim.results.folder import RunFolder
from nodes.display.run import Quiet
from nodes.launchers.local import LocalLauncher
from nodes.tools.scratch import run_cluster


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", build([{"run": {"clients": 2}}]))


def fails(monkeypatch: pytest.MonkeyPatch, sentence: str, log: str) -> None:
    def run(self: LocalLauncher) -> int:
        (self.folder.logs / "server.log").write_text(log)
        raise UserError(sentence)

    monkeypatch.setattr(LocalLauncher, "run", run)


def test_a_reason_holds_the_end_of_the_log_and_not_its_place(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = "".join(f"line {number}\n" for number in range(100)) + "OSError: no luck\n"
    fails(monkeypatch, f"the server did not start; see {folder.logs / 'server.log'}.", log)
    reason = run_cluster(folder, Quiet(Console(quiet=True)))
    assert reason.startswith("the server did not start.\nline 93\n") and reason.endswith("OSError: no luck")
    assert str(folder.path) not in reason


def test_who_interrupts_it_interrupts_the_command(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, "the server was killed by SIGKILL.", "")
    monkeypatch.setattr(LocalLauncher, "interrupted", True)
    with pytest.raises(KeyboardInterrupt):
        run_cluster(folder, Quiet(Console(quiet=True)))


def test_one_with_a_result_has_no_reason(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalLauncher, "run", lambda self: 0)
    folder.write_summary({"completed": True})
    assert run_cluster(folder, Quiet(Console(quiet=True))) == ""
    folder.write_summary({"completed": False, "reason": "client 1 failed"})
    assert run_cluster(folder, Quiet(Console(quiet=True))) == "client 1 failed"
