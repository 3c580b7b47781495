"""All that fedsim asks of GPUs, in one place: which there are, found without touching CUDA, which would break
every later fork; and, in a process that computes, its device.
"""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING

from fedsim.errors import UserError
from fedsim.metrics import GPU_PEAK_BYTES

if TYPE_CHECKING:
    import torch

_MEBIBYTE = 1 << 20
_KEPT_SHARE = 10
"""Samples stay on a GPU where they take at most a tenth of what is free there."""
_QUERY = "index,uuid,memory.free"
_OTHER_BUILDS = {"hip": "ROCm", "xpu": "Intel GPUs", "mps": "Apple's GPUs"}


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine, as the driver describes it."""

    index: str
    uuid: str
    free_bytes: int | None
    """None where the driver does not tell, as of GPUs that share the machine's memory."""

    def is_called(self, name: str) -> bool:
        """As CUDA reads names: a number, or the beginning of a UUID."""
        return name == self.index or (len(name) > 4 and self.uuid.startswith(name))


def usable_gpus(device: str = "auto") -> list[str]:
    """The GPUs that nodes of this host work on; none if only the CPU is wanted, or torch has no CUDA."""
    return visible_gpus(os.environ) if device == "auto" and torch_cuda() else []


def torch_cuda() -> str | None:
    """The CUDA that torch is built for, if any. Torch itself, which takes seconds to load, is not loaded."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return None
    cuda: str | None = run_path(str(Path(found.origin).with_name("version.py")))["cuda"]
    return cuda


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """By the names under which CUDA knows them."""
    if (listed := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        named = (gpu.strip() for gpu in listed.split(",") if gpu.strip())
        # As CUDA reads it: the list ends before the first device that cannot exist, so "-1" hides them all.
        return list(itertools.takewhile(lambda gpu: not gpu.startswith("-"), named))
    return [gpu.index for gpu in described()]


def described() -> list[Gpu]:
    """All GPUs of this machine; none where no driver answers."""
    try:
        output = subprocess.run(
            ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    cells = [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.strip()]
    return [
        Gpu(index, uuid, int(free) * _MEBIBYTE if free.isdigit() else None)  # else it says [N/A]
        for index, uuid, free in cells
    ]


def look_up(names: Sequence[str]) -> dict[str, Gpu]:
    """What the driver knows of these. One that does not exist is refused; where no driver answers nothing is."""
    known = described() if names else []
    found = {name: gpu for name in names for gpu in known if gpu.is_called(name)}
    if known and (unknown := [name for name in names if name not in found and not name.startswith("MIG")]):
        there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in known)
        raise UserError(
            f"CUDA_VISIBLE_DEVICES names GPU {unknown[0]}, but this machine has {there}; name one of these, or "
            "set cluster.device=cpu."
        )
    return found


def other_accelerator() -> str:
    """What torch was built for where that is neither CUDA nor the CPU: such devices are not used."""
    import torch

    built = [title for name, title in _OTHER_BUILDS.items() if _is_built_for(torch, name)]
    return "" if torch_cuda() or not built else built[0]


def _is_built_for(torch: object, name: str) -> bool:
    version = getattr(getattr(torch, "version", None), name, None)
    available = getattr(getattr(getattr(torch, "backends", None), name, None), "is_available", lambda: False)
    return version is not None or bool(available())


class Device:
    """Where a process computes. `open` makes the one context that it has for the whole run."""

    def __init__(self, kind: str):
        import torch

        self.torch = torch.device(kind)

    def open(self) -> torch.device:
        if self.torch.type == "cuda":
            import torch

            torch.zeros(1, device=self.torch)
        return self.torch

    def be_deterministic(self, wanted: bool) -> None:
        """On a GPU the same bits in every run, or what is fastest. The CPU gives the same bits always."""
        if self.torch.type != "cuda":
            return
        import torch

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not wanted
        torch.backends.cudnn.benchmark = not wanted
        torch.backends.cudnn.deterministic = wanted
        torch.use_deterministic_algorithms(wanted, warn_only=True)  # what cannot be is named, once, in the log

    def can_keep(self, size_bytes: int) -> bool:
        """Whether so many bytes of samples may stay on it beside the work; on a CPU they are mapped already."""
        if self.torch.type != "cuda":
            return False
        import torch

        return size_bytes * _KEPT_SHARE <= torch.cuda.mem_get_info()[0]

    def memory(self) -> dict[str, float]:
        """What a report says of it: the most that was allocated since the last time. Nothing on a CPU."""
        if self.torch.type != "cuda":
            return {}
        import torch

        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return {GPU_PEAK_BYTES: float(peak)}

    def rest(self) -> None:
        """Give back what is kept for the next batch; the context stays."""
        if self.torch.type == "cuda":
            import torch

            torch.cuda.empty_cache()
