"""The tensor work of FedKTL: fixed classifier and its loss, generated images, noise. Pure: no files, no rounds.

A simplex ETF (equiangular tight frame) of C classes is V = √(C/(C−1)) · U (I − 11ᵀ/C), where U has orthonormal
columns: C unit vectors whose pairwise cosines are all −1/(C−1), the widest angles that C vectors can have alike.

Dimensions: B batch, C classes, P the space that the frame lies in (K in FedKTL's paper), N images.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate

LARGEST_COSINE = 1 - 1e-7
"""At ±1 the angle has no derivative; single precision has just one number between this and 1."""

LUMINANCE = (0.299, 0.587, 0.114)
"""Red, green and blue in the grey of ITU-R 601."""


def simplex_etf(num_classes: int, dim: int, generator: torch.Generator) -> Tensor:
    """The vectors as rows (C, P), turned at random; for any P ≥ C − 1.

    They all lie in the C − 1 dimensions that are orthogonal to 1. A basis of these in the place of I − 11ᵀ/C gives
    the same frames, and P = C − 1 is then enough where U would need P = C.
    """
    num = num_classes - 1
    # Column j of the basis: j + 1 equal entries, the negative of their sum, zeros (a Helmert matrix).
    counts_n = torch.arange(1, num_classes, dtype=torch.float64)
    basis_Cn = torch.ones(num_classes, num, dtype=torch.float64).triu()
    basis_Cn[1:] -= torch.diag(counts_n)
    basis_Cn /= (counts_n * (counts_n + 1)).sqrt()
    # In double precision, so that no angle is off by more than single precision shows.
    frame_Pn = torch.linalg.qr(torch.randn(dim, num, generator=generator, dtype=torch.float64)).Q
    return (math.sqrt(num_classes / num) * basis_Cn @ frame_Pn.T).float()


def arcface_loss(cosines_BC: Tensor, labels_B: Tensor, *, scale: float, margin: float) -> Tensor:
    """FedKTL Eq. 1: cross-entropy of s · cosines, after the angle to the true class was widened by m.

    With s = 1 and m = 0 it is Eq. 6. As published, an angle that the margin takes beyond π comes back on the other
    side.
    """
    labels_B1 = labels_B[:, None]
    own_B1 = cosines_BC.gather(1, labels_B1).clamp(-LARGEST_COSINE, LARGEST_COSINE)
    widened_B1 = (own_B1.acos() + margin).cos()
    return cross_entropy(scale * cosines_BC.scatter(1, labels_B1, widened_B1), labels_B)


def fit_images(images: Tensor, input_shape: tuple[int, ...]) -> Tensor:
    """Images (N, ch, h, w) made like the clients' own: shrunk to cover their size, cut to it around the centre,
    and grey or in three channels as they are."""
    channels, height, width = input_shape
    if images.shape[1] == 3 and channels == 1:
        luminance = torch.tensor(LUMINANCE, dtype=images.dtype).to(images.device)
        images = (images * luminance[:, None, None]).sum(dim=1, keepdim=True)
    elif images.shape[1] == 1 and channels == 3:
        images = images.expand(-1, 3, -1, -1)
    factor = max(height / images.shape[2], width / images.shape[3])
    size = round(images.shape[2] * factor), round(images.shape[3] * factor)
    if size != tuple(images.shape[2:]):
        images = interpolate(images, size, mode="bilinear", antialias=True)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    return images[:, :, top : top + height, left : left + width].contiguous()


def to_bytes(images: np.ndarray) -> np.ndarray:
    """From [−1, 1], as models read images, to 0 … 255; what lies outside is cut off."""
    return np.rint(np.clip((images + 1) * 127.5, 0, 255)).astype(np.uint8)


def with_noise(values: Tensor, scale: float, coefficient: float, generator: torch.Generator) -> Tensor:
    """x (1 − p) + N(0, s²), as FedPCL perturbs what travels. `generator` is on the CPU."""
    noise = torch.randn(values.shape, generator=generator).to(values.device)
    return values * (1 - coefficient) + scale * noise
