"""torchvision's downloads, moved into place only when they are complete."""

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class Download:
    """A data set that torchvision can fetch."""

    kind: str
    """The class in torchvision.datasets."""
    calls: tuple[dict[str, Any], ...] = ({},)
    """What to call it with to get all of its files."""


def download(wanted: Download, folder: Path) -> str:
    """Fetch a data set into `folder`. Returns why it could not be had, or an empty text."""
    from fedsim.compat import import_torchvision

    dataset = getattr(import_torchvision().datasets, wanted.kind)
    # Beside its final place, so that an interrupted download leaves nothing that looks like a data set.
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{wanted.kind}-") as unfinished, _timeout():
        try:
            for options in wanted.calls:
                dataset(unfinished, download=True, **options)
        except (OSError, RuntimeError) as error:  # torchvision raises RuntimeError for a wrong checksum
            return str(error).rstrip(".") or type(error).__name__
        for path in Path(unfinished).iterdir():
            path.rename(folder / path.name)
    return ""


@contextlib.contextmanager
def _timeout() -> Iterator[None]:
    """torchvision sets none, and a silent server would stop every process of a run for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
