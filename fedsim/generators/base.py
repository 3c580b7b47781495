"""What every image generator offers, whatever stands behind it.

Dimensions: N images or latents, H latent size, L labels of a conditional generator, C classes of a task.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from fedsim.errors import UserError


class Generator(ABC):
    """A frozen network that turns a latent vector into an image.

    Latents are plain vectors. `draw` gives *valid* ones, those from which the network makes clear images;
    FedKTL's server compares its own vectors with them (W space for style-based generators, paper section 3.1).
    """

    name: str
    latent_dim: int
    """H."""
    image_shape: tuple[int, int, int]
    """Channels, height, width."""
    num_labels: int = 0
    """L, the classes that images can be asked for; 0 for an unconditional generator."""
    device: torch.device
    batch_size: int
    """Images computed at once: it bounds memory and changes no image beyond rounding."""

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """n valid latents (n, H); a conditional generator is asked for labels drawn uniformly."""
        labels_N = torch.randint(self.num_labels, (n,), generator=generator) if self.num_labels else None
        return self._draw(n, labels_N, generator)

    def draw_labelled(self, labels_N: Tensor, generator: torch.Generator) -> Tensor:
        """One valid latent (N, H) for each of these labels."""
        _check_labels(self, labels_N)
        return self._draw(len(labels_N), labels_N, generator)

    def images(self, latents_NH: Tensor) -> Tensor:
        """The images (N, ch, h, w) in [0, 1] of these latents, any vectors of the right size."""
        if latents_NH.ndim != 2 or latents_NH.shape[1] != self.latent_dim:
            raise ValueError(f"latents are {tuple(latents_NH.shape)}, not (N, {self.latent_dim})")
        images = torch.empty(len(latents_NH), *self.image_shape, device=self.device)
        for start in range(0, len(latents_NH), self.batch_size):
            some_NH = latents_NH[start : start + self.batch_size].to(self.device, torch.float32)
            with torch.no_grad():
                images[start : start + self.batch_size] = self._images(some_NH)
        return images

    @abstractmethod
    def _draw(self, n: int, labels_N: Tensor | None, generator: torch.Generator) -> Tensor:
        """Latents on the generator's device. Random numbers are drawn on the CPU, so that devices agree."""

    @abstractmethod
    def _images(self, latents_NH: Tensor) -> Tensor:
        """One batch, on the generator's device, without gradients."""


def choose_labels(source: Generator, num_classes: int, generator: torch.Generator) -> Tensor:
    """One different label for each class of a task, at random: (C,)."""
    _check_conditional(source)
    if num_classes > source.num_labels:
        raise UserError(
            f"the task has {num_classes} classes but the generator {source.name} has only {source.num_labels} "
            f"labels; choose a generator with at least {num_classes}."
        )
    return torch.randperm(source.num_labels, generator=generator)[:num_classes]


def labelled_pairs(source: Generator, labels_N: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A latent (N, H) and its image (N, ch, h, w) for each label: FedKTL's variant "+CS"."""
    latents_NH = source.draw_labelled(labels_N, generator)
    return latents_NH, source.images(latents_NH)


def _check_conditional(source: Generator) -> None:
    if not source.num_labels:
        raise UserError(
            f"the generator {source.name} is unconditional, it cannot be asked for images of a class; "
            "choose a conditional one such as StyleGAN-XL or tiny."
        )


def _check_labels(source: Generator, labels_N: Tensor) -> None:
    _check_conditional(source)
    outside = labels_N[(labels_N < 0) | (labels_N >= source.num_labels)]
    if len(outside):
        raise UserError(
            f"there is no label {int(outside[0])}, the generator {source.name} has 0 to {source.num_labels - 1}."
        )
