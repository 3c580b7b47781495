"""What must be the same on all machines of a run, and what may differ but should be known.

Every client computes which samples are its own (`fedsim/data/federation.py`), so one with other data, or another
way to divide it, would work on another experiment without anybody noticing. Fingerprints tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a client that has its work done by others never loads torch
    from fedsim.data import Federation

_MUST_AGREE = {
    "data set": "copy the server's data to this machine, or have both download it anew",
    "partition": "install the same versions of fedsim and numpy on both machines",
}
"""And what can be done about it."""


def facts_of(federation: Federation) -> dict[str, str]:
    """Of the machine that we are on."""
    import torch

    if federation.experiment.run.rehearsal:  # without samples
        return {}
    return {
        "data set": federation.dataset.fingerprint,
        "partition": federation.fingerprint,
        "torch": str(torch.__version__),
        "CPU": torch.backends.cpu.get_cpu_capability(),
    }


def difference(server: Mapping[str, str], client: Mapping[str, str]) -> str:
    """Why a client must not take part, in a clause with both values; empty where it may."""
    for name, remedy in _MUST_AGREE.items():
        if name in server and name in client and server[name] != client[name]:
            both = f"its fingerprint is {client[name]}, the server's is {server[name]}"
            return f"has another {name}: {both}; {remedy}"
    return ""


def remarks(server: Mapping[str, str], client: Mapping[str, str], place: str) -> list[str]:
    """What may make bits differ between machines."""
    return [
        f"{place} has {name} {client[name]} and the server {server[name]}: results may differ in their last bits"
        for name in ("torch", "CPU")
        if name in server and name in client and server[name] != client[name]
    ]
