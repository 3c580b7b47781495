"""MLflow: a run in the experiment `fedsim`, in the file store ./mlruns unless MLFLOW_TRACKING_URI names another.

Look at it with `mlflow ui`. MLFLOW_EXPERIMENT_NAME names another experiment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedsim.results.trackers import Tracked

PACKAGE = "mlflow"
EXPERIMENT = "fedsim"
_FOLDER_TAG, _INODE_TAG = "fedsim.folder", "fedsim.inode"
"""Together they say which run it is: a folder that was removed and made anew is another one."""


class Tracker:
    def __init__(self, run: Tracked):
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow import MlflowClient

        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or Path("mlruns").resolve().as_uri())
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        self._run, self._told = self._begun(experiment, run)

    def _begun(self, experiment: str, run: Tracked) -> tuple[str, int]:
        """The run of this folder and the last round that it knows; a new one where there is none."""
        folder = run.folder.resolve()
        identity = {_FOLDER_TAG: str(folder), _INODE_TAG: str(folder.stat().st_ino)}
        quoted = {tag: value.replace("'", "\\'") for tag, value in identity.items()}
        known = self._client.search_runs(
            [experiment], " AND ".join(f"tags.`{tag}` = '{value}'" for tag, value in quoted.items())
        )
        if known:
            found = known[0]
            self._client.update_run(found.info.run_id, status="RUNNING")
            rounds = self._client.get_metric_history(found.info.run_id, "time/seconds")
            return found.info.run_id, max((metric.step for metric in rounds), default=-1)
        tags = {**identity, "fedsim.family": run.family}
        created = self._client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        for name, value in run.settings.items():
            self._client.log_param(created, name, value)
        return created, -1

    def add_round(self, round: int, wall_time: float, scalars: Mapping[str, float]) -> None:
        if round <= self._told:
            return
        from mlflow.entities import Metric

        metrics = [Metric(name, value, int(1000 * wall_time), round) for name, value in scalars.items()]
        self._client.log_batch(self._run, metrics)
        self._told = round

    def end(self, wall_time: float, *, completed: bool, files: Sequence[Path]) -> None:
        for path in files:
            self._client.log_artifact(self._run, str(path))
        self._client.set_terminated(self._run, "FINISHED" if completed else "FAILED", int(1000 * wall_time))
