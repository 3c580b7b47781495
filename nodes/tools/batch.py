"""Many runs, one after the other: finished ones are skipped, interrupted ones go on, Ctrl-C ends cleanly.

Every run has a folder whose name says what it is: method, data set, seed, and a hash of all that can change its
result. So the same experiment in two tables is run once, and a command that is given again finds its own work.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedsim import own_files
from fedsim.config import Experiment, to_layer
from fedsim.errors import FedsimError, UserError
from fedsim.metrics import describe
from fedsim.results.folder import RunFolder
from fedsim.results.load import load
from fedsim.results.report.comparison import Comparison, Measured, number_of
from fedsim.results.wording import counted

State = Literal["finished", "begun", "new"]

_CHECKPOINTS_PER_RUN = 20
_LEAST_ROUNDS_BETWEEN_CHECKPOINTS = 5


@dataclass(frozen=True)
class Job:
    """One experiment of a batch, with a name for people."""

    name: str
    experiment: Experiment


class Batch:
    """The runs of a table or a sweep, all in one folder."""

    def __init__(
        self, out: Path, jobs: Sequence[Job], console: Console, *, quiet: bool = False, metric: str | None = None
    ):
        """`metric` is a column of metrics.csv that every run must have, or the batch stops."""
        self.out = out
        self.failures: dict[Path, str] = {}
        """Run folder -> why there is no result."""
        self._console = console
        self._quiet = quiet
        self._metric = metric
        # The same experiment under several names is one run.
        self._jobs = list({folder_of(out, job.experiment): job for job in jobs}.items())

    def run(self) -> bool:
        """Run all that is not finished. A run that fails is reported, and the others go on. False: the user
        stopped it; what has been run so far is kept."""
        from nodes.launchers import zygote

        zygote.preload()
        states = {path: state_of(path, job.experiment) for path, job in self._jobs}
        todo = [(path, job) for path, job in self._jobs if states[path] != "finished"]
        counts = [f"{sum(s == kind for s in states.values())} {kind}" for kind in ("finished", "begun", "new")]
        self._say(f"{counted(len(self._jobs), 'run')} in {self.out}: {', '.join(counts)}")
        for path, _ in self._jobs:
            if states[path] == "finished":
                self._require_metric(path)
        _check_data([job.experiment for _, job in todo])
        for number, (path, job) in enumerate(todo, 1):
            self._say(f"[{number}/{len(todo)}] {job.name}" + (", going on" if states[path] == "begun" else ""))
            started = time.monotonic()
            try:
                self._run(path, job.experiment, resume=states[path] == "begun")
            except KeyboardInterrupt:
                self._say(
                    f"stopped with {counted(len(todo) - number + 1, 'run')} to go; the same command goes on."
                )
                return False
            except FedsimError as error:
                self.failures[path] = str(error)
            if reason := self.failures.get(path):
                self._say(f"    failed: {reason}", style="red")
            else:
                best = number_of(path, "accuracy")
                shown = "no accuracy" if best is None else f"best accuracy {best:.2f} %"
                self._say(f"    {shown} in {time.monotonic() - started:.1f} s")
                self._require_metric(path)
        return True

    def measured(self, experiments: Sequence[Experiment], metric: str) -> tuple[Measured | None, str]:
        """One number of each finished run, and a word on those that are not."""
        values, notes = [], []
        for experiment in experiments:
            path = folder_of(self.out, experiment)
            if state_of(path, experiment) != "finished":
                notes.append("failed" if path in self.failures else "not run")
            elif (number := number_of(path, metric)) is None:
                notes.append(f"no {metric}")
            else:
                values.append(number)
        note = ", ".join(f"{notes.count(text)} {text}" for text in dict.fromkeys(notes))
        return (Measured(tuple(values), describe(metric).is_share) if values else None), note

    def conclude(self, shown: Comparison, written: Comparison, stem: Path) -> int:
        """Show a table, write one (of all that is finished, whatever part was asked for), give the exit code."""
        headings, cells = shown.grid()
        is_number = [heading.endswith(("(%)", "round", "runs", "difference")) for heading in headings]
        columns = [
            Column(text, justify="right" if it else "left") for text, it in zip(headings, is_number, strict=True)
        ]
        table = Table(*columns, box=None, pad_edge=False)
        for row in cells:
            table.add_row(*map(Text, row))
        self._say(f"\n{shown.title}", style="bold")
        self._console.print(table)
        for note in shown.notes:
            self._say(note, style="dim")
        for path in written.write(stem):
            self._say(f"wrote {path}")
        return 1 if self.failures else 0

    def _run(self, path: Path, experiment: Experiment, *, resume: bool) -> None:
        from fedsim import assembly
        from nodes.display.run import Quiet, make_display
        from nodes.launchers.base import LaunchOptions
        from nodes.launchers.local import LocalLauncher

        if folder_of(self.out, experiment) != path:
            raise UserError("a file of its own code has changed since this command began; give the command again.")
        if resume:
            folder = RunFolder.open(path)
        else:
            assembly.check(experiment)
            folder = RunFolder.create(path, experiment)
        live = self._console.is_terminal and not self._quiet
        display = make_display(self._console, experiment.run.rounds, quiet=False) if live else Quiet(self._console)
        launcher = LocalLauncher(folder, display, LaunchOptions(resume=resume))
        try:
            launcher.run()
        finally:
            if launcher.interrupted:  # whatever else it has to say
                raise KeyboardInterrupt
        summary = folder.summary()
        if summary and summary["completed"]:
            shutil.rmtree(folder.checkpoints, ignore_errors=True)  # a finished run is never resumed
            if not summary["audit_passed"]:
                self._say("    the kernel counted other bytes than the ledger; see summary.json", style="yellow")
        else:
            self.failures[path] = summary["reason"] if summary else f"see {folder.logs}"

    def _require_metric(self, path: Path) -> None:
        """A name with a typo is worth knowing after one run, rather than after all of them."""
        if self._metric is None:
            return
        columns = [name for name in load(path).metrics.columns if name != "round"]
        if self._metric not in columns:
            raise UserError(
                f"--metric {self._metric} is no column of {path / 'metrics.csv'}; it has {', '.join(columns)}."
            )

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)


def prepare(experiment: Experiment) -> Experiment:
    """With checkpoints, unless the user chose: a batch may be stopped at any moment."""
    if experiment.cluster.checkpoint_every:
        return experiment
    every = max(_LEAST_ROUNDS_BETWEEN_CHECKPOINTS, experiment.run.rounds // _CHECKPOINTS_PER_RUN)
    cluster = msgspec.structs.replace(experiment.cluster, checkpoint_every=every)
    return msgspec.structs.replace(experiment, cluster=cluster)


def identity(experiment: Experiment) -> str:
    """A hash of all that can change the result: not how it is run, nor where files lie on this machine."""
    content = own_files.without_places(to_layer(experiment))
    del content["cluster"], content["data"]["data_dir"]
    if "generator" in content["method"]:
        content["method"]["generator"] = Path(content["method"]["generator"]).name
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def folder_of(out: Path, experiment: Experiment) -> Path:
    name = (
        f"{experiment.method_name}-{experiment.data.short_name}-seed{experiment.run.seed}-{identity(experiment)}"
    )
    return out / name


def state_of(path: Path, experiment: Experiment) -> State:
    """What lies in a run's folder. One that was left before its config was written is as good as none."""
    if not (path / "config.toml").is_file():
        shutil.rmtree(path, ignore_errors=True)
        return "new"
    folder = RunFolder.open(path)
    if identity(folder.experiment()) != identity(experiment):
        raise UserError(f"{path} holds another experiment than its name says; remove it or choose another --out.")
    summary = folder.summary()
    return "finished" if summary and summary["completed"] else "begun"


def refuse_seed_setting(settings: Sequence[str]) -> None:
    """One seed for all would run the same experiment once for each of --seeds."""
    if any(text.partition("=")[0].strip() == "run.seed" for text in settings):
        raise UserError("--set run.seed is what --seeds is for; give --seeds.")


def parse_seeds(text: str) -> list[int]:
    seeds = text.split(",")
    if not all(seed.strip().isdecimal() for seed in seeds):
        raise UserError(f"--seeds wants whole numbers separated by commas such as 1,2,3, not {text!r}.")
    return list(dict.fromkeys(int(seed) for seed in seeds))


def _check_data(experiments: Sequence[Experiment]) -> None:
    """A data set that is missing is worth knowing before hours are spent on others."""
    from fedsim.data import Federation

    for experiment in {(e.data.dataset, e.data.data_dir): e for e in experiments}.values():
        Federation(experiment).num_classes  # noqa: B018 - opens the data set
