"""Weights & Biases: a run in the project `fedsim`, offline in ./wandb unless WANDB_API_KEY or WANDB_MODE is set.

Offline needs no account; `wandb sync wandb/offline-run-*` sends it later. WANDB_PROJECT names another project.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedsim.results.trackers import Tracked

PACKAGE = "wandb"
PROJECT = "fedsim"


class Tracker:
    def __init__(self, run: Tracked):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        online = "WANDB_API_KEY" in os.environ
        folder = run.folder.resolve()
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            mode=None if "WANDB_MODE" in os.environ else "online" if online else "offline",
            name=run.name,
            # The same folder is the same run, also when it is taken up again.
            id=hashlib.sha256(f"{folder}{folder.stat().st_ino}".encode()).hexdigest()[:12],
            resume="allow",
            group=run.family[:128],
            config=run.settings,
            dir=".",
            settings=wandb.Settings(console="off", disable_code=True, disable_git=True, x_disable_stats=True),
        )
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def add_round(self, round: int, wall_time: float, scalars: Mapping[str, float]) -> None:
        # An earlier step than the last is dropped by wandb itself, which is what a run that goes on needs.
        self._run.log({**scalars, "round": round}, step=round)

    def end(self, wall_time: float, *, completed: bool, files: Sequence[Path]) -> None:
        self._run.summary["completed"] = completed
        for path in files:
            self._run.save(str(path.resolve()), base_path=str(path.resolve().parent), policy="now")
        self._run.finish(exit_code=0 if completed else 1)
