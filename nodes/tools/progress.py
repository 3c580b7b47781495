"""What a person sees of a batch: which runs begin and end, how far those that run are, how long it will take.

The view is drawn by this process alone and without a thread, because runs are forked from it.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from fedsim.metrics import percent
from fedsim.presets import cost
from fedsim.results.load import load
from fedsim.results.report.comparison import number_of
from fedsim.results.tables import formats
from fedsim.results.tables.grid import Table
from fedsim.results.wording import counted
from nodes.display.run import describe_trouble
from nodes.server.events import Event, Watcher
from nodes.tools.batch import Job
from nodes.tools.estimate import FEW_ROUNDS, Estimate
from nodes.tools.pool import BEGUN, ENDED


@dataclass(frozen=True)
class Told:
    """The display of a run whose process shows nothing itself."""

    tell: Watcher

    def on_event(self, event: Event) -> None:
        self.tell(event)

    def close(self) -> None:
        pass


class Progress:
    """Of all runs that are to be done, in their order."""

    def __init__(self, console: Console, jobs: Mapping[Path, Job], at_once: int, *, live: bool):
        self._console = console
        self._jobs = jobs
        self._numbers = {path: number for number, path in enumerate(jobs)}
        self._estimate = Estimate([job.experiment for job in jobs.values()], at_once)
        self._status: dict[Path, str] = {}
        """Of those that run now."""
        self._started: dict[Path, float] = {}
        self._num_ended = 0
        self._tables: list[RenderableType] = []
        self._live = Live(console=console, auto_refresh=False, transient=True) if live else None

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def on_event(self, path: Path, event: Event, *, going_on: bool) -> None:
        name, number, what = self._jobs[path].name, self._numbers[path], event["event"]
        if what == BEGUN:
            self._started[path] = time.monotonic()
            self._status[path] = "starting"
            self._say(f"[{number + 1}/{len(self._jobs)}] {name}{', going on' * going_on}")
        elif what == "round_finished":
            self._estimate.on_round(number, event["round"], event["seconds"])
            accuracy = "" if event.get("accuracy") is None else f", accuracy {percent(event['accuracy'])}"
            self._status[path] = f"round {event['round']} of {self._jobs[path].experiment.run.rounds}{accuracy}"
            if self._estimate.num_rounds_seen == FEW_ROUNDS and not self._live:
                self._say(f"    {self.time_left()}, by the first rounds")
        elif what == ENDED:
            self._estimate.on_end(number)
            self._num_ended += 1
            self._status.pop(path)
            self._say_end(path, event["reason"])
        elif what == "said":
            self._say(f"    {name}: {event['text']}", style="yellow")
        elif trouble := describe_trouble(event):
            self._say(f"    {name}: {trouble}", style="yellow")
        self._draw()

    def show(self, table: Table | None) -> None:
        """What is known so far, above the runs that go on."""
        if table is not None and self._live is not None:
            self._tables = [*formats.terminal(table)]
            self._draw()

    def time_left(self) -> str:
        """`about 3 h left`; empty before anything is known."""
        seconds = self._estimate.seconds_left()
        return "" if seconds is None else f"about {cost.duration(seconds)} left"

    def _say_end(self, path: Path, reason: str | None) -> None:
        if reason:
            self._say(f"    {self._jobs[path].name} failed: {reason}", style="red")
            return
        best = number_of(path, "accuracy")
        shown = "no accuracy" if best is None else f"best accuracy {best:.2f} %"
        left = f"; {self.time_left()}" if self._numbers[path] + 1 < len(self._jobs) or self._status else ""
        self._say(f"    {self._jobs[path].name}: {shown} in {time.monotonic() - self._started[path]:.1f} s{left}")
        summary = load(path).summary
        if summary and not summary["audit_passed"]:
            self._say("    the kernel counted other bytes than the ledger; see summary.json", style="yellow")

    def _draw(self) -> None:
        if self._live is None:
            return
        lines = [Text(f"  {self._jobs[path].name}: {status}") for path, status in self._status.items()]
        done = f"{self._num_ended} of {counted(len(self._jobs), 'run')} done, {len(self._status)} at work"
        lines.append(Text(f"  {', '.join(filter(None, (done, self.time_left())))}", style="dim"))
        self._live.update(Group(*self._tables, *lines), refresh=True)

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)
