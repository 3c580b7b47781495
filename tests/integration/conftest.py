"""What clients of a finished run hold, to say what must have travelled."""

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Run

from fedsim.data import Federation
from fedsim.results.folder import RunFolder


@pytest.fixture
def classes_held(command_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], list[int]]:
    """`classes_held(run)`: C_i of each client. An epoch covers whole batches only, and prototypes are of these."""
    monkeypatch.setenv("FEDSIM_CACHE", str(command_cache))

    def held(run: Run) -> list[int]:
        experiment = RunFolder.open(run.folder).experiment()
        federation, batch = Federation(experiment), experiment.train.batch_size
        labels = [federation.client(client).train.labels for client in range(experiment.run.clients)]
        return [len(set(own[: len(own) // batch * batch or len(own)].tolist())) for own in labels]

    return held
