"""What the three families of networks are built from; all in single precision.

Dimensions: N samples, F features, O and I channels out and in, k kernel size, T filter taps.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsim.generators.stylegan.attributes import Attributes
from fedsim.generators.stylegan.stand_ins import Refused

SQRT2 = 2**0.5
# Activation and the gain that follows it.
ACTIVATIONS = {
    "linear": (lambda x: x, 1.0),
    "lrelu": (lambda x: F.leaky_relu(x, 0.2), SQRT2),
    "relu": (torch.relu, SQRT2),
    "swish": (F.silu, SQRT2),
    "tanh": (torch.tanh, 1.0),
    "sigmoid": (torch.sigmoid, 1.0),
    "elu": (F.elu, 1.0),
    "selu": (F.selu, 1.0),
    "softplus": (F.softplus, 1.0),
}


def normalise(features_NF: Tensor) -> Tensor:
    """To a mean square of one over the features of each sample."""
    return features_NF * (features_NF.square().mean(1, keepdim=True) + 1e-8).rsqrt()


class Dense(nn.Module):
    """The official FullyConnectedLayer. Its gains are constant, so they are put into the weights here."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None = None, activation: str = "linear"):
        super().__init__()
        self.activate, self.gain = ACTIVATIONS[activation]
        self.register_buffer("weight_OI", weight_OI)
        self.register_buffer("bias_O", bias_O)

    @classmethod
    def read(cls, source: Attributes, num_in: int, num_out: int) -> "Dense":
        activation = source.text("activation")
        if activation not in ACTIVATIONS:
            raise Refused(f"{source.path}.activation is {activation!r:.40}, which is not known")
        weight_OI = source.tensor("weight", num_out, num_in) * source.number("weight_gain")
        bias_O = source.optional_tensor("bias", num_out)
        if bias_O is not None:
            bias_O = bias_O * source.number("bias_gain")
        return cls(weight_OI, bias_O, activation)

    def forward(self, x_NI: Tensor) -> Tensor:
        return self.activate(F.linear(x_NI, self.weight_OI, self.bias_O)) * self.gain


class Mapping(nn.Module):
    """Noise and, for a conditional network, a label -> w: the official MappingNetwork of all families.

    `label_table_LF` has the normalised features of every label: StyleGAN2 and 3 compute them as one row of a
    dense layer, StyleGAN-XL as the projection of a stored embedding.
    """

    def __init__(self, layers: list[Dense], z_dim: int, label_table_LF: Tensor | None, w_avg: Tensor | None):
        super().__init__()
        self.z_dim = z_dim
        self.num_labels = 0 if label_table_LF is None else len(label_table_LF)
        self.layers = nn.ModuleList(layers)
        self.register_buffer("label_table_LF", label_table_LF)
        self.register_buffer("w_avg", w_avg)  # (w_dim,), or (L, w_dim) for a conditional StyleGAN-XL

    @classmethod
    def read(cls, source: Attributes) -> "Mapping":
        z_dim, w_dim = source.count("z_dim"), source.count("w_dim")
        num_labels = source.count("c_dim", low=0, high=1_000_000)
        table_LF = _label_table(source, z_dim, w_dim, num_labels) if num_labels else None
        width = z_dim + (table_LF.shape[1] if table_LF is not None else 0)
        layers = []
        for index in range(source.count("num_layers", high=64)):
            layer = source.module(f"fc{index}")
            # Hidden layers may have a width of their own; the last gives w.
            last = index == source.count("num_layers") - 1
            num_out = w_dim if last else layer.tensor("weight", None, width).shape[0]
            layers.append(Dense.read(layer, width, num_out))
            width = num_out
        per_label = source.has("w_avg") and source.rank("w_avg") == 2
        w_avg = source.optional_tensor("w_avg", *([num_labels] if per_label else []), w_dim)
        return cls(layers, z_dim, table_LF, w_avg)

    def forward(self, z_NF: Tensor, labels_N: Tensor | None) -> Tensor:
        features = normalise(z_NF)
        if self.label_table_LF is not None:
            features = torch.cat([features, self.label_table_LF[labels_N]], 1)
        for layer in self.layers:
            features = layer(features)
        return features

    def truncate(self, w_NH: Tensor, labels_N: Tensor | None, psi: float) -> Tensor:
        """Pulled towards the mean w, of the label where the network keeps one for each."""
        mean = self.w_avg[labels_N] if self.w_avg.ndim == 2 else self.w_avg
        return mean + psi * (w_NH - mean)


def _label_table(source: Attributes, z_dim: int, w_dim: int, num_labels: int) -> Tensor:
    embed = source.module("embed")
    if embed.class_name == "Embedding":  # StyleGAN-XL
        features_LF = embed.tensor("weight", num_labels, None)
        return normalise(Dense.read(source.module("embed_proj"), features_LF.shape[1], z_dim)(features_LF))
    return normalise(Dense.read(embed, num_labels, w_dim)(torch.eye(num_labels)))


def modulated_convolution(
    x: Tensor, weight_OIkk: Tensor, scale_NI: Tensor, gain_NO: Tensor | None, **how: int
) -> Tensor:
    """A convolution whose weights are scaled for each sample, over channels in and over channels out.

    Scaling the channels of what goes in and comes out is the same, needs one convolution for the whole batch
    and no copy of the weights for each sample.
    """
    x = F.conv2d(x * scale_NI[:, :, None, None], weight_OIkk, **how)
    return x if gain_NO is None else x.mul_(gain_NO[:, :, None, None])


def demodulation(scale_NI: Tensor, power_OI: Tensor) -> Tensor:
    """1/√(Σ (weight·scale)²) over a sample's scaled weights, (N, O); `power_OI` is Σ_kk weight²."""
    return (scale_NI.square() @ power_OI.T + 1e-8).rsqrt()


def square_filter(taps: Tensor, gain: float = 1.0) -> Tensor:
    """A filter of either rank as (T, T), with its gain.

    One pass with a 12×12 depthwise kernel is faster here than two with 12 taps each.
    """
    return (torch.outer(taps, taps) if taps.ndim == 1 else taps) * gain


def resample_up(x: Tensor, filter_TT: Tensor, up: int, padding: list[int]) -> Tensor:
    """Zeros between the samples, padding (left, right, top, bottom; negative crops), convolution.

    A transposed convolution of stride `up` does it without the zeros. Its result begins T−1 samples before the
    valid part of the padded signal, and ends as much after the zeros that follow the last sample.
    """
    taps = filter_TT.shape[0]
    kernel = filter_TT.expand(x.shape[1], 1, taps, taps)
    x = F.conv_transpose2d(x, kernel, stride=up, groups=x.shape[1])
    left, right, top, bottom = (side - (taps - 1) for side in padding)
    return F.pad(x, [left, right + up - 1, top, bottom + up - 1])


def resample_down(x: Tensor, filter_TT: Tensor, down: int) -> Tensor:
    """Convolution, of which every `down`-th sample is kept."""
    taps = filter_TT.shape[0]
    kernel = filter_TT.flip(0, 1).expand(x.shape[1], 1, taps, taps)  # conv2d correlates
    return F.conv2d(x, kernel, stride=down, groups=x.shape[1])
