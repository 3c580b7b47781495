"""What the benchmarks share: forked workers that never outlive them, whole runs, and small tables."""

import os
import signal
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from fedsim.config import Experiment
from fedsim.results.folder import RunFolder
from fedsim.results.load import LoadedRun, load
from nodes.display.run import Display
from nodes.launchers import zygote
from nodes.launchers.base import LaunchOptions
from nodes.launchers.local import LocalLauncher
from nodes.launchers.processes import describe_exit
from nodes.tools.batch import Batch, Job, folder_of

CONSOLE = Console(highlight=False)

Key = TypeVar("Key", bound=Hashable)


@contextmanager
def workers(mains: Sequence[Callable[[], int]]) -> Iterator[list[int]]:
    """One forked process for each function; those that have not been waited for by the end are killed."""
    processes: list[int] = []
    try:
        for main in mains:
            processes.append(zygote.fork(main))
        yield processes
    finally:
        for process in processes:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def wait_for(processes: list[int]) -> None:
    """Until all have ended well; each leaves the list as it does."""
    while processes:
        _, status = os.waitpid(processes[0], 0)
        processes.pop(0)
        if status:
            raise SystemExit(f"a worker {describe_exit(status)}")


def run_cluster(path: Path, experiment: Experiment, display: Display) -> RunFolder:
    """A real cluster with its results in a new folder; if it fails or is stopped, the benchmark ends."""
    folder = RunFolder.create(path, experiment)
    launcher = LocalLauncher(folder, display, LaunchOptions())
    if launcher.run():
        summary = folder.summary()
        reason = str(summary["reason"]) if summary else (folder.logs / "server.log").read_text()
        raise KeyboardInterrupt if launcher.interrupted else RunFailed(reason)
    return folder


class RunFailed(SystemExit):
    """A benchmark that does not catch it ends with the reason."""


def run_all(
    out: Path, experiments: Mapping[Key, tuple[str, Experiment]], at_once: int = 1
) -> dict[Key, LoadedRun]:
    """Real clusters, `at_once` at a time; `experiments` have names for people. Finished runs are not run again."""
    jobs = [Job(name, wanted) for name, wanted in experiments.values()]
    batch = Batch(out, jobs, CONSOLE, quiet=True, at_once=at_once)
    if not batch.run():
        raise SystemExit(130)
    for path, reason in batch.failures.items():
        raise SystemExit(f"{path}: {reason}")
    return {key: load(folder_of(out, wanted)) for key, (_, wanted) in experiments.items()}


def best_seconds(candidates: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Of each, the best of several turns that they take by turns. With one thread it is the processor's time, so
    other work on the machine disturbs none more than the others."""
    import torch

    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    best = [float("inf")] * len(candidates)
    for repeat in range(repeats + 1):
        for index, candidate in enumerate(candidates):
            start = clock()
            candidate()
            if repeat:  # the first turn warms up
                best[index] = min(best[index], clock() - start)
    return best


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table whose numbers line up."""
    table = Table(headings[0], title=title, title_justify="left", box=None, pad_edge=False)
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    CONSOLE.print(table)


def spread(shares: Sequence[float], *, sign: str = "") -> str:
    """Mean ± standard deviation over seeds, in per cent; of one seed its value, of none a dash."""
    if not shares:
        return "–"
    mean = f"{100 * statistics.fmean(shares):{sign}.2f}"
    return mean if len(shares) == 1 else f"{mean} ± {100 * statistics.stdev(shares):.2f}"


def machine_load() -> str:
    """How busy the machine is: a ratio measured beside other work says little."""
    one_minute = os.getloadavg()[0]
    return f"load {one_minute:.1f} on {len(os.sched_getaffinity(0))} cores"
