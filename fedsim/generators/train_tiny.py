"""Trains the embedded generator: `python -m fedsim.generators.train_tiny flowers102.npz OUT.safetensors`.

The file holds `x_train` (N, h, w, 3) uint8, square, a multiple of 32 pixels wide, and `y_train` (N,) labels
below 102, as of the Oxford Flowers 102 data set (Nilsback and Zisserman, 2008). Images are averaged down to
32×32.

An adversarial game from nothing takes days on a processor; this takes half an hour on one core:

1. The synthesis network learns as the decoder of an autoencoder. An encoder gives each image a w of fixed
   length, noise is added so that neighbours of a w are valid too, and the image must come back (mean absolute
   error of the pixels and of their differences).
2. All along, the mapping network learns where images of a label lie in that space: for each encoded w the
   nearest of a few random candidates of its label is pulled onto it (implicit maximum likelihood estimation).
3. In the last part a small discriminator of patches makes what is decoded, both from images and from drawn w,
   as crisp as real images (hinge loss).

What is kept is an exponential moving average of mapping and synthesis. The seed fixes every random draw;
another processor or another number of minutes still gives other weights.

Dimensions: B batch, H latent, L labels.
"""

import argparse
import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from fedsim.generators.tiny import LATENT_DIM, NOISE_DIM, NUM_LABELS, RESOLUTION, TinyNetwork, normalise

BATCH = 48
LEARNING_RATE = 1e-3
SHARPENING_RATE = 3e-4
LATENT_NOISE = 0.25
CANDIDATES = 10
DECODING_SHARE = 0.5
"""Share of the time after which the discriminator joins."""
ADVERSARIAL_WEIGHT = 0.05
FEATURE_WEIGHT = 1.0
CRITIC_LEAD = 100
"""Steps in which the discriminator learns before anything listens to it."""
AVERAGING_STEPS = 200
"""Half-life of the moving average."""


class Encoder(nn.Module):
    """Image -> w, on the sphere where the mapping network's w lie."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 48, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(48, 96, 4, stride=2, padding=1),
            nn.BatchNorm2d(96),
            nn.LeakyReLU(0.2),
            nn.Conv2d(96, 192, 4, stride=2, padding=1),
            nn.BatchNorm2d(192),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(192 * 16, LATENT_DIM),
        )

    def forward(self, images: Tensor) -> Tensor:
        return normalise(self.body(images).float())


class PatchDiscriminator(nn.Module):
    """One logit for each overlapping patch of 18×18 pixels; the label enters by projection."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.spectral_norm
        self.layers = nn.ModuleList(
            [
                norm(nn.Conv2d(3, 64, 4, stride=2, padding=1)),
                norm(nn.Conv2d(64, 128, 4, stride=2, padding=1)),
                norm(nn.Conv2d(128, 128, 3, padding=1)),
            ]
        )
        self.logit = norm(nn.Conv2d(128, 1, 1))
        self.embedding = norm(nn.Embedding(NUM_LABELS, 128))

    def forward(self, images: Tensor, labels_B: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits (B, 8, 8) and the features of every layer."""
        x = images.clamp(-1, 1)  # nothing is won by leaving the range
        features = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.2)
            features.append(x)
        return (self.logit(x)[:, 0] + (x * self.embedding(labels_B)[:, :, None, None]).sum(1)).float(), features


@dataclass
class Trainer:
    """The networks and their optimizers, in one place for both stages."""

    images: Tensor
    labels: Tensor
    seed: int
    preview: Path | None

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.network = TinyNetwork().to(memory_format=torch.channels_last)
        self.encoder = Encoder().to(memory_format=torch.channels_last)
        self.critic = PatchDiscriminator().to(memory_format=torch.channels_last)
        self.average = copy.deepcopy(self.network).requires_grad_(False)
        learned = [*self.network.parameters(), *self.encoder.parameters()]
        self.optimizer = torch.optim.Adam(learned, LEARNING_RATE, (0.5, 0.99))
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), SHARPENING_RATE, (0.0, 0.99))

    def learn_to_decode(self, minutes: float) -> None:
        """Stages 1 and 2."""
        for step, done in _steps(minutes):
            self._set_rate(LEARNING_RATE * min(1, step / 100) * (1 - 0.7 * done))
            real, labels_B = self._batch()
            with _half_precision():
                encoded_BH = self.encoder(real)
                decoded = self.network.synthesis(self._blur(encoded_BH)).float()
            distance = image_distance(decoded, real)
            mapping = self._mapping_distance(encoded_BH.detach(), labels_B)
            self._update(distance + mapping)
            self._report(step, images=distance, mapping=mapping)

    def sharpen(self, minutes: float) -> None:
        """Stage 3; drawn latents are half as many as encoded ones."""
        for step, done in _steps(minutes):
            self._set_rate(SHARPENING_RATE * min(1, 3 * (1 - done)))  # the last third settles
            real, labels_B = self._batch()
            noise = torch.randn(BATCH // 2, NOISE_DIM)
            with _half_precision():
                encoded_BH = self.encoder(real)
                drawn = self.network.mapping(noise, labels_B[: BATCH // 2])
                decoded = self.network.synthesis(torch.cat([self._blur(encoded_BH), drawn])).float()
            fake_labels = labels_B.repeat(2)[: len(decoded)]
            critic_loss = self._update_critic(real, labels_B, decoded.detach(), fake_labels)
            if step < CRITIC_LEAD:
                continue
            self.critic.requires_grad_(False)
            with _half_precision():
                logits, features = self.critic(decoded, fake_labels)
                _, real_features = self.critic(real, labels_B)
            self.critic.requires_grad_(True)
            distance = image_distance(decoded[:BATCH], real)
            likeness = sum(
                (fake[:BATCH] - true).abs().float().mean() for fake, true in zip(features, real_features, strict=True)
            )
            mapping = self._mapping_distance(encoded_BH.detach(), labels_B)
            self._update(distance + FEATURE_WEIGHT * likeness - ADVERSARIAL_WEIGHT * logits.mean() + mapping)
            self._report(
                step,
                images=distance,
                features=likeness,
                logits=logits.mean(),
                discriminator=critic_loss,
                mapping=mapping,
            )

    def _batch(self) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(self.images), (BATCH,))
        mirror = torch.rand(BATCH, 1, 1, 1) < 0.5
        real = torch.where(mirror, self.images[chosen].flip(3), self.images[chosen])
        return real.contiguous(memory_format=torch.channels_last), self.labels[chosen]

    def _blur(self, encoded_BH: Tensor) -> Tensor:
        return encoded_BH + LATENT_NOISE * torch.randn_like(encoded_BH)

    def _mapping_distance(self, encoded_BH: Tensor, labels_B: Tensor) -> Tensor:
        """From each encoded w to the nearest of a few candidates of its label."""
        noise = torch.randn(CANDIDATES, len(labels_B), NOISE_DIM)
        with torch.no_grad():
            drawn = self.network.mapping(noise.flatten(0, 1), labels_B.repeat(CANDIDATES))
        best_B = (drawn.reshape(CANDIDATES, -1, LATENT_DIM) - encoded_BH).square().sum(2).argmin(0)
        nearest_BH = self.network.mapping(noise[best_B, torch.arange(len(labels_B))], labels_B)
        return (nearest_BH - encoded_BH).square().mean()

    def _update(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        follow = 1 - 0.5 ** (1 / AVERAGING_STEPS)
        with torch.no_grad():
            for slow, fast in zip(self.average.parameters(), self.network.parameters(), strict=True):
                slow.lerp_(fast, follow)

    def _update_critic(self, real: Tensor, labels_B: Tensor, fake: Tensor, fake_labels: Tensor) -> Tensor:
        with _half_precision():
            real_logits, _ = self.critic(real, labels_B)
            fake_logits, _ = self.critic(fake, fake_labels)
            loss = F.relu(1 - real_logits).mean() + F.relu(1 + fake_logits).mean()
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        return loss

    def _set_rate(self, rate: float) -> None:
        for group in (*self.optimizer.param_groups, *self.critic_optimizer.param_groups):
            group["lr"] = rate

    def _report(self, step: int, **values: Tensor) -> None:
        if step % 250 == 0:
            print(f"step {step}", *(f"{name} {value.item():.4f}" for name, value in values.items()), flush=True)
            if self.preview:
                measure_means(self.average, self.seed)
                save_preview(self.average, self.encoder, self.images, self.preview)


def read_images(path: Path) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) in [−1, 1] and labels (N,)."""
    with np.load(path) as arrays:
        images, labels = torch.from_numpy(arrays["x_train"]), torch.from_numpy(arrays["y_train"])
    images = F.adaptive_avg_pool2d(images.permute(0, 3, 1, 2).float(), RESOLUTION)
    return images / 127.5 - 1, labels


def image_distance(fake: Tensor, real: Tensor) -> Tensor:
    """Mean absolute error of the pixels, and of the differences of neighbours: edges count twice."""
    error = fake - real
    return error.abs().mean() + error.diff(dim=2).abs().mean() + error.diff(dim=3).abs().mean()


def _steps(minutes: float) -> Iterator[tuple[int, float]]:
    """Step number and share of the time that has gone."""
    started = time.process_time()
    step = 0
    while (done := (time.process_time() - started) / (60 * minutes)) < 1:
        step += 1
        yield step, done


def _half_precision() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


@torch.no_grad()
def measure_means(network: TinyNetwork, seed: int, num_draws: int = 200) -> None:
    """The mean of w for each label, which truncation pulls towards."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(NUM_LABELS).repeat_interleave(num_draws)
    w = network.mapping(torch.randn(len(labels), NOISE_DIM, generator=random), labels)
    network.w_mean_LH.copy_(w.reshape(NUM_LABELS, num_draws, LATENT_DIM).mean(1))


@torch.no_grad()
def save_preview(
    network: TinyNetwork, encoder: Encoder, images: Tensor, path: Path, columns: int = 17
) -> None:
    """Two rows of real images, the same decoded again, then one drawn image of every label."""
    from PIL import Image

    real = images[:: len(images) // (2 * columns)][: 2 * columns]
    decoded = network.synthesis(encoder.eval()(real))
    encoder.train()
    noise = torch.randn(NUM_LABELS, NOISE_DIM, generator=torch.Generator().manual_seed(0))
    drawn = network.synthesis(network.valid_latents(noise, torch.arange(NUM_LABELS)))
    tiles = ((torch.cat([real, decoded, drawn]) + 1) * 127.5).clamp(0, 255).byte()
    sheet = tiles.reshape(-1, columns, 3, RESOLUTION, RESOLUTION).permute(0, 3, 1, 4, 2)
    sheet = sheet.reshape(-1, columns * RESOLUTION, 3).numpy()
    Image.fromarray(sheet).resize((2 * sheet.shape[1], 2 * sheet.shape[0]), 0).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the embedded generator.")
    parser.add_argument("images", type=Path, help="a .npz file with x_train and y_train")
    parser.add_argument("out", type=Path, help="the .safetensors file to write")
    parser.add_argument("--minutes", type=float, default=25, help="how long to train (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--preview", type=Path, help="a .png that is drawn now and then")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images, labels = read_images(options.images)
    trainer = Trainer(images, labels, options.seed, options.preview)
    trainer.learn_to_decode(options.minutes * DECODING_SHARE)
    trainer.sharpen(options.minutes * (1 - DECODING_SHARE))
    network = trainer.average
    measure_means(network, options.seed)
    half = {name: tensor.half().contiguous() for name, tensor in network.state_dict().items()}
    save_file(half, options.out)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
