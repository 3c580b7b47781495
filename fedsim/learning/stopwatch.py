"""Where the server's time goes: the parts of its step by name, in seconds of the clock and of the processors.

    with context.stopwatch.part("server model"):
        ...

Parts may lie within each other. What an inner one takes does not count for the outer: parts add up to the whole.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Spent:
    """`cpu_seconds` are those of all threads, so cpu_seconds / seconds is how many cores were busy."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0


class Stopwatch:
    """Runs for the innermost part that is open. `settle` waits until a device has done what it was told, because
    kernels that are still under way would otherwise count for the next part."""

    def __init__(self, settle: Callable[[], None] | None = None):
        self._settle = settle
        self._parts: dict[str, Spent] = {}
        self._open: list[str] = []
        self._clock = self._cpu = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._book()
        self._open.append(name)
        try:
            yield
        finally:
            self._book()
            self._open.pop()

    def take(self) -> dict[str, Spent]:
        """What has been measured since the last time, in the order in which parts were first left."""
        taken, self._parts = self._parts, {}
        return taken

    def _book(self) -> None:
        """Put what has passed down to the innermost part."""
        if self._settle is not None:
            self._settle()
        clock, cpu = time.perf_counter(), time.process_time()
        if self._open:
            spent = self._parts.setdefault(self._open[-1], Spent())
            spent.seconds += clock - self._clock
            spent.cpu_seconds += cpu - self._cpu
        self._clock, self._cpu = clock, cpu
