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
# What a cgroup may have, what it has, and, among its statistics, how much of that is cache that it can drop.
_CGROUP_FILES = ("memory.max", "memory.current", "inactive_file")
_CGROUP_FILES_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


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


def available_bytes(root: Path = Path("/")) -> int:
    """What processes may still take of memory: of this machine's, and of what cgroups leave, by which Slurm,
    Docker and Kubernetes keep a job to its share. A terabyte where the kernel does not tell."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return 1 << 40
    machine = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    return min([machine, *_left_by_cgroups(root)])


def _left_by_cgroups(root: Path) -> Iterator[int]:
    """Our own and those that it is in, as far as they can be seen: in a container often the outermost alone.
    A line is `0::/job` (version 2) or `4:hugetlb,memory:/job` (version 1)."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        folder = top / path.lstrip("/")
        names = _CGROUP_FILES_V1 if controllers else _CGROUP_FILES
        for group in (folder, *folder.parents):
            if (left := _left_in(group, *names)) is not None:
                yield left
            if group == top:
                break


def _left_in(group: Path, limit: str, used: str, cache: str) -> int | None:
    """None where there is no limit. What is used counts files that were read and need not stay."""
    try:
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free = int((group / limit).read_text()) - int((group / used).read_text()) + int(stat.get(cache, 0))
    except (OSError, ValueError):  # without a limit, "max" is written there
        return None
    return max(0, free)


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
