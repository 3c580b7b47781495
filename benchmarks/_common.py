"""What the benchmarks share: forked workers that never outlive them, and small tables."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

from nodes import zygote
from nodes.processes import describe_exit


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
    Console(highlight=False).print(table)


def load() -> str:
    """How busy the machine is: a ratio measured beside other work says little."""
    one_minute = os.getloadavg()[0]
    return f"load {one_minute:.1f} on {len(os.sched_getaffinity(0))} cores"
