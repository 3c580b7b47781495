"""Pre-trained image generators for the server of FedKTL; clients never load one.

`load` takes a name or a path and gives a `Generator`, whatever stands behind it.
"""

from pathlib import Path

import torch

from fedsim.errors import UserError
from fedsim.generators.base import Generator, choose_labels, labelled_pairs

__all__ = ["Generator", "choose_labels", "labelled_pairs", "load"]


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
