"""fedsim: the learning side of the simulator. It knows methods, models and data, and nothing of sockets.

import fedsim
run = fedsim.run(method="fedtgp", dataset="digits", rounds=5)     a cluster on this machine
run = fedsim.load("runs/some")                                    a run folder, read back
"""

import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.version import __version__

if TYPE_CHECKING:
    from fedsim.results.load import LoadedRun

__all__ = ["__version__", "load", "run"]

_RUNNER = "nodes.api:run"
"""Who starts processes. Nothing that learns may depend on it, so it is bound by name, and only when a user calls
`fedsim.run`: importing fedsim, or any module of it, never loads nodes or protocol."""


def run(method: str | None = None, **options: Any) -> "LoadedRun":
    """Run an experiment in processes of its own and return its results; see docs/python-api.md."""
    return pkgutil.resolve_name(_RUNNER)(method=method, **options)


def load(folder: str | Path) -> "LoadedRun":
    """A run folder, finished or interrupted."""
    from fedsim.results.load import load as read

    return read(Path(folder))
