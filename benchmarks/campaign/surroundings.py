"""What is around a run and no part of it: a disk that fills, a clock that jumps."""

import contextlib
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def small_disk(path: Path, num_bytes: int) -> Iterator[None]:
    """A file system of its own in memory; needs root."""
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "campaign", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def grow(path: Path, num_bytes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={num_bytes}", str(path)], check=True)


def make_clock_jump(draw: random.Random) -> None:
    """From now on this process, and what it forks, has a clock that jumps by up to years, back and forth.

    Only the one that tells people the time: no machine's monotonic clock jumps.
    """
    real, offset, next_jump = time.time, 0.0, 0.0

    def jumping() -> float:
        nonlocal offset, next_jump
        if time.monotonic() > next_jump:
            offset = draw.choice([-1, 1]) * 10 ** draw.uniform(-1, 8)
            next_jump = time.monotonic() + draw.uniform(0.01, 0.5)
        return max(0.0, real() + offset)

    time.time = jumping
