"""Many runs, one or several at once: finished ones are skipped, interrupted ones go on, Ctrl-C ends cleanly.

Every run has a folder whose name says what it is: method, data set, what a sweep varied, seed, and a hash of all
that can change its result, by which it is known. So the same experiment in two tables is run once, and a command
that is given again finds its own work.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import msgspec
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedsim.config import Experiment, to_layer
from fedsim.errors import FedsimError, UserError
from fedsim.metrics import describe
from fedsim.own import files
from fedsim.results import provenance, trackers
from fedsim.results.folder import RunFolder
from fedsim.results.load import load
from fedsim.results.report.comparison import Comparison, Measured, number_of
from fedsim.results.wording import counted
from fedsim.version import __version__

if TYPE_CHECKING:
    from fedsim.results.tables.grid import Table as FilledTable
    from nodes.server.events import Watcher

State = Literal["finished", "begun", "new"]

_CHECKPOINTS_PER_RUN = 20
_LEAST_ROUNDS_BETWEEN_CHECKPOINTS = 5


@dataclass(frozen=True)
class Job:
    """One experiment of a batch, with a name for people."""

    name: str
    experiment: Experiment
    varied: str = ""
    """What was varied, for the name of its folder."""


class Batch:
    """The runs of a table or a sweep, all in one folder."""

    def __init__(
        self,
        out: Path,
        jobs: Sequence[Job],
        console: Console,
        *,
        quiet: bool = False,
        metric: str | None = None,
        at_once: int = 1,
        after_each: Callable[[], object] = lambda: None,
        table: "Callable[[], FilledTable | None]" = lambda: None,
    ):
        """`metric` is a column of metrics.csv that every run must have, or the batch stops. `at_once` runs go
        on at a time, each with its share of the cores and GPUs. `after_each` is called when a run has ended, and
        `table` gives what a live view shows of those that have."""
        self.out = out
        self.failures: dict[Path, str] = {}
        """Run folder -> why there is no result."""
        self._console = console
        self._quiet = quiet
        self._metric = metric
        self._at_once = at_once
        self._after_each = after_each
        self._table = table
        # The same experiment under several names is one run.
        self._jobs = {folder_of(out, job.experiment, job.varied): job for job in jobs}

    def run(self) -> bool:
        """Run all that is not finished. A run that fails is reported, and the others go on. False: the user
        stopped it; what has been run so far is kept."""
        from nodes.display.run import is_live
        from nodes.launchers import zygote
        from nodes.tools.pool import ENDED, Pool, Task
        from nodes.tools.progress import Progress

        zygote.preload()
        states = {path: state_of(path, job.experiment) for path, job in self._jobs.items()}
        counts = [f"{sum(s == kind for s in states.values())} {kind}" for kind in ("finished", "begun", "new")]
        self._say(f"{counted(len(self._jobs), 'run')} in {self.out}: {', '.join(counts)}")
        for path, state in states.items():
            if state == "finished":
                self._require_metric(path)
        todo = {path: job for path, job in self._jobs.items() if states[path] != "finished"}
        _check_data([job.experiment for job in todo.values()])
        tasks = [
            Task(path, partial(_run, path, job.experiment, states[path] == "begun"), job.experiment.cluster.device)
            for path, job in todo.items()
        ]
        live = is_live(self._console) and not self._quiet
        pool, undone = Pool(self._at_once), set(todo)
        with Progress(self._console, todo, self._at_once, live=live) as progress:
            for path, event in pool.run(tasks):
                if pool.interrupted and event.get("reason") and event["event"] == ENDED:
                    continue  # it goes on with the next command
                progress.on_event(path, event, going_on=states[path] == "begun")
                if event["event"] != ENDED:
                    continue
                undone.discard(path)
                if event["reason"]:
                    self.failures[path] = event["reason"]
                else:
                    self._require_metric(path)
                self._after_each()
                progress.show(self._table())
        if pool.interrupted:
            self._say(f"stopped with {counted(len(undone), 'run')} to go; the same command goes on.")
        return not pool.interrupted

    def finished(self) -> list[Path]:
        """The folders of all runs that are complete."""
        return [path for path, job in self._jobs.items() if state_of(path, job.experiment) == "finished"]

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
        is_number = [heading.endswith(("(%)", "runs", "difference")) for heading in headings]
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


def prepare(experiment: Experiment, *, is_chosen: bool = False) -> Experiment:
    """With checkpoints, because a batch may be stopped at any moment. `is_chosen`: the user said how often, and 0
    means never; otherwise it is only the default."""
    trackers.chosen(experiment.cluster.track)  # or it is refused before anything is run
    if is_chosen or experiment.cluster.checkpoint_every:
        return experiment
    every = max(_LEAST_ROUNDS_BETWEEN_CHECKPOINTS, experiment.run.rounds // _CHECKPOINTS_PER_RUN)
    cluster = msgspec.structs.replace(experiment.cluster, checkpoint_every=every)
    return msgspec.structs.replace(experiment, cluster=cluster)


def identity(experiment: Experiment) -> str:
    """A hash of all that can change the result: not how it is run, nor where files lie on this machine."""
    content = files.without_places(to_layer(experiment))
    del content["cluster"], content["data"]["data_dir"]
    if "generator" in content["method"]:
        content["method"]["generator"] = Path(content["method"]["generator"]).name
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def is_of_identity(setting: str) -> bool:
    """Whether `section.key=value` has a say in that hash."""
    return not setting.strip().startswith(("cluster.", "data.data_dir"))


def folder_of(out: Path, experiment: Experiment, varied: str = "") -> Path:
    """One that exists is known by its hash, whatever else was varied when it was made."""
    own = identity(experiment)
    for found in sorted(out.glob(f"*-{own}")):
        return found
    parts = (experiment.method_name, experiment.data.short_name, varied, f"seed{experiment.run.seed}", own)
    return out / "-".join(filter(None, parts))


def state_of(path: Path, experiment: Experiment) -> State:
    """What lies in a run's folder. One that was left before its config was written is as good as none; it stays,
    because another process may be making it just now."""
    if not (path / "config.toml").is_file():
        return "new"
    folder = RunFolder.open(path)
    if identity(folder.experiment()) != identity(experiment):
        raise UserError(f"{path} holds another experiment than its name says; remove it or choose another --out.")
    if folder.version != __version__:
        by = f"fedsim {folder.version}" if folder.version else "a fedsim that did not say its version"
        raise UserError(
            f"{path} was begun with {by} and this is {__version__}, which may give other numbers; choose another "
            "--out, or remove it."
        )
    summary = folder.summary()
    return "finished" if summary and summary["completed"] else "begun"


def refuse_seed_setting(
    settings: Sequence[str],
    options: Mapping[str, str] = MappingProxyType({"run.seed": "--seeds"}),
    given: str = "--set",
) -> None:
    """One seed for all would run the same experiment once for each of --seeds."""
    for name in {text.partition("=")[0].strip() for text in settings} & options.keys():
        raise UserError(f"{given} {name} is what {options[name]} is for; give {options[name]}.")


def refuse_twins(jobs: Sequence[Job]) -> None:
    """What was varied must make other experiments, or one would be run several times, and shown once."""
    known: dict[str, Job] = {}
    for job in jobs:
        if (twin := known.setdefault(identity(job.experiment), job)) is not job:
            raise UserError(
                f"{twin.name} and {job.name} are the same experiment: what differs cannot change its result, such "
                "as where data lie and settings of [cluster]; vary something else."
            )


def parse_seeds(text: str, option: str = "--seeds") -> list[int]:
    seeds = text.split(",")
    if not all(seed.strip().isdecimal() for seed in seeds):
        raise UserError(f"{option} wants whole numbers separated by commas such as 1,2,3, not {text!r}.")
    return list(dict.fromkeys(int(seed) for seed in seeds))


def _run(path: Path, experiment: Experiment, resume: bool, tell: "Watcher") -> str | None:
    """What the process of a run does; returns why there is no result, or None."""
    from fedsim import assembly
    from nodes.display.tracking import tracked
    from nodes.launchers.base import LaunchOptions
    from nodes.launchers.local import LocalLauncher
    from nodes.tools.progress import Told

    try:
        if not path.name.endswith(f"-{identity(experiment)}"):
            return "a file of its own code has changed since this command began; give the command again."
        if not resume:
            assembly.check(experiment)
            if not (path / "config.toml").exists():
                shutil.rmtree(path, ignore_errors=True)  # left before its config was written
        folder = RunFolder.open(path) if resume else RunFolder.create(path, experiment)
        folder.provenance = provenance.collect(experiment)
        with tracked(folder, lambda text: tell({"event": "said", "text": text})):
            LocalLauncher(folder, Told(tell), LaunchOptions(resume=resume)).run()
    except FedsimError as error:
        return str(error)
    summary = folder.summary()
    if summary is None or not summary["completed"]:
        return str(summary["reason"]) if summary else f"see {folder.logs}"
    shutil.rmtree(folder.checkpoints, ignore_errors=True)  # a finished run is never resumed
    return None


def _check_data(experiments: Sequence[Experiment]) -> None:
    """A data set that is missing is worth knowing before hours are spent on others."""
    from fedsim.data import Federation

    for experiment in {(e.data.dataset, e.data.data_dir): e for e in experiments}.values():
        Federation(experiment).num_classes  # noqa: B018 - opens the data set
