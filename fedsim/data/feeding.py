"""From the machine's memory to a device's: copies that nobody waits for, and small data sets that are copied once.

On a CPU nothing is copied or kept.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class _Kept:
    inputs: np.ndarray
    there: Tensor


_kept: list[_Kept] = []
"""At most one: of the run that this process works for."""


def to_device(given: np.ndarray | Tensor, device: torch.device | str | None) -> Tensor:
    """A copy out of pinned memory is made beside whatever the GPU computes, and in the order of its work."""
    tensor = torch.from_numpy(given) if isinstance(given, np.ndarray) else given
    if device is None or torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def keep(inputs: np.ndarray, device: torch.device) -> None:
    """Have all samples on the device, until others are kept or `forget` is called."""
    forget()
    _kept.append(_Kept(inputs, to_device(np.array(inputs), device)))


def forget() -> None:
    _kept.clear()


def take(inputs: np.ndarray, rows: np.ndarray, device: torch.device | str | None) -> Tensor:
    """These samples, on the device; only their numbers travel where all are there already."""
    for kept in _kept:
        if kept.inputs is inputs and device is not None and kept.there.device.type == torch.device(device).type:
            return kept.there.index_select(0, to_device(rows, device))
    return to_device(np.take(inputs, rows, axis=0), device)
