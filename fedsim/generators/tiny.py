"""The generator inside the package: small flowers, so that FedKTL runs without any download.

A style-based network of 0.9 million weights. The mapping turns noise and one of 102 labels into a vector w of
128 numbers, by mixing ten w of that label whose images are known to be good. The synthesis network starts from a
learned 4×4 constant, and w scales the channels before every convolution (modulation, with demodulation after
it) up to 32×32 pixels in colour. It follows StyleGAN2 but for the per-pixel noise, which is left out so that w
alone decides the image.

`tiny.safetensors` holds the weights in half precision; they are computed with in single precision. It was made
with `benchmarks/train_tiny.py`, which says how and from what.

Dimensions: N images, A anchors, H latent (w), L labels, I and O channels in and out.
"""

from importlib.resources import as_file, files

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from fedsim.generators.base import Generator

NUM_LABELS = 102
NUM_ANCHORS = 10
SHARPNESS = 5.0
"""Of the mixture of anchors: the largest of ten shares is 0.8 on average."""
LATENT_DIM = 128
CHANNELS = {4: 128, 8: 128, 16: 64, 32: 48}
RESOLUTION = max(CHANNELS)


def normalise(features: Tensor) -> Tensor:
    """To a mean square of one over the features of each sample."""
    return features * (features.square().mean(1, keepdim=True) + 1e-8).rsqrt()


class Mapping(nn.Module):
    """(noise, label) -> w: the noise mixes the anchors of the label, with one of them mostly in front."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("anchors_LAH", torch.zeros(NUM_LABELS, NUM_ANCHORS, LATENT_DIM))

    def forward(self, noise_NA: Tensor, labels_N: Tensor) -> Tensor:
        shares_NA = (SHARPNESS * noise_NA).softmax(1)
        return normalise(torch.einsum("na,nah->nh", shares_NA, self.anchors_LAH[labels_N]))


class StyledConvolution(nn.Module):
    """A convolution whose input channels are scaled by w.

    Scaling the weights for each sample and scaling its input channels are the same thing; the second needs one
    ordinary convolution for the whole batch.
    """

    def __init__(self, channels_in: int, channels_out: int, *, size: int = 3, demodulate: bool = True):
        super().__init__()
        self.style = nn.Linear(LATENT_DIM, channels_in)
        nn.init.ones_(self.style.bias)
        self.weight_OIkk = nn.Parameter(
            torch.randn(channels_out, channels_in, size, size) / (channels_in * size**2) ** 0.5
        )
        self.bias_O = nn.Parameter(torch.zeros(channels_out))
        self.demodulate = demodulate

    def forward(self, x: Tensor, w_NH: Tensor) -> Tensor:
        scale_NI = self.style(w_NH)
        x = F.conv2d(x * scale_NI[:, :, None, None], self.weight_OIkk, padding="same")
        if self.demodulate:  # back to unit variance: 1/√(Σ_Ikk (scale·weight)²)
            power_NO = scale_NI.square() @ self.weight_OIkk.square().sum((2, 3)).T
            x = x * (power_NO + 1e-8).rsqrt()[:, :, None, None]
        return x + self.bias_O[:, None, None]


class Synthesis(nn.Module):
    """w -> image, roughly in [−1, 1]. Each resolution adds its own image to the enlarged one before it.

    Only the direction of w counts: a mean of several w is shorter than each of them and still valid.
    """

    def __init__(self) -> None:
        super().__init__()
        channels = list(CHANNELS.values())
        self.constant = nn.Parameter(torch.randn(1, channels[0], 4, 4))
        self.first = StyledConvolution(channels[0], channels[0])
        self.enlarging = nn.ModuleList(map(StyledConvolution, channels, channels[1:]))
        self.refining = nn.ModuleList(StyledConvolution(size, size) for size in channels[1:])
        self.to_rgb = nn.ModuleList(StyledConvolution(size, 3, size=1, demodulate=False) for size in channels)

    def forward(self, w_NH: Tensor) -> Tensor:
        w_NH = normalise(w_NH)
        x = self.constant.expand(len(w_NH), -1, -1, -1).contiguous(memory_format=torch.channels_last)
        x = _activate(self.first(x, w_NH))
        image = self.to_rgb[0](x, w_NH)
        for enlarge, refine, to_rgb in zip(self.enlarging, self.refining, self.to_rgb[1:], strict=True):
            x = _double(_activate(enlarge(x, w_NH)))  # the convolution comes first: a quarter of the work
            x = _activate(refine(x, w_NH))
            image = _double(image) + to_rgb(x, w_NH)
        return image


class TinyNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mapping = Mapping()
        self.synthesis = Synthesis()


class TinyGenerator(Generator):
    """The embedded generator."""

    name = "tiny"
    latent_dim = LATENT_DIM
    image_shape = (3, RESOLUTION, RESOLUTION)
    num_labels = NUM_LABELS
    batch_size = 64

    def __init__(self, network: TinyNetwork, device: torch.device):
        self.device = device
        self.network = network.eval().requires_grad_(False).to(device)

    @classmethod
    def load(cls, device: torch.device) -> "TinyGenerator":
        network = TinyNetwork()
        with as_file(files("fedsim.generators") / "tiny.safetensors") as path:
            weights = load_file(path)
        network.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
        return cls(network, device)

    def _draw(self, n: int, labels_N: Tensor | None, generator: torch.Generator) -> Tensor:
        noise_NA = torch.randn(n, NUM_ANCHORS, generator=generator)
        return self.network.mapping(noise_NA.to(self.device), labels_N.to(self.device))

    def _images(self, latents_NH: Tensor) -> Tensor:
        return ((self.network.synthesis(latents_NH) + 1) / 2).clamp(0, 1)


def _activate(x: Tensor) -> Tensor:
    return F.leaky_relu(x, 0.2) * 2**0.5


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
