"""Named random streams: every draw is a function of (root seed, purpose, client, round).

No generator is ever stored, so a resumed run continues with the same numbers without any RNG file, and two
purposes never share a stream however many numbers each of them takes.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch  # not loaded by those who draw with numpy alone, such as the border


@dataclass(frozen=True)
class Streams:
    """All random streams of one experiment."""

    root_seed: int

    def seed(self, purpose: str, *, client: int | None = None, round: int | None = None) -> int:
        """A 63-bit seed for this purpose; equal names give equal seeds on every machine."""
        name = f"{self.root_seed}/{purpose}/{client}/{round}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1

    def numpy(self, purpose: str, *, client: int | None = None, round: int | None = None) -> np.random.Generator:
        return np.random.default_rng(self.seed(purpose, client=client, round=round))

    def torch(self, purpose: str, *, client: int | None = None, round: int | None = None) -> torch.Generator:
        """A generator on the CPU, so that CPU and GPU runs draw the same numbers."""
        import torch

        return torch.Generator().manual_seed(self.seed(purpose, client=client, round=round))

    @contextlib.contextmanager
    def seeded(self, purpose: str, *, client: int | None = None, round: int | None = None) -> Iterator[None]:
        """For code that can only draw from torch's global generator (layer init, dropout)."""
        import torch

        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
        with torch.random.fork_rng(devices=list(devices)):
            torch.manual_seed(self.seed(purpose, client=client, round=round))
            yield
