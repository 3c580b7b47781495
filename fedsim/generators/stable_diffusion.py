"""Any Stable Diffusion pipeline in a diffusers folder (model_index.json, unet, vae, text_encoder, …).

The latent is the noise z_T that diffusion starts from, as one vector: 4×64×64 = 16384 numbers for version 1.5,
and any draw from a standard normal distribution is valid. Text, guidance and number of steps stay what they are
throughout (FedKTL, appendix A), so that an image depends on its latent alone.

Needs the extra `ktl`. Nothing is downloaded, and weights are read from safetensors files only.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsim.compat import import_torchvision
from fedsim.errors import UserError
from fedsim.generators.base import Generator

PROMPT = "a cat"
NUM_STEPS = 50
GUIDANCE = 7.5
PACKAGES = ("diffusers", "transformers", "stable_diffusion", None)
"""That parts may come from; the third is a safety checker's, which is left out."""
PARTS = ("unet", "vae", "text_encoder", "tokenizer", "scheduler")


class StableDiffusion(Generator):
    """A pipeline with its text already encoded."""

    batch_size = 4

    def __init__(self, name: str, pipeline: Any, device: torch.device, num_steps: int = NUM_STEPS):
        self.name, self.device, self.num_steps = name, device, num_steps
        pipeline.set_progress_bar_config(disable=True)
        self.pipeline = pipeline.to(device)
        size = pipeline.unet.config.sample_size
        height, width = size if isinstance(size, list | tuple) else (size, size)
        self.latent_shape = (pipeline.unet.config.in_channels, height, width)
        self.latent_dim = pipeline.unet.config.in_channels * height * width
        scale = pipeline.vae_scale_factor
        self.image_shape = (pipeline.vae.config.out_channels, height * scale, width * scale)
        with torch.no_grad():
            self.text, self.no_text = pipeline.encode_prompt(
                PROMPT, device, num_images_per_prompt=1, do_classifier_free_guidance=True
            )

    def _draw(self, n: int, labels_N: Tensor | None, generator: torch.Generator) -> Tensor:
        return torch.randn(n, self.latent_dim, generator=generator).to(self.device)

    def _images(self, latents_NH: Tensor) -> Tensor:
        n = len(latents_NH)
        return self.pipeline(
            latents=latents_NH.reshape(n, *self.latent_shape),
            prompt_embeds=self.text.expand(n, -1, -1),
            negative_prompt_embeds=self.no_text.expand(n, -1, -1),
            num_inference_steps=self.num_steps,
            guidance_scale=GUIDANCE,
            # Some schedulers add noise on the way: always the same.
            generator=torch.Generator(self.device).manual_seed(0),
            output_type="pt",
        ).images


def load(folder: Path, device: torch.device) -> StableDiffusion:
    _check_layout(folder)
    try:
        import_torchvision()  # transformers imports it where it is installed
        from diffusers import StableDiffusionPipeline
        from diffusers.utils import logging as diffusers_logging
        from transformers.utils import logging as transformers_logging
    except ImportError:
        raise UserError(
            f"{folder} needs diffusers and transformers; install them with pip install 'fedsim-htfl[ktl]'."
        ) from None
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    try:
        pipeline = StableDiffusionPipeline.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
            low_cpu_mem_usage=False,  # the other way needs one more package
        )
    except (OSError, ValueError) as error:
        raise UserError(f"the Stable Diffusion folder {folder} cannot be loaded: {_one_line(error)}.") from None
    pipeline.text_encoder.float()  # transformers keeps the precision of the file, diffusers does not
    return StableDiffusion(folder.name, pipeline, device)


def _check_layout(folder: Path) -> None:
    """Before diffusers sees it: the index names the packages that it would import."""
    index_path = folder / "model_index.json"
    if not index_path.is_file():
        raise UserError(
            f"the folder {folder} is not a generator, it has no model_index.json; give the top folder of a Stable "
            "Diffusion pipeline in the layout of diffusers."
        )
    try:
        index = json.loads(index_path.read_text())
    except ValueError as error:
        raise UserError(f"{index_path} is not valid JSON: {error}.") from None
    kind = index.get("_class_name") if isinstance(index, dict) else None
    if kind != "StableDiffusionPipeline":
        raise UserError(f"{index_path} describes {kind!r:.60}, only a StableDiffusionPipeline can be used.")
    missing = [part for part in PARTS if part not in index or not (folder / part).is_dir()]
    if missing:
        raise UserError(f"the Stable Diffusion folder {folder} is incomplete, it lacks {', '.join(missing)}.")
    for part, source in index.items():
        if isinstance(source, list) and (not source or source[0] not in PACKAGES):
            raise UserError(
                f"{index_path} takes its {part} from {source!r:.60}, not from diffusers or transformers."
            )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
