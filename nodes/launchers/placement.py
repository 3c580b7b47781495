"""Which GPU or core each process gets.

With GPUs, client i belongs to GPU i mod G for its whole life, because CUDA binds a process to its devices at
start; a GPU is a place with its own slots. Without, all clients of a host share one place whose slots are
cores: a client is pinned to the core of the slot it was given for as long as it works there.
"""

import itertools
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fedsim.config import Cluster
from nodes.launchers import processes


@dataclass(frozen=True)
class Placement:
    """Where one client runs, and the environment its process must have before torch touches CUDA."""

    place: str
    slots: int
    environment: dict[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()
    """The core of each slot; empty on a GPU, where the operating system may choose."""

    @property
    def device(self) -> str:
        return "cuda" if not self.cores else "cpu"


def place_client(client: int, *, host: str, gpus: Sequence[str], cores: Sequence[int], slots: int) -> Placement:
    """`slots` 0 means one per GPU, or one per core."""
    if gpus:
        gpu = gpus[client % len(gpus)]
        return Placement(f"{host}/gpu{gpu}", slots or 1, {"CUDA_VISIBLE_DEVICES": gpu})
    slots = slots or len(cores)
    pinned = tuple(cores[slot % len(cores)] for slot in range(slots))
    # An empty list hides GPUs that the host has but the user did not want.
    return Placement(host, slots, {"CUDA_VISIBLE_DEVICES": ""}, pinned)


def use_server_device(cluster: Cluster) -> torch.device:
    """The first GPU, or none. Must come before this process touches CUDA for the first time."""
    first = usable_gpus(cluster.device)[:1]
    os.environ["CUDA_VISIBLE_DEVICES"] = "".join(first)
    return torch.device("cuda" if first else "cpu")


def use_server_threads(cluster: Cluster) -> None:
    """The server computes while clients are idle, so it may have every core."""
    torch.set_num_threads(cluster.server_threads or len(processes.cores()))


def usable_gpus(device: str = "auto") -> list[str]:
    """The GPUs that nodes of this host work on; none if only the CPU is wanted, or torch has no CUDA."""
    return visible_gpus(dict(os.environ)) if device == "auto" and torch.version.cuda else []


def visible_gpus(environment: dict[str, str]) -> list[str]:
    """The GPUs of this host, found without initialising CUDA, which would break every later fork."""
    if (listed := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        named = (gpu.strip() for gpu in listed.split(",") if gpu.strip())
        # As CUDA reads it: the list ends before the first device that cannot exist, so "-1" hides them all.
        return list(itertools.takewhile(lambda gpu: not gpu.startswith("-"), named))
    try:
        output = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return output.split()
