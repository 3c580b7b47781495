"""Where a run's numbers come from: the command, versions, the code's commit, the machine, the data, own files.

It is written into summary.json when a run ends, and taken down when it begins. Nothing in it changes a result, but
whoever compares two runs wants to know that they differ in more than their options.
"""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from fedsim.config import Experiment, to_layer
from fedsim.own import files
from fedsim.version import __version__

COMMAND = "FEDSIM_COMMAND"
"""Environment variable with the command to name, where the process was not started by a person."""
_PACKAGES = ("torch", "numpy", "torchvision", "pyzmq")
_GIT_SECONDS = 10.0

Provenance = Mapping[str, Any]


def collect(experiment: Experiment) -> dict[str, Any]:
    """All of it. Asks git, so it is not for a process that must not start others."""
    from fedsim.data import Federation  # which needs torch; a folder is looked at without

    own = {files.copy_name(place): digest for place, digest in files.hashes(to_layer(experiment)).items()}
    return {
        "command": os.environ.get(COMMAND) or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "versions": {"fedsim": __version__, "python": platform.python_version(), **_versions()},
        "commit": {
            "fedsim": _commit(Path(__file__).resolve()),  # of a checkout; an installed package has none
            "here": _commit(Path.cwd()),
        },
        "machine": {
            "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": psutil.virtual_memory().total,
            "gpus": _gpus(),
            "system": f"{platform.system()} {platform.release()}",
        },
        "data": {} if experiment.run.rehearsal else {"fingerprint": Federation(experiment).dataset.fingerprint},
        "own_files": own,
    }


def facts(provenance: Provenance) -> dict[str, str]:
    """Name -> value for people, without what is not known."""
    commits = {
        f"commit of {'fedsim' if whose == 'fedsim' else 'the working folder'}": (
            f"{found['commit'][:12]}{', with changes' if found['dirty'] else ''}"
        )
        for whose, found in provenance.get("commit", {}).items()
        if found
    }
    machine = provenance.get("machine", {})
    found = {
        "command": provenance.get("command", ""),
        **provenance.get("versions", {}),
        **commits,
        "processor": machine.get("cpu", ""),
        "cores": str(machine.get("cores", "")),
        "memory": f"{machine['memory_bytes'] / 2**30:.1f} GiB" if machine else "",
        "GPUs": ", ".join(machine.get("gpus", ())),
        "system": machine.get("system", ""),
        "fingerprint of the data": provenance.get("data", {}).get("fingerprint", ""),
        **{f"SHA-256 of {name}": digest for name, digest in provenance.get("own_files", {}).items()},
    }
    return {name: value for name, value in found.items() if value}


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _PACKAGES}


def _commit(place: Path) -> dict[str, Any] | None:
    """The commit that a folder, or a file that git knows, is at, and whether anything was changed since."""
    folder = place if place.is_dir() else place.parent
    if place.is_file() and _git(folder, "ls-files", "--error-unmatch", place.name) is None:
        return None  # a package that is installed somewhere below a repository is none of it
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _git(folder: Path, *words: str) -> str | None:
    """What git says, None where there is no git, no repository or no answer."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=_GIT_SECONDS, check=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _gpus() -> list[str]:
    """By the driver's files: asking CUDA would start it, and a process that has done so cannot be forked."""
    found = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = (line for path in found for line in path.read_text().splitlines())
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
