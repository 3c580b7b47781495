"""The folder for what fedsim keeps between runs, and the lock for filling it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from fedsim.errors import UserError


def cache_folder() -> Path:
    """FEDSIM_CACHE, else fedsim's folder in the user's cache."""
    if given := os.environ.get("FEDSIM_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedsim"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock that the kernel releases however this process ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise UserError(
            f"the cache folder {path.parent} cannot be written ({error.strerror}); "
            "set FEDSIM_CACHE to one that can."
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
