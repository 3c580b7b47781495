"""What a person sees of a run: live on a terminal, plain lines elsewhere, nothing but the end with --quiet."""

import os
import time
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedsim import methods
from fedsim.metrics import describe, percent
from fedsim.results.wording import audit_line, counted, cut_line, difference_line, size
from nodes.client.options import id_range
from nodes.server.events import Event


class Display(Protocol):
    """Watches the events of a run."""

    def on_event(self, event: Event) -> None: ...
    def close(self) -> None: ...


class Quiet:
    """Only what went wrong."""

    def __init__(self, console: Console):
        self._console = console
        self._failed: set[int] = set()

    def on_event(self, event: Event) -> None:
        if event["event"] == "client_failed":
            self._failed.add(event["client"])
        elif event["event"] == "lost" and event["client"] in self._failed:
            return  # it was said why
        if warning := describe_trouble(event):
            self._console.print(Text(warning, style="yellow"), soft_wrap=True)

    def close(self) -> None:
        pass


class PlainLines(Quiet):
    """One line a round, for logs and pipes."""

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        match event["event"]:
            case "joined":
                memory = event["pss_bytes_mean"] / 2**20
                self._console.print(
                    f"{counted(event['clients'], 'client')} joined in {event['seconds']:.1f} s, "
                    f"{memory:.0f} MiB (PSS) each"
                )
            case "round_finished":
                self._console.print(round_line(event), soft_wrap=True)


class LiveView(Quiet):
    """A progress bar with the accuracy, the bytes so far, and who is training now."""

    def __init__(self, console: Console, num_rounds: int):
        super().__init__(console)
        self._training: set[int] = set()
        self._done: set[int] = set()
        self._asked = 0
        self._started = time.monotonic()
        self._status = "waiting for clients"
        self._accuracy = ""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self._task: TaskID = self._progress.add_task("joining", total=num_rounds, left="")
        self._live = Live(self._view(), console=console, refresh_per_second=8, transient=True)

    def on_event(self, event: Event) -> None:
        # Not before the first event: by then all processes are forked, and a thread that draws cannot hurt them.
        self._live.start()
        super().on_event(event)
        match event["event"]:
            case "waiting":
                self._status = waiting_line(event)
            case "joined":
                self._started = time.monotonic()
                self._progress.update(self._task, description="training")
            case "round_started":
                self._asked, self._status = event["clients"], ""
                self._done.clear()
            case "asked" | "begins" if event["train"] and not event.get("ahead"):
                self._training.add(event["client"])
            case "answered":
                self._training.discard(event["client"])
                self._done.add(event["client"])
            case "lost" | "left_out":
                self._training.discard(event["client"])
            case "collected" if event["train"]:
                self._status = "the server is learning"
            case "round_finished":
                self._live.console.print(round_line(event), soft_wrap=True)
                self._on_round(event)
        self._live.update(self._view())

    def close(self) -> None:
        self._live.stop()

    def _on_round(self, event: Event) -> None:
        done = event["round"] + 1
        total = int(self._progress.tasks[0].total or done)
        elapsed = time.monotonic() - self._started
        left = f"about {elapsed / done * max(total - done, 0):.0f} s left"
        self._progress.update(self._task, completed=min(done, total), left=left)
        if event.get("accuracy") is not None:
            self._accuracy = f"accuracy {percent(event['accuracy'])}"

    def _view(self) -> RenderableType:
        counts = f"{len(self._done)} of {self._asked} clients done" if self._asked else ""
        training = f"training: {' '.join(map(str, sorted(self._training)))}" if self._training else ""
        line = ", ".join(filter(None, (self._accuracy, counts, self._status or training)))
        return Group(self._progress, Text(f"  {line}", style="dim", no_wrap=True, overflow="ellipsis"))


def make_display(console: Console, num_rounds: int, *, quiet: bool) -> Display:
    if quiet:
        return Quiet(console)
    return LiveView(console, num_rounds) if is_live(console) else PlainLines(console)


def is_live(console: Console) -> bool:
    """Whether what moves may be drawn. Some programs that are no terminals, such as notebooks, ask for colours,
    and a notebook's "!" even has a terminal that cannot go back a line; what moves is only for real ones."""
    return console.is_terminal and console.file.isatty() and "JPY_PARENT_PID" not in os.environ


def round_line(event: Event) -> str:
    accuracy = event.get("accuracy")
    loss = event.get("train_loss")
    partial = f"  of {event['clients']} of {event['expected']} clients" if event.get("lost") else ""
    parts = [
        f"round {event['round']:>3}",
        f"accuracy {percent(accuracy):>7}{partial}",
        "evaluated" if loss is None else f"loss {loss:.4f}",
    ]
    if "wire_bytes_up" in event:
        parts += [f"up {size(event['wire_bytes_up'])}", f"down {size(event['wire_bytes_down'])}"]
    return "  ".join([*parts, f"{event['seconds']:.2f} s"])


def waiting_line(event: Event) -> str:
    """Who has joined, from where, and who is missing."""
    here = "".join(f"; {id_range(clients)} joined from {place}" for place, clients in event["joined"].items())
    return f"waiting for {counted(len(event['missing']), 'client')}: {id_range(event['missing'])}{here}"


def describe_trouble(event: Event) -> str:
    """A sentence for events that a person should hear of, an empty string for all others."""
    match event["event"]:
        case "note":
            return str(event["text"])
        case "lost":
            reason = f": {event['reason']}" if event["reason"] else ""
            when = f"in round {event['round']}" if event["round"] >= 0 else "before the first round"
            return f"client {event['client']} was lost {when}{reason}"
        case "restored":
            how = f"restored from round {event['round']}" if event["round"] >= 0 else "begins anew"
            return f"client {event['client']} was started again and {how}"
        case "starts_over":
            return "the run has no checkpoint to go on from, so it starts over"
        case "left_out":
            return f"round {event['round']} goes on without client {event['client']}: {event['reason']}"
        case "warning":
            return f"round {event['round']}: {event['reason']}"
        case "started" if event["resumed_from"] is not None:
            return f"the run goes on with round {event['resumed_from'] + 1}, from its last checkpoint"
        case "interrupted":
            return f"{event['by']}: the run is being stopped and keeps its results; once more ends it at once"
        case "client_failed":
            return f"client {event['client']} failed in round {event['round']}:\n{event['where']}"
        case "failed":
            return "\n".join(filter(None, (f"the server failed: {event['reason']}", event.get("where"))))
        case "refused" | "rejected":
            return f"{event['event']}: {event['reason']}"
    return ""


def print_summary(
    console: Console, summary: dict[str, Any], folder: str, resume: str = "", *, interrupted: bool = False
) -> None:
    """The closing table: accuracy by round, bytes at the four levels, the kernel's word, the folder. `resume` is
    the command that goes on with a run."""
    counts = f"{counted(summary['clients'], 'client')}, {counted(summary['rounds'], 'round')}"
    title = f"{methods.title(summary['method'])} on {summary['dataset']}, {counts}"
    console.print()
    console.print(Text(title, style="bold"))
    by_round = summary["accuracy_by_round"]
    if shown := _spread(list(by_round), 8):
        line = "  ".join(f"{r}: {percent(by_round[r])}" for r in shown)
        console.print(f"accuracy by round: {line}", soft_wrap=True)
    if partial := summary["partial_rounds"]:
        console.print(
            f"{counted(len(partial), 'round')} of fewer clients, neither best nor last: {_ranges(partial)}",
            soft_wrap=True,
        )
    if summary["best_accuracy"] is not None:
        console.print(
            f"best accuracy {percent(summary['best_accuracy'])} in round {summary['best_round']}, "
            f"last {percent(summary['final_accuracy'])}"
        )
    for name, found in summary["further_accuracies"].items():
        console.print(
            f"{describe(name).title}: best {percent(found['best'])} in round {found['best_round']}, "
            f"last {percent(found['last'])}"
        )
    if peak := summary.get("client_gpu_peak_bytes"):
        console.print(f"GPU memory: at most {size(peak)} for one client's work")
    if "traffic" in summary and summary["rounds"]:  # without a round, all bytes are those of coming and going
        console.print(_traffic_table(summary["traffic"]))
        console.print(audit_line(summary["audit"]), soft_wrap=True)
        for cut in summary["audit"]["cut"]:
            console.print(Text(cut_line(cut), style="dim"), soft_wrap=True)
        for difference in summary["audit"]["differences"]:
            console.print(Text(difference_line(difference), style="red"), soft_wrap=True)
    if not summary["completed"]:
        console.print(Text(f"stopped early: {summary['reason']}", style="red"), soft_wrap=True)
        if (saved := summary.get("resumable", False)) or interrupted:
            console.print(Text(go_on_line(resume, saved=saved)), soft_wrap=True)
    # As text: rich would take a folder's square brackets for a style.
    console.print(Text(f"{summary['seconds']:.1f} s; results in {folder}"), soft_wrap=True)


def go_on_line(resume: str, *, saved: bool) -> str:
    """`saved`: there is a checkpoint."""
    starts_over = " (no checkpoint was saved, so it starts over; --checkpoint-every 1 saves one each round)"
    return f"go on with: {resume}{'' if saved else starts_over}"


def _traffic_table(traffic: dict[str, dict[str, dict[str, int]]]) -> Table:
    table = Table(title="communication", title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for name in traffic["total"]["up"]:
        table.add_column(name.replace("_", " "), justify="right")
    for purpose, ways in traffic.items():
        for way, levels in ways.items():
            if levels["wire_bytes"]:
                table.add_row(f"{purpose} {way}", *(f"{value:,}" for value in levels.values()))
    return table


def _spread(items: list[str], most: int) -> list[str]:
    """Evenly spread picks with the first and the last."""
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _ranges(numbers: list[int]) -> str:
    """3, 5 to 9"""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
