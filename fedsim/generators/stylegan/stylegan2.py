"""The synthesis network of StyleGAN2, in the `skip` architecture of its generators.

Per-pixel noise is the constant that is stored with the network, as for the expected images of the official
program (`noise_mode='const'`), so that w alone decides the image.

Dimensions: N images, H latent (w), O and I channels out and in, k kernel size.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from fedsim.generators.stylegan.attributes import Attributes
from fedsim.generators.stylegan.blocks import (
    Dense,
    demodulation,
    modulated_convolution,
    resample_down,
    resample_up,
    square_filter,
)
from fedsim.generators.stylegan.stand_ins import Refused


class Layer(nn.Module):
    """Modulated convolution, doubling the size first where `up` is 2; noise, bias, leaky ReLU."""

    def __init__(
        self,
        *,
        affine: Dense,
        weight_OIkk: Tensor,
        bias_O: Tensor,
        noise_HW: Tensor | None,
        filter_TT: Tensor,
        up: int,
        activation_gain: float,
        clamp: float | None,
    ):
        super().__init__()
        self.affine, self.up, self.activation_gain, self.clamp = affine, up, activation_gain, clamp
        self.register_buffer("weight_OIkk", weight_OIkk)
        self.register_buffer("power_OI", weight_OIkk.square().sum((2, 3)))
        self.register_buffer("bias_O", bias_O)
        self.register_buffer("noise_HW", noise_HW)
        self.register_buffer("filter_TT", square_filter(filter_TT, up**2))

    @classmethod
    def read(cls, source: Attributes, w_dim: int, channels_in: int, resolution: int, *, up: int) -> "Layer":
        source.expect("up", source.count("up"), up)
        if source.text("activation") != "lrelu":
            raise Refused(f"{source.path}.activation is {source.text('activation')!r:.40} where 'lrelu' belongs")
        noise_HW = None
        if source.flag("use_noise"):
            noise_HW = source.tensor("noise_const", resolution, resolution) * source.tensor("noise_strength")
        weight_OIkk = source.tensor("weight", None, channels_in, 3, 3)
        return cls(
            affine=Dense.read(source.module("affine"), w_dim, channels_in),
            weight_OIkk=weight_OIkk,
            bias_O=source.tensor("bias", len(weight_OIkk)),
            noise_HW=noise_HW,
            filter_TT=source.tensor("resample_filter", 4, 4),
            up=up,
            activation_gain=source.number("act_gain"),
            clamp=source.optional_number("conv_clamp"),
        )

    def forward(self, x: Tensor, w_NH: Tensor) -> Tensor:
        scale_NI = self.affine(w_NH)
        gain_NO = demodulation(scale_NI, self.power_OI)
        if self.up == 1:
            x = modulated_convolution(x, self.weight_OIkk, scale_NI, gain_NO, padding=1)
        else:
            # Between the samples of a size of 2H+1 the filter of four taps gives 2H.
            x = F.conv_transpose2d(x * scale_NI[:, :, None, None], self.weight_OIkk.transpose(0, 1), stride=2)
            x = resample_down(F.pad(x, (1, 1, 1, 1)), self.filter_TT, 1).mul_(gain_NO[:, :, None, None])
        if self.noise_HW is not None:
            x = x.add_(self.noise_HW)
        x = F.leaky_relu_(x.add_(self.bias_O[:, None, None]), 0.2).mul_(self.activation_gain)
        return x if self.clamp is None else x.clamp_(-self.clamp, self.clamp)


class ToRGB(nn.Module):
    """Modulated 1×1 convolution to colours, without demodulation."""

    def __init__(self, *, affine: Dense, weight_OIkk: Tensor, bias_O: Tensor, clamp: float | None):
        super().__init__()
        self.affine, self.clamp = affine, clamp
        self.register_buffer("weight_OIkk", weight_OIkk)
        self.register_buffer("bias_O", bias_O)

    @classmethod
    def read(cls, source: Attributes, w_dim: int, channels_in: int, channels_out: int) -> "ToRGB":
        return cls(
            affine=Dense.read(source.module("affine"), w_dim, channels_in),
            weight_OIkk=source.tensor("weight", channels_out, channels_in, 1, 1) * source.number("weight_gain"),
            bias_O=source.tensor("bias", channels_out),
            clamp=source.optional_number("conv_clamp"),
        )

    def forward(self, x: Tensor, w_NH: Tensor) -> Tensor:
        x = modulated_convolution(x, self.weight_OIkk, self.affine(w_NH), None).add_(self.bias_O[:, None, None])
        return x if self.clamp is None else x.clamp_(-self.clamp, self.clamp)


class Block(nn.Module):
    """One resolution: its layers, and its addition to the image that the blocks before it made."""

    def __init__(self, convs: list[Layer], torgb: ToRGB, filter_TT: Tensor):
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.torgb = torgb
        self.register_buffer("filter_TT", square_filter(filter_TT, 4))

    @classmethod
    def read(
        cls, source: Attributes, w_dim: int, channels_in: int, resolution: int, image_channels: int
    ) -> "Block":
        if source.text("architecture") != "skip":
            raise Refused(
                f"{source.path} has the architecture {source.text('architecture')!r:.40}, only 'skip' is known"
            )
        convs = []
        for name, up in (("conv0", 2), ("conv1", 1)):
            if source.has(name):
                convs.append(Layer.read(source.module(name), w_dim, channels_in, resolution, up=up))
                channels_in = len(convs[-1].bias_O)
        source.expect("num_conv", source.count("num_conv"), len(convs))
        source.expect("num_torgb", source.count("num_torgb"), 1)
        torgb = ToRGB.read(source.module("torgb"), w_dim, channels_in, image_channels)
        return cls(convs, torgb, source.tensor("resample_filter", 4, 4))

    def forward(self, x: Tensor, image: Tensor | None, ws: list[Tensor]) -> tuple[Tensor, Tensor]:
        for conv, w_NH in zip(self.convs, ws, strict=False):
            x = conv(x, w_NH)
        colours = self.torgb(x, ws[-1])
        if image is None:
            return x, colours
        return x, resample_up(image, self.filter_TT, 2, [2, 1, 2, 1]) + colours


class Synthesis(nn.Module):
    """w for each layer -> image, roughly in [−1, 1], not clamped."""

    def __init__(self, constant_Ihw: Tensor, blocks: list[Block], image_shape: tuple[int, int, int]):
        super().__init__()
        self.register_buffer("constant_Ihw", constant_Ihw)
        self.blocks = nn.ModuleList(blocks)
        self.image_shape = image_shape
        self.num_ws = sum(len(block.convs) for block in blocks) + 1
        self.largest_activation = max(
            conv.weight_OIkk.shape[0] * 4**level * 16 for level, block in enumerate(blocks) for conv in block.convs
        )

    @classmethod
    def read(cls, source: Attributes, w_dim: int) -> "Synthesis":
        resolutions = source.integers("block_resolutions")
        expected = [4 << step for step in range(len(resolutions))]
        if resolutions != expected:
            raise Refused(f"{source.path}.block_resolutions is {resolutions} where {expected} belongs")
        image_channels = source.count("img_channels")
        constant_Ihw = source.module("b4").tensor("const", None, 4, 4)
        channels = len(constant_Ihw)
        blocks = []
        for resolution in resolutions:
            part = source.module(f"b{resolution}")
            blocks.append(Block.read(part, w_dim, channels, resolution, image_channels))
            channels = len(blocks[-1].convs[-1].bias_O)
        return cls(constant_Ihw, blocks, (image_channels, resolutions[-1], resolutions[-1]))

    def forward(self, ws_NLH: Tensor) -> Tensor:
        x = self.constant_Ihw.expand(len(ws_NLH), -1, -1, -1)
        image, first = None, 0
        for block in self.blocks:
            # A block's colours share their w with the first layer of the next block.
            last = first + len(block.convs)
            x, image = block(x, image, list(ws_NLH[:, first : last + 1].unbind(1)))
            first = last
        return image
