"""Generated images, one for each class, and the latents that they were made from: as they are made, sent and used.

Images lie in [−1, 1], as models read them. They travel as floats or as bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsim.contract import Arrays, Field, Fields, Payload
from fedsim.data import Dataset, Subset
from fedsim.equations.etf import to_bytes, with_noise


def pair_fields(dtype: str, *, with_latents: bool) -> Fields:
    """Rows of all C classes always, so no class numbers."""
    latents = {"latents": Field(Payload.LATENTS, "C H")} if with_latents else {}
    return {"images": Field(Payload.IMAGES, "C ch h w", dtype), **latents}


@dataclass(frozen=True)
class ImagePairs:
    """`images` are (C, ch, h, w). H is 0 where they are samples of their classes and no more."""

    images: Tensor
    latents_CH: Tensor

    @classmethod
    def unpack(cls, arrays: Arrays, device: torch.device) -> ImagePairs:
        images = torch.from_numpy(arrays["images"]).to(device)
        latents_CH = torch.from_numpy(arrays.get("latents", np.zeros((len(images), 0), np.float32))).to(device)
        return cls(images.float() / 127.5 - 1 if images.dtype == torch.uint8 else images, latents_CH)

    def pack(self, dtype: str) -> Arrays:
        images = self.pixels() if dtype == "uint8" else self.images.cpu().numpy()
        return {"images": images} | ({"latents": self.latents_CH.cpu().numpy()} if self.latents_CH.numel() else {})

    def pixels(self) -> np.ndarray:
        """(C, ch, h, w) bytes."""
        return to_bytes(self.images.cpu().numpy())

    def noisy(self, image_noise: float, vector_noise: float, fading: float, draw: torch.Generator) -> ImagePairs:
        images = with_noise(self.images, image_noise, fading, draw)
        return ImagePairs(images, with_noise(self.latents_CH, vector_noise, fading, draw))

    def among(self, own: Subset, draw: np.random.Generator) -> Subset:
        """A client's own samples and the images as samples of their classes, in a random order."""
        is_bytes = own.dataset.inputs.dtype == np.uint8
        made = self.pixels().transpose(0, 2, 3, 1) if is_bytes else self.images.cpu().numpy()
        inputs = np.concatenate([np.take(own.dataset.inputs, own.indices, axis=0), made])
        labels = np.concatenate([own.labels, np.arange(len(made))])
        return Subset(Dataset("mixture", inputs, labels, len(made), len(labels)), draw.permutation(len(labels)))
