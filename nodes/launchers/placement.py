"""Which GPU or core each process gets.

With GPUs, a client belongs to one of them for its whole life, because CUDA binds a process to its devices at
start; a GPU is a place with its own slots, and clients are dealt out so that all GPUs have about as much to do.
Without, all clients of a host share one place whose slots are cores: who works in a slot is pinned to its core.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.config import Cluster
from nodes.launchers import gpus, processes

if TYPE_CHECKING:  # a client that has its work done by others never loads torch
    import torch

_MAX_NAME_CHARS = 64  # as many as a Hello may carry
_HASH_CHARS = 6
_MACHINE_FILES = ("/etc/machine-id", "/proc/sys/kernel/random/boot_id")
# cuBLAS gives the same bits only with a workspace of fixed size, which it reads when it is loaded.
_CUDA_SETTINGS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


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


def place_clients(
    clients: Sequence[int],
    *,
    host: str,
    names: Sequence[str] = (),
    cores: Sequence[int] = (),
    slots: int = 0,
    work: Mapping[int, float] | None = None,
) -> dict[int, Placement]:
    """Of the clients of one host, on its GPUs (`names`) or else its cores. `work` is what each is expected to have
    to do; unless it is known, all have the same. `slots` 0 means one per GPU, or one per core."""
    if not names:
        slots = slots or len(cores)
        pinned = tuple(cores[slot % len(cores)] for slot in range(slots))
        # An empty list hides GPUs that the host has but the user did not want.
        placement = Placement(cut(host), slots, {"CUDA_VISIBLE_DEVICES": ""}, pinned)
        return dict.fromkeys(clients, placement)
    places = [
        Placement(cut(f"{host}/gpu{name}"), slots or 1, {"CUDA_VISIBLE_DEVICES": name, **_CUDA_SETTINGS})
        for name in names
    ]
    dealt = deal(clients, len(names), work or {})
    return {client: places[dealt[client]] for client in clients}


def deal(clients: Sequence[int], num_places: int, work: Mapping[int, float]) -> dict[int, int]:
    """Client -> place: the largest first, each to the place that has least to do so far, so that not every large
    model lands on one GPU."""
    load = [(0.0, 0, place) for place in range(num_places)]
    dealt = {}
    for client in sorted(clients, key=lambda client: (-work.get(client, 1.0), client)):
        total, count, place = min(load)
        load[place] = (total + work.get(client, 1.0), count + 1, place)
        dealt[client] = place
    return dealt


def host_name() -> str:
    """The name of this machine in a run, unique even where machines are called the same."""
    facts = [Path(file).read_text().strip() for file in _MACHINE_FILES if Path(file).is_file()]
    return f"{socket.gethostname()}-{_hash('/'.join(facts))}"


def cut(name: str) -> str:
    """At most as long as a name may be; two long ones that differ still do."""
    if len(name) <= _MAX_NAME_CHARS:
        return name
    return f"{name[: _MAX_NAME_CHARS - _HASH_CHARS - 1]}-{_hash(name)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]


def use_server_device(cluster: Cluster) -> torch.device:
    """The first GPU, or none. Must come before this process touches CUDA for the first time."""
    first = gpus.usable_gpus(cluster.device)[:1]
    os.environ.update({"CUDA_VISIBLE_DEVICES": "".join(first)} | (_CUDA_SETTINGS if first else {}))
    device = gpus.Device("cuda" if first else "cpu")
    device.be_deterministic(cluster.deterministic)
    return device.torch


def use_server_threads(cluster: Cluster) -> None:
    """The server computes while clients are idle, so it may have every core."""
    import torch

    torch.set_num_threads(cluster.server_threads or len(processes.cores()))
