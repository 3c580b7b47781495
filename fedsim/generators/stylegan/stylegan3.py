"""The synthesis network of StyleGAN3 (T and R) and StyleGAN-XL (stem and super-resolution).

Sizes, paddings and filters are stored in the snapshot; nothing is designed here. Two things that a network does
not change after training are put into the weights when it is read: the pre-normalisation of the weights and
the input gain of each layer (the square root of the mean square it met in training).

Dimensions: N images, H latent (w), C channels, O and I channels out and in, k kernel size.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsim.generators.stylegan.attributes import Attributes
from fedsim.generators.stylegan.blocks import (
    SQRT2,
    Dense,
    demodulation,
    modulated_convolution,
    normalise,
    resample_down,
    resample_up,
    square_filter,
)
from fedsim.generators.stylegan.stand_ins import Refused

MAX_RESAMPLING = 16
MAX_PADDING = 1024


class FourierInput(nn.Module):
    """A picture of plane waves, turned and shifted by w: the official SynthesisInput."""

    def __init__(
        self,
        *,
        affine: Dense,
        weight_CC: Tensor,
        freqs_C2: Tensor,
        phases_C: Tensor,
        transform_33: Tensor,
        size: list[int],
        sampling_rate: float,
        bandwidth: float,
    ):
        super().__init__()
        self.affine = affine
        self.sampling_rate, self.bandwidth = sampling_rate, bandwidth
        self.register_buffer("weight_CC", weight_CC / len(weight_CC) ** 0.5)
        self.register_buffer("freqs_C2", freqs_C2)
        self.register_buffer("phases_C", phases_C)
        self.register_buffer("transform_33", transform_33)
        # Pixel centres around the middle of the image, in units of the image's width.
        x, y = ((torch.arange(n) + 0.5 - n / 2) / sampling_rate for n in size)
        grid_HW2 = torch.stack([x.expand(size[1], -1), y[:, None].expand(-1, size[0])], 2)
        self.register_buffer("grid_HW2", grid_HW2)

    @classmethod
    def read(cls, source: Attributes, w_dim: int) -> "FourierInput":
        channels = source.count("channels")
        return cls(
            affine=Dense.read(source.module("affine"), w_dim, 4),
            weight_CC=source.tensor("weight", channels, channels),
            freqs_C2=source.tensor("freqs", channels, 2),
            phases_C=source.tensor("phases", channels),
            transform_33=source.tensor("transform", 3, 3),
            size=source.integers("size", 2),
            sampling_rate=source.number("sampling_rate"),
            bandwidth=source.number("bandwidth"),
        )

    def forward(self, w_NH: Tensor) -> Tensor:
        turn = self.affine(w_NH)  # (cos, sin, shift x, shift y), all four relative to the length of the first two
        cos, sin, shift_x, shift_y = (turn / turn[:, :2].norm(dim=1, keepdim=True)).unbind(1)
        one, zero = torch.ones_like(cos), torch.zeros_like(cos)
        rotation = torch.stack([cos, -sin, zero, sin, cos, zero, zero, zero, one], 1).reshape(-1, 3, 3)
        shift = torch.stack([one, zero, -shift_x, zero, one, -shift_y, zero, zero, one], 1).reshape(-1, 3, 3)
        transform_N33 = rotation @ shift @ self.transform_33
        phases_NC = self.phases_C + transform_N33[:, :2, 2] @ self.freqs_C2.T
        freqs_NC2 = self.freqs_C2 @ transform_N33[:, :2, :2]
        # Waves that a transform makes finer than the sampling can show fade out.
        excess = (freqs_NC2.norm(dim=2) - self.bandwidth) / (self.sampling_rate / 2 - self.bandwidth)
        amplitude_NC = (1 - excess).clamp(0, 1)
        angle = torch.einsum("ncd,hwd->nchw", freqs_NC2, self.grid_HW2) + phases_NC[:, :, None, None]
        waves = torch.sin(2 * torch.pi * angle) * amplitude_NC[:, :, None, None]
        return torch.einsum("oc,nchw->nohw", self.weight_CC, waves)


class Layer(nn.Module):
    """Modulated convolution, then a leaky ReLU between up- and downsampling so that it does not alias."""

    def __init__(
        self,
        *,
        affine: Dense,
        weight_OIkk: Tensor,
        bias_O: Tensor,
        magnitude: float,
        is_torgb: bool,
        up: int,
        down: int,
        up_filter: Tensor | None,
        down_filter: Tensor | None,
        padding: list[int],
        clamp: float | None,
        out_size: list[int],
    ):
        super().__init__()
        self.affine, self.is_torgb = affine, is_torgb
        self.up, self.down, self.padding, self.clamp = up, down, padding, clamp
        self.out_size = out_size
        gain = magnitude**-0.5
        if is_torgb:
            weight_OIkk = weight_OIkk * gain / weight_OIkk[0].numel() ** 0.5
        else:
            weight_OIkk = weight_OIkk * weight_OIkk.square().mean((1, 2, 3), keepdim=True).rsqrt()
            self.register_buffer("power_OI", weight_OIkk.square().sum((2, 3)))
        self.gain = gain
        self.register_buffer("weight_OIkk", weight_OIkk)
        self.register_buffer("bias_O", bias_O)
        self.register_buffer("up_filter", None if up_filter is None else square_filter(up_filter, up**2))
        self.register_buffer("down_filter", None if down_filter is None else square_filter(down_filter))

    @classmethod
    def read(cls, source: Attributes, w_dim: int) -> "Layer":
        channels_in, channels_out = source.count("in_channels"), source.count("out_channels")
        kernel = source.count("conv_kernel", high=16)
        magnitude = float(source.tensor("magnitude_ema"))
        if magnitude <= 0:
            raise Refused(f"{source.path}.magnitude_ema is {magnitude} where a number above 0 belongs")
        return cls(
            affine=Dense.read(source.module("affine"), w_dim, channels_in),
            weight_OIkk=source.tensor("weight", channels_out, channels_in, kernel, kernel),
            bias_O=source.tensor("bias", channels_out),
            magnitude=magnitude,
            is_torgb=source.flag("is_torgb"),
            up=source.count("up_factor", high=MAX_RESAMPLING),
            down=source.count("down_factor", high=MAX_RESAMPLING),
            up_filter=_read_filter(source, "up_filter", "up_factor"),
            down_filter=_read_filter(source, "down_filter", "down_factor"),
            padding=source.integers("padding", 4, low=-MAX_PADDING, high=MAX_PADDING),
            clamp=source.optional_number("conv_clamp"),
            out_size=source.integers("out_size", 2),
        )

    def size_from(self, in_size: list[int]) -> list[int]:
        """Width and height that come out, from those that go in."""
        up_taps = 1 if self.up_filter is None else len(self.up_filter)
        down_taps = 1 if self.down_filter is None else len(self.down_filter)
        sizes = []
        for size, low, high in zip(in_size, self.padding[::2], self.padding[1::2], strict=True):
            size = (size + self.weight_OIkk.shape[-1] - 1) * self.up + low + high - (up_taps - 1)
            sizes.append(-((down_taps - 1 - size) // self.down))  # rounded up
        return sizes

    def forward(self, x: Tensor, w_NH: Tensor) -> Tensor:
        scale_NI = self.affine(w_NH)
        gain_NO = None
        if not self.is_torgb:
            # The scale's own length cancels in the demodulation; taking it out first keeps the ε there small.
            scale_NI = normalise(scale_NI)
            gain_NO = demodulation(scale_NI, self.power_OI) * self.gain
        x = modulated_convolution(x, self.weight_OIkk, scale_NI, gain_NO, padding=self.weight_OIkk.shape[-1] - 1)
        x = x.add_(self.bias_O[:, None, None])
        if self.up_filter is None:
            x = F.pad(x, self.padding)
        else:
            x = resample_up(x, self.up_filter, self.up, self.padding)
        if not self.is_torgb:
            x = F.leaky_relu_(x, 0.2).mul_(SQRT2)
        if self.clamp is not None:
            x = x.clamp_(-self.clamp, self.clamp)
        return x if self.down_filter is None else resample_down(x, self.down_filter, self.down)


class Synthesis(nn.Module):
    """w for the input and for each layer -> image, roughly in [−1, 1], not clamped."""

    def __init__(self, input: FourierInput, layers: list[Layer], output_scale: float):
        super().__init__()
        self.input = input
        self.layers = nn.ModuleList(layers)
        self.output_scale = output_scale
        self.num_ws = len(layers) + 1
        width, height = layers[-1].out_size
        self.image_shape = (len(layers[-1].bias_O), height, width)
        self.largest_activation = max(
            len(layer.bias_O) * math.prod(size * layer.down for size in layer.out_size) for layer in layers
        )

    @classmethod
    def read(cls, source: Attributes, w_dim: int) -> "Synthesis":
        first = source.module("input")
        channels = first.count("channels")
        size = first.integers("size", 2)
        layers = []
        for name in source.texts("layer_names"):  # in this order, whatever the order in the file
            layer = source.module(name)
            layer.expect("in_channels", layer.count("in_channels"), channels)
            channels = layer.count("out_channels")
            layers.append(Layer.read(layer, w_dim))
            layer.expect("out_size", layers[-1].out_size, layers[-1].size_from(size))
            size = layers[-1].out_size
        return cls(FourierInput.read(first, w_dim), layers, source.number("output_scale"))

    def forward(self, ws_NLH: Tensor) -> Tensor:
        x = self.input(ws_NLH[:, 0])
        for layer, w_NH in zip(self.layers, ws_NLH[:, 1:].unbind(1), strict=True):
            x = layer(x, w_NH)
        return x * self.output_scale


def _read_filter(source: Attributes, name: str, factor: str) -> Tensor | None:
    """One row of taps, or a square of them in the rotation-equivariant networks."""
    if not source.has(name):
        source.expect(factor, source.count(factor), 1)
        return None
    rank = source.rank(name)
    taps = source.tensor(name, *[None] * min(rank, 2))
    if rank == 2 and taps.shape[0] != taps.shape[1]:
        raise Refused(f"{source.path}.{name} has the shape {tuple(taps.shape)} where a square belongs")
    return taps
