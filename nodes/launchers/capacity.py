"""Do the clients of a host fit into its memory when each computes in its own process?

Own processes are the simplest and the fastest; what they take grows with the clients. With executors it grows with
the slots, beside a few megabytes and the state of each client. All figures are estimates on the safe side
(docs/gpus.md).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedsim.config import Experiment
from nodes.client.options import ClientOptions
from nodes.launchers import gpus, processes
from nodes.launchers.placement import Placement, host_name, place_clients

if TYPE_CHECKING:
    from fedsim.data import Federation

MEBIBYTE = 1 << 20
OWN_BYTES = 32 * MEBIBYTE
"""A client that computes, forked from a preloaded parent, without its model."""
LIGHT_BYTES = 10 * MEBIBYTE
"""A client that has its work done."""
EXECUTOR_BYTES = 160 * MEBIBYTE
"""An executor without models."""
CONTEXT_BYTES = 450 * MEBIBYTE
"""What CUDA takes of a GPU for each process that uses it."""
_TRAINING_COPIES = 4
"""A model in training: weights, gradients, momentum, activations."""
_USABLE_SHARE = 0.8
"""Of what is free now; others may want some."""


@dataclass(frozen=True)
class Need:
    """What clients that share one memory, of a machine or of a GPU, will want of it."""

    num_clients: int
    slots: int
    model_bytes: int = 0
    """What the models of all clients take together, as far as that is known."""
    largest_bytes: int = 0
    """And the largest of them."""
    context_bytes: int = 0
    """Of CUDA, for each process that uses the GPU; 0 where this is the memory of a machine."""

    @property
    def own_bytes(self) -> int:
        one = self.context_bytes or OWN_BYTES
        return self.num_clients * one + self.model_bytes + self._training_bytes

    @property
    def shared_bytes(self) -> int:
        """On a GPU nothing is left of a client that does not work; elsewhere its process and its state are."""
        working = min(self.slots, self.num_clients)
        if self.context_bytes:
            return working * self.context_bytes + self._training_bytes
        return working * EXECUTOR_BYTES + self.num_clients * LIGHT_BYTES + self.model_bytes + self._training_bytes

    @property
    def _training_bytes(self) -> int:
        return min(self.slots, self.num_clients) * _TRAINING_COPIES * self.largest_bytes


@dataclass(frozen=True)
class Expected:
    """What is known of a run's clients before they are started, by client."""

    work: dict[int, float] = field(default_factory=dict)
    """Parameters times samples: what training is in proportion to."""
    model_bytes: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, experiment: Experiment, federation: Federation) -> Expected:
        from fedsim import assembly

        if experiment.run.rehearsal:
            return cls()
        setting, train = assembly.setting_of(experiment, federation), federation.class_counts()[0].sum(axis=1)
        sizes = {}
        for client, name in enumerate(setting.architectures):
            if name not in sizes:  # models are those of shapes, without memory
                sizes[name] = sum(tensor.nbytes for tensor in setting.model(client).state_dict().values())
        models = {client: sizes[name] for client, name in enumerate(setting.architectures)}
        return cls({client: float(size * train[client]) for client, size in models.items()}, models)


@dataclass(frozen=True)
class Memory:
    """Of a GPU or of the machine, with those who share it."""

    name: str
    free_bytes: int
    context_bytes: int
    slots: int
    model_bytes: list[int]
    """Of each of its clients."""

    @property
    def need(self) -> Need:
        return self._need(self.model_bytes)

    @property
    def num_own(self) -> int:
        """How many of its clients fit when each computes in a process of its own."""
        usable = int(self.free_bytes * _USABLE_SHARE)
        counts = range(1, len(self.model_bytes) + 1)
        return max((n for n in counts if self._need(self.model_bytes[:n]).own_bytes <= usable), default=0)

    @property
    def fits_shared(self) -> bool:
        return self.need.shared_bytes <= int(self.free_bytes * _USABLE_SHARE)

    def _need(self, sizes: list[int]) -> Need:
        return Need(len(sizes), self.slots, sum(sizes), max(sizes), self.context_bytes)


@dataclass(frozen=True)
class HostPlan:
    """Where the clients of one host run, who computes for them, and what the user should know of it."""

    placements: dict[int, Placement]
    compute: str
    notes: list[str]
    memories: list[Memory] = field(default_factory=list)


def plan_host(options: ClientOptions, expected: Expected) -> HostPlan:
    """All that must be decided before the first client is forked, without touching CUDA."""
    names, cores = gpus.usable_gpus(options.device), processes.cores()
    known = gpus.look_up(names)
    placements = place_clients(
        options.ids,
        host=options.place or host_name(),
        names=names,
        cores=cores,
        slots=options.slots,
        work=expected.work,
    )
    notes = []
    if options.device == "auto" and not names and (built_for := gpus.other_accelerator()):
        notes.append(f"torch is built for {built_for}, which fedsim does not use; clients train on the cores.")
    if untold := [name for name, gpu in known.items() if gpu.free_bytes is None]:
        notes.append(
            f"the driver does not tell how much memory is free on GPU {', '.join(untold)}, so nobody knows "
            "whether the clients fit there; cluster.compute=shared takes least."
        )
    compute = options.compute
    memories = _memories(placements, known, expected)
    for memory in memories:
        chosen, why = choose(compute, memory.need, memory.free_bytes, memory.name)
        notes += [why] if why else []
        compute = "shared" if chosen == "shared" else compute
    return HostPlan(placements, "own" if compute == "auto" else compute, notes, memories)


def _memories(
    placements: Mapping[int, Placement], known: Mapping[str, gpus.Gpu], expected: Expected
) -> list[Memory]:
    """A GPU's clients share its memory; all clients, and states that nobody computes with, share the machine's."""
    on_gpu: dict[str, list[int]] = {}
    for client, placement in placements.items():
        on_gpu.setdefault(placement.environment["CUDA_VISIBLE_DEVICES"], []).append(client)

    def memory(name: str, free_bytes: int, context_bytes: int, clients: Sequence[int]) -> Memory:
        sizes = [expected.model_bytes.get(client, 0) for client in clients]
        return Memory(name, free_bytes, context_bytes, placements[clients[0]].slots, sizes)

    found = [
        memory(f"GPU {name}", gpu.free_bytes, CONTEXT_BYTES, on_gpu[name])
        for name, gpu in known.items()
        if name in on_gpu and gpu.free_bytes is not None
    ]
    machine = [memory("memory", processes.available_bytes(), 0, list(placements))] if placements else []
    return found + machine


def choose(wanted: str, need: Need, free_bytes: int, memory: str = "memory") -> tuple[str, str]:
    """`own` or `shared`, and a sentence where there is something to say: why, or that neither may fit."""
    usable = int(free_bytes * _USABLE_SHARE)
    chosen, reason = wanted, ""
    if wanted == "auto":
        chosen = "own" if need.own_bytes <= usable or not sys.platform.startswith("linux") else "shared"
        if chosen == "shared":
            reason = (
                f"{need.num_clients} clients in processes of their own would take about {_gib(need.own_bytes)} of "
                f"{_gib(free_bytes)} of free {memory}; so they share "
                f"{_counted(min(need.slots, need.num_clients), 'executor')} (cluster.compute)."
            )
    wants = need.own_bytes if chosen == "own" else need.shared_bytes
    if wants > usable:
        remedy = "share executors (cluster.compute=shared) or " if chosen == "own" else ""
        reason = (
            f"{need.num_clients} clients ({chosen}) may take about {_gib(wants)} of {memory}, and "
            f"{_gib(free_bytes)} are free; {remedy}take fewer clients or smaller models."
        )
    return chosen, reason


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
