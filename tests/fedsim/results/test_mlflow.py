"""Which run of MLflow a folder is. MLflow is an extra, so its client is a double that knows runs by their tags."""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_run import make_run

from fedsim.results.folder import RunFolder
from fedsim.results.trackers import Tracked, mlflow


@dataclass
class Client:
    """Of a store with one experiment."""

    runs: list[dict[str, str]] = field(default_factory=list)

    def get_experiment_by_name(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(experiment_id="0")

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> SimpleNamespace:
        self.runs.append(tags)
        return self._run(len(self.runs) - 1)

    def search_runs(self, experiments: list[str], filter: str) -> list[SimpleNamespace]:
        wanted = dict(re.findall(r"tags\.`([^`]+)` = '((?:[^'\\]|\\.)*)'", filter))
        assert filter == " AND ".join(f"tags.`{tag}` = '{value}'" for tag, value in wanted.items())
        found = {tag: value.replace("\\'", "'") for tag, value in wanted.items()}
        return [self._run(number) for number, tags in enumerate(self.runs) if found.items() <= tags.items()]

    def log_param(self, *_: Any) -> None: ...
    def update_run(self, *_: Any, **__: Any) -> None: ...

    def get_metric_history(self, *_: Any) -> list[SimpleNamespace]:
        return [SimpleNamespace(step=2)]

    def _run(self, number: int) -> SimpleNamespace:
        return SimpleNamespace(info=SimpleNamespace(run_id=str(number)))


def test_a_folder_that_was_made_anew_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Client()
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=lambda _: store))
    path = tmp_path / "Ann's run"

    def track() -> None:
        folder = RunFolder.open(path)
        mlflow.Tracker(Tracked(folder.path, folder.experiment()))

    make_run(path)
    track()
    track()  # as after --resume
    assert len(store.runs) == 1
    path.rename(tmp_path / "old")  # kept, so that no other folder can get its number
    make_run(path)
    track()
    assert [tags["fedsim.folder"] for tags in store.runs] == 2 * [str(path)]
