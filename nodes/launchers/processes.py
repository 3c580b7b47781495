"""Small facts about operating-system processes that several nodes need."""

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PR_SET_PDEATHSIG = 1
# Parameters of glibc's mallopt, and what they are set to.
_TRIM_THRESHOLD, _KEPT_BYTES = -1, 1 << 30
_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 32 << 20


def die_with_parent(parent: int, number: int) -> None:
    """Ask the kernel for a signal when our parent dies, so that nothing outlives its launcher.

    `parent` is who we expect it to be: it may have died before the kernel knew of our wish.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def pss_bytes() -> int:
    """Proportional set size: shared pages count once over all processes. 0 where the kernel does not tell."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def raise_file_limit() -> int:
    """As many open files as this user may have; returns that number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # some systems say infinity and mean less
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def available_bytes() -> int:
    """What processes may still take of this machine's memory; a terabyte where the kernel does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 1 << 40
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def keep_freed_memory() -> None:
    """Let malloc keep freed memory for the next batch or round instead of handing it back to the kernel.

    Memory from the kernel is mapped and cleared page by page. That took a third of the training time of some
    models, and three times as long as copying an upload does. Where the C library is not glibc all stays as it is.
    """
    with contextlib.suppress(AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        library.mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)


def return_freed_memory() -> None:
    """Give the kernel what malloc has kept: for a process that will do nothing for a while."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Turnstile:
    """At most `width` at once of the processes that are forked from here. Whoever dies inside has left."""

    def __init__(self, width: int):
        self._width = width
        with tempfile.TemporaryFile() as file:
            self._file = os.dup(file.fileno())

    @contextlib.contextmanager
    def through(self, number: int) -> Iterator[None]:
        """Numbers that follow each other go through side by side."""
        gate = number % self._width
        fcntl.lockf(self._file, fcntl.LOCK_EX, 1, gate)  # a process's own lock, which ends with it
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, gate)


def cores() -> list[int]:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pin(core: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def describe_exit(status: int) -> str:
    """`waitpid`'s status in words."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was killed by signal {number} ({signal.Signals(number).name})"
    return f"exited with code {os.waitstatus_to_exitcode(status)}"
