"""Pre-trained image generators for the server of FedKTL; clients never load one.

`load` takes a name or a path and gives a `Generator`, whatever stands behind it.
"""

from pathlib import Path

import torch

from fedsim.errors import UserError
from fedsim.generators.base import Generator, choose_labels, labelled_pairs

__all__ = ["Generator", "choose_labels", "labelled_pairs", "load", "require_fit"]


def load(path_or_name: str | Path = "", device: str | torch.device = "cpu") -> Generator:
    """The generator at a path; "" and "tiny" are the one inside the package.

    A .pkl file is an official snapshot of StyleGAN2, StyleGAN3 or StyleGAN-XL, a folder with a model_index.json
    a Stable Diffusion pipeline.
    """
    device = torch.device(device)
    # Imported as needed: each kind brings packages that the others do without.
    if str(path_or_name) in ("", "tiny"):
        from fedsim.generators.tiny import TinyGenerator

        return TinyGenerator.load(device)
    path = Path(path_or_name).expanduser()
    if not path.exists():
        raise UserError(
            f"there is no generator at {path}; give a StyleGAN .pkl, a Stable Diffusion folder, or tiny."
        )
    if path.is_dir():
        from fedsim.generators import stable_diffusion

        return stable_diffusion.load(path, device)
    if path.suffix == ".pkl":
        from fedsim.generators import stylegan

        return stylegan.load(path, device)
    raise UserError(f"{path} is not a generator; give a StyleGAN .pkl, a Stable Diffusion folder, or tiny.")


def require_fit(source: Generator, input_shape: tuple[int, ...]) -> None:
    """UserError with the reason why its images are of no use to clients with samples of this shape."""
    (channels, height, width), (made_channels, made_height, made_width) = input_shape, source.image_shape
    if made_height < height or made_width < width:
        raise UserError(
            f"the generator {source.name} makes images of {made_height}x{made_width} pixels, but the clients' are "
            f"{height}x{width}; choose a larger one with method.generator."
        )
    if channels != made_channels and {channels, made_channels} != {1, 3}:
        raise UserError(
            f"the generator {source.name} makes images of {made_channels} channels, the clients' have {channels}; "
            "choose another with method.generator."
        )
