"""Trains the embedded generator: `python -m benchmarks.train_tiny flowers102.npz OUT.safetensors`.

The file holds `x_train` (N, h, w, 3) uint8, square, a multiple of 32 pixels wide, and `y_train` (N,) labels
below 102, as of the Oxford Flowers 102 data set (Nilsback and Zisserman, 2008). Images are averaged down to
32×32.

An adversarial game from nothing takes many hours on a processor; this takes about twenty minutes of one core:

1. The synthesis network learns as the decoder of an autoencoder. An encoder gives each image a w of fixed
   length, noise is added so that neighbours of a w are valid too, and the image must come back (mean absolute
   error of the pixels and of their differences).
2. A small discriminator of patches joins. It makes what is decoded as crisp as real images (hinge loss, and
   likeness of its features), both from w of images and from mixtures of two of them, so that what lies between
   images is valid too.
3. The mapping gets its anchors: for each label the w of the ten images whose edges come back best.

What is kept of the synthesis network is an exponential moving average. The seed fixes every random draw;
another processor still rounds differently.

Dimensions: B batch, H latent, L labels.
"""

import argparse
import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from fedsim.generators.tiny import (
    LATENT_DIM,
    NUM_ANCHORS,
    NUM_LABELS,
    RESOLUTION,
    Synthesis,
    TinyNetwork,
    normalise,
)

BATCH = 48
LEARNING_RATE = 1e-3
SHARPENING_RATE = 3e-4
LATENT_NOISE = 0.25
SHARPENING_NOISE = 0.1
ADVERSARIAL_WEIGHT = 0.05
FEATURE_WEIGHT = 1.0
CRITIC_LEAD = 100
"""Steps in which the discriminator learns before anything listens to it."""
AVERAGING_STEPS = 200
"""Half-life of the moving average."""


class Encoder(nn.Module):
    """Image -> w of a mean square of one, as all w are."""

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

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.synthesis = Synthesis().to(memory_format=torch.channels_last)
        self.encoder = Encoder().to(memory_format=torch.channels_last)
        self.critic = PatchDiscriminator().to(memory_format=torch.channels_last)
        self.average = copy.deepcopy(self.synthesis).requires_grad_(False)
        learned = [*self.synthesis.parameters(), *self.encoder.parameters()]
        self.optimizer = torch.optim.Adam(learned, LEARNING_RATE, (0.5, 0.99))
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), SHARPENING_RATE, (0.0, 0.99))

    def learn_to_decode(self, num_steps: int) -> None:
        for step in range(1, num_steps + 1):
            self._set_rate(LEARNING_RATE * min(1, step / 100) * (1 - 0.7 * step / num_steps))
            real, _ = self._batch()
            with _half_precision():
                decoded = self.synthesis(_blur(self.encoder(real), LATENT_NOISE)).float()
            distance = image_distance(decoded, real)
            self._update(distance)
            _report(step, images=distance)

    def sharpen(self, num_steps: int) -> None:
        """Mixtures are half as many as images. A mixture has the label of the image that it has more of."""
        for step in range(1, num_steps + 1):
            self._set_rate(SHARPENING_RATE * min(1, 3 * (1 - step / num_steps)))  # the last third settles
            real, labels_B = self._batch()
            share = 0.5 + 0.5 * torch.rand(BATCH // 2, 1)
            with _half_precision():
                encoded_BH = self.encoder(real)
                first, second = encoded_BH.chunk(2)
                mixed = normalise(share * first + (1 - share) * second).detach()
                decoded = self.synthesis(torch.cat([_blur(encoded_BH, SHARPENING_NOISE), mixed])).float()
            fake_labels = torch.cat([labels_B, labels_B[: BATCH // 2]])
            critic_loss, real_features = self._update_critic(real, labels_B, decoded.detach(), fake_labels)
            if step < CRITIC_LEAD:
                continue
            self.critic.requires_grad_(False)
            with _half_precision():
                logits, features = self.critic(decoded, fake_labels)
            self.critic.requires_grad_(True)
            distance = image_distance(decoded[:BATCH], real)
            likeness = sum(
                (fake[:BATCH] - true).abs().float().mean()
                for fake, true in zip(features, real_features, strict=True)
            )
            self._update(distance + FEATURE_WEIGHT * likeness - ADVERSARIAL_WEIGHT * logits.mean())
            _report(step, images=distance, features=likeness, logits=logits.mean(), discriminator=critic_loss)

    @torch.no_grad()
    def result(self) -> TinyNetwork:
        """The averaged synthesis network, with anchors from the images whose edges it gives back best."""
        network = TinyNetwork()
        network.synthesis.load_state_dict(self.average.state_dict())
        self.encoder.eval()
        w, lost = [], []
        for real in self.images.split(256):
            w.append(self.encoder(real))
            lost.append(edges(self.average(w[-1]) - real) / edges(real))
        self.encoder.train()
        w, lost = torch.cat(w), torch.cat(lost)
        for label in range(NUM_LABELS):
            members = (self.labels == label).nonzero()[:, 0]
            network.mapping.anchors_LAH[label] = w[members[lost[members].argsort()[:NUM_ANCHORS]]]
        return network

    def _batch(self) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(self.images), (BATCH,))
        mirror = torch.rand(BATCH, 1, 1, 1) < 0.5
        real = torch.where(mirror, self.images[chosen].flip(3), self.images[chosen])
        return real.contiguous(memory_format=torch.channels_last), self.labels[chosen]

    def _update(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        follow = 1 - 0.5 ** (1 / AVERAGING_STEPS)
        with torch.no_grad():
            for slow, fast in zip(self.average.parameters(), self.synthesis.parameters(), strict=True):
                slow.lerp_(fast, follow)

    def _update_critic(
        self, real: Tensor, labels_B: Tensor, fake: Tensor, fake_labels: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """The loss, and the features of the real images."""
        with _half_precision():
            real_logits, features = self.critic(real, labels_B)
            fake_logits, _ = self.critic(fake, fake_labels)
            loss = F.relu(1 - real_logits).mean() + F.relu(1 + fake_logits).mean()
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        return loss, [feature.detach() for feature in features]

    def _set_rate(self, rate: float) -> None:
        for group in (*self.optimizer.param_groups, *self.critic_optimizer.param_groups):
            group["lr"] = rate


def read_images(path: Path) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) in [−1, 1] and labels (N,)."""
    with np.load(path) as arrays:
        images, labels = torch.from_numpy(arrays["x_train"]), torch.from_numpy(arrays["y_train"])
    images = F.adaptive_avg_pool2d(images.permute(0, 3, 1, 2).float(), RESOLUTION)
    return images / 127.5 - 1, labels


def image_distance(fake: Tensor, real: Tensor) -> Tensor:
    """Mean absolute error of the pixels, and of the differences of neighbours: edges count twice."""
    error = fake - real
    return error.abs().mean() + edges(error).mean()


def edges(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, down plus across, of each image."""
    return images.diff(dim=2).abs().mean((1, 2, 3)) + images.diff(dim=3).abs().mean((1, 2, 3))


def _report(step: int, **values: Tensor) -> None:
    if step % 100 == 0:
        print(f"step {step}", *(f"{name} {value.item():.4f}" for name, value in values.items()), flush=True)


def _blur(w_BH: Tensor, noise: float) -> Tensor:
    return w_BH + noise * torch.randn_like(w_BH)


def _half_precision() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


@torch.no_grad()
def save_preview(network: TinyNetwork, images: Tensor, encoder: Encoder, path: Path, columns: int = 17) -> None:
    """Two rows of real images, the same decoded again, then one drawn image of every label."""
    from PIL import Image

    real = images[:: len(images) // (2 * columns)][: 2 * columns]
    decoded = network.synthesis(encoder.eval()(real))
    encoder.train()
    noise_NA = torch.randn(NUM_LABELS, NUM_ANCHORS, generator=torch.Generator().manual_seed(0))
    drawn = network.synthesis(network.mapping(noise_NA, torch.arange(NUM_LABELS)))
    tiles = ((torch.cat([real, decoded, drawn]) + 1) * 127.5).clamp(0, 255).byte()
    sheet = tiles.reshape(-1, columns, 3, RESOLUTION, RESOLUTION).permute(0, 3, 1, 4, 2)
    sheet = sheet.reshape(-1, columns * RESOLUTION, 3).numpy()
    Image.fromarray(sheet).resize((2 * sheet.shape[1], 2 * sheet.shape[0]), 0).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the embedded generator.")
    parser.add_argument("images", type=Path, help="a .npz file with x_train and y_train")
    parser.add_argument("out", type=Path, help="the .safetensors file to write")
    parser.add_argument("--decoding-steps", type=int, default=2600, help="of stage 1 (default %(default)s)")
    parser.add_argument("--sharpening-steps", type=int, default=1700, help="of stage 2 (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="processor threads (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--preview", type=Path, help="a .png with a sheet of images to draw at the end")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images, labels = read_images(options.images)
    trainer = Trainer(images, labels, options.seed)
    trainer.learn_to_decode(options.decoding_steps)
    trainer.sharpen(options.sharpening_steps)
    network = trainer.result()
    half = {name: tensor.half().contiguous() for name, tensor in network.state_dict().items()}
    save_file(half, options.out)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.2f} MB")
    if options.preview:
        save_preview(network, images, trainer.encoder, options.preview)


if __name__ == "__main__":
    main()
