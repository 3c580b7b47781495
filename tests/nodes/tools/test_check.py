"""`fedsim check` is stopped: nothing goes on writing into a folder that is about to be removed."""

import os
import signal
import time
from pathlib import Path

import pytest

from fedsim.results.folder import RunFolder
from nodes.tools.check import Examination, small_experiment

FOR_EVER_SECONDS = 60.0


@pytest.mark.process
def test_who_stops_a_run_stops_its_process_at_once(tmp_path: Path) -> None:
    layers = [{"method": {"name": "fedproto"}}]

    def interrupt(folder: RunFolder) -> None:
        (tmp_path / "child").write_text(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(FOR_EVER_SECONDS)

    with pytest.raises(KeyboardInterrupt):
        Examination(layers, tmp_path)._run(interrupt, small_experiment(layers))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "child").read_text()), 0)
