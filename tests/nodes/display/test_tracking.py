"""Trackers follow a run from outside; whatever they do, the run ends as it would have, and says what is wrong."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from commands import PROJECT, TINY, Start
from made_run import make_run

from fedsim.errors import UserError
from fedsim.results import trackers
from fedsim.results.folder import RunFolder
from nodes.cli._experiment import build_experiment, check
from nodes.display import tracking

RUN = PROJECT / "run_cluster.py"
STAND_IN = """
import json, pathlib
PACKAGE = "json"
class Tracker:
    def __init__(self, run):
        {begin}
        self.told = {{"name": run.name, "lr": run.settings["train.lr"], "rounds": []}}
    def add_round(self, round, wall_time, scalars):
        self.told["rounds"].append([round, scalars])
    def end(self, wall_time, *, completed, files):
        self.told |= {{"completed": completed, "files": [path.name for path in files]}}
        pathlib.Path("told.json").write_text(json.dumps(self.told))
"""


@pytest.fixture
def tracker(tmp_path, monkeypatch):
    """A function that makes a tracker `standin` known, to this process and to those that it starts."""
    monkeypatch.chdir(tmp_path)

    def make(begin: str = "pass", package: str = "json") -> None:
        (tmp_path / "own").mkdir()
        text = STAND_IN.format(begin=begin).replace('"json"', f'"{package}"', 1)
        (tmp_path / "own" / "standin.py").write_text(text)
        (tmp_path / "own" / "sitecustomize.py").write_text(
            f"import fedsim.results.trackers as t\nt.__path__.append({str(tmp_path / 'own')!r})\n"
        )
        sys.modules.pop("fedsim.results.trackers.standin", None)  # another test's
        monkeypatch.setattr(trackers, "__path__", [*trackers.__path__, str(tmp_path / "own")])
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "own"), str(PROJECT)]))

    return make


def made(folder: str = "a run") -> RunFolder:
    return RunFolder.open(make_run(Path(folder), settings={"cluster": {"track": "tensorboard,standin"}}))


@pytest.mark.process
def test_a_tracker_is_told_the_settings_all_rounds_and_the_files(tracker):
    tracker()
    said = []
    with tracking.tracked(made(), said.append):
        pass
    told = json.loads(Path("told.json").read_text())
    assert said == [] and (told["name"], told["lr"], told["completed"]) == ("a run", 0.01, True)
    assert [round for round, _ in told["rounds"]] == [0, 1, 2] and told["rounds"][0][1] == {"time/seconds": 5.0}
    assert {"config.toml", "metrics.csv", "summary.json"} <= set(told["files"])


@pytest.mark.process
@pytest.mark.parametrize(
    ("begin", "sentence"),
    [
        (
            "raise ValueError('no such server')",
            "standin did not track all of this run: ValueError: no such server; see",
        ),
        (
            "import time; time.sleep(60)",
            "standin did not track all of this run: it was not done 0.3 s after the run",
        ),
    ],
)
def test_a_tracker_that_fails_or_hangs_costs_a_sentence(tracker, monkeypatch, begin, sentence):
    tracker(begin)
    monkeypatch.setattr(tracking, "PATIENCE_SECONDS", 0.3 if "sleep" in begin else 60.0)
    said, started = [], time.monotonic()
    with tracking.tracked(made(), said.append):
        pass
    assert len(said) == 1 and said[0].startswith(sentence) and time.monotonic() - started < 50


def test_a_tracker_without_its_package_costs_a_sentence(tracker):
    tracker(package="none_such_package")
    said = []
    with tracking.tracked(made(), said.append):
        pass
    assert said == [
        "standin does not track this run: its package none_such_package is missing; pip install "
        "'fedsim-htfl[standin]'."
    ]
    assert not Path("a run/logs/track-standin.log").exists()


def test_a_tracker_that_is_not_known_is_refused_before_anything_is_run():
    with pytest.raises(UserError, match="there is no tracker 'mlfow'; did you mean mlflow"):
        check(build_experiment(track="tensorboard,mlfow"))
    assert trackers.names() == ["mlflow", "tensorboard", "wandb"]


def test_a_run_goes_on_without_trackers_whose_packages_are_missing(python: Start, tmp_path: Path) -> None:
    """As on a machine with neither; the stand-ins cannot even be found."""
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name in ('mlflow', 'wandb') else find(name, *a)\n"
    )
    path = os.pathsep.join([str(tmp_path / "hide"), str(PROJECT)])
    run = python(RUN, *TINY, "--track", "mlflow,wandb", "--out", "run", fresh=True, PYTHONPATH=path).succeed()
    for name in ("mlflow", "wandb"):
        assert f"{name} does not track this run: its package {name} is missing" in run.stdout
    assert not (tmp_path / "run" / "metrics.tfevents").exists(), "it was not asked for"


@pytest.mark.process
def test_mlflow_s_own_reader_finds_the_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="an extra")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = RunFolder.open(make_run(tmp_path / "run", settings={"cluster": {"track": "mlflow"}}))
    said = []
    for _ in range(2):  # the second time as after --resume: it is the same run
        with tracking.tracked(folder, said.append):
            pass
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("fedsim").experiment_id])
    assert said == [] and (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["train.lr"] == "0.01" and run.data.params["method.name"] == "fedproto"
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "time/seconds")]
    assert steps == [0, 1, 2]
    assert "metrics.csv" in {file.path for file in client.list_artifacts(run.info.run_id)}
