"""What a client computes on: its speed while training, and its memory.

gflops=10 memory=4gb
phone
laptop:1,phone:4
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedsim.config import Experiment
from fedsim.errors import UserError
from fedsim.world import mixtures
from fedsim.world.words import BYTES, NUMBER, Grammar

PROFILES: Mapping[str, str] = {
    "workstation": "gflops=100 memory=32gb",
    "laptop": "gflops=30 memory=8gb",
    "phone": "gflops=10 memory=4gb",
    "old-phone": "gflops=2 memory=2gb",
    "pi": "gflops=4 memory=4gb",
}
"""Orders of magnitude of what small networks reach in training, not peaks: our own choice (docs/time.md)."""

COPIES, FLOAT_BYTES = 3, 4

_GRAMMAR = Grammar(
    what="device",
    units={"gflops": NUMBER, "memory": BYTES},
    needed=("gflops",),
    profiles=PROFILES,
    example="write gflops=10 memory=4gb, or a profile",
)


@dataclass(frozen=True)
class Device:
    flops_per_second: float
    memory_bytes: float = float("inf")


def parse(text: str) -> Device:
    """One device: a profile's name or a description."""
    said = _GRAMMAR.read(text)
    return Device(1e9 * said["gflops"], said.get("memory", float("inf")))


def require_memory(device: Device | None, client: int, name: str, num_parameters: int) -> None:
    """Weights, gradients and one copy are the least that training takes; what lies between layers comes on top."""
    needed = COPIES * FLOAT_BYTES * num_parameters
    if device is not None and needed > device.memory_bytes:
        raise UserError(
            f"the device of client {client} has {device.memory_bytes / 1e6:.0f} MB, and {name} takes at least "
            f"{needed / 1e6:.0f} MB in training; give it more memory or a smaller model."
        )


def of_clients(experiment: Experiment) -> list[Device | None]:
    """A device for each client: its own, else one drawn for it; None where nothing is said."""
    world, run = experiment.world_config(), experiment.run
    return mixtures.deal("device", parse, world.device, world.devices, run.clients, run.seed)
