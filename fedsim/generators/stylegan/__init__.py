"""Official snapshots (.pkl) of StyleGAN2, StyleGAN3 (T and R) and StyleGAN-XL (stem and super-resolution).

`reader.py` takes a file apart without running anything from it, `attributes.py` and `storage.py` take values out
of it, the other modules compute with them in plain PyTorch. Everything is computed in single precision, on
whatever device; the official programs use half precision on a GPU.

The latent space is W: one vector for all layers of the synthesis network. Its images lie roughly in [−1, 1];
they are moved to [0, 1] and clamped, not rounded to 8 bits.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from fedsim.generators.base import Generator
from fedsim.generators.stylegan import stylegan2, stylegan3
from fedsim.generators.stylegan.attributes import Attributes
from fedsim.generators.stylegan.blocks import Mapping
from fedsim.generators.stylegan.reader import read_generator, refusal
from fedsim.generators.stylegan.stand_ins import Record, Refused

ACTIVATIONS_AT_ONCE = 2**26
"""Bounds the memory of a batch: numbers in its largest layer, of which some three copies exist at once."""


class StyleGAN(Generator):
    """A mapping and a synthesis network."""

    def __init__(self, name: str, mapping: Mapping, synthesis: nn.Module, w_dim: int, device: torch.device):
        self.name = name
        self.latent_dim = w_dim
        self.image_shape = synthesis.image_shape
        self.num_labels = mapping.num_labels
        self.device = device
        self.batch_size = max(1, ACTIVATIONS_AT_ONCE // synthesis.largest_activation)
        self.mapping = mapping.eval().requires_grad_(False).to(device)
        self.synthesis = synthesis.eval().requires_grad_(False).to(device)

    @torch.no_grad()
    def _draw(self, n: int, labels_N: Tensor | None, generator: torch.Generator) -> Tensor:
        z = torch.randn(n, self.mapping.z_dim, generator=generator).to(self.device)
        return self.mapping(z, None if labels_N is None else labels_N.to(self.device))

    def _images(self, latents_NH: Tensor) -> Tensor:
        ws_NLH = latents_NH[:, None].expand(-1, self.synthesis.num_ws, -1)
        return ((self.synthesis(ws_NLH) + 1) / 2).clamp(0, 1)


def load(path: Path, device: torch.device) -> StyleGAN:
    """The averaged generator of a snapshot."""
    record = read_generator(path)
    try:
        return _build(path.name, record, device)
    except Refused as reason:
        raise refusal(path, str(reason)) from None


def _build(name: str, record: Record, device: torch.device) -> StyleGAN:
    source = Attributes(record, "G_ema")
    if not {"mapping", "synthesis"} <= set(source.module_names):
        raise Refused(
            f"its generator is {source.description}, which is none of StyleGAN2, StyleGAN3 and StyleGAN-XL"
        )
    part = source.module("synthesis")
    # Families share the names of their classes; what tells them apart is what they are made of.
    if part.has("input") and part.has("layer_names"):
        family = stylegan3
    elif part.has("block_resolutions") and part.has("b4"):
        family = stylegan2
    else:
        raise Refused(
            f"its synthesis network is {part.description}, which is none of StyleGAN2, StyleGAN3 and StyleGAN-XL"
        )
    w_dim = source.count("w_dim")
    synthesis = family.Synthesis.read(part, w_dim)
    mapping = source.module("mapping")
    mapping.expect("w_dim", mapping.count("w_dim"), w_dim)
    for holder in (source, mapping, part):
        holder.expect("num_ws", holder.count("num_ws"), synthesis.num_ws)
    source.expect("img_resolution", source.count("img_resolution"), synthesis.image_shape[1])
    source.expect("img_channels", source.count("img_channels"), synthesis.image_shape[0])
    return StyleGAN(name, Mapping.read(mapping), synthesis, w_dim, device)
