"""The fixed classifier of FedKTL: unit vectors with all angles alike and as wide as they go, and its loss.

A simplex ETF (equiangular tight frame) of C classes is V = √(C/(C−1)) · U (I − 11ᵀ/C), where U has orthonormal
columns: C unit vectors whose pairwise cosines are all −1/(C−1).

Dimensions: B batch, C classes, P the space that the frame lies in (K in FedKTL's paper).
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

LARGEST_COSINE = 1 - 1e-7
"""At ±1 the angle has no derivative; single precision has just one number between this and 1."""


def simplex_etf(num_classes: int, dim: int, generator: torch.Generator) -> Tensor:
    """The vectors as rows (C, P), turned at random; for any P ≥ C − 1.

    They all lie in the C − 1 dimensions orthogonal to 11ᵀ. So a basis of these stands in for I − 11ᵀ/C, which is
    the same frame, and then P = C − 1 is enough where U would need P = C.
    """
    num = num_classes - 1
    # Column j of the basis: j + 1 equal entries, the negative of their sum, zeros (a Helmert matrix).
    columns = torch.arange(num, dtype=torch.float64)
    basis_Cn = torch.ones(num_classes, num, dtype=torch.float64).triu()
    basis_Cn[1:] -= torch.diag(columns + 1)
    basis_Cn /= ((columns + 1) * (columns + 2)).sqrt()
    # In double precision, where the angles are exact to the last bit that single precision shows.
    drawn_Pn = torch.randn(dim, num, generator=generator, dtype=torch.float64)
    frame_Pn = torch.linalg.qr(drawn_Pn).Q
    return (math.sqrt(num_classes / num) * basis_Cn @ frame_Pn.T).float()


def arcface_loss(cosines_BC: Tensor, labels_B: Tensor, *, scale: float, margin: float) -> Tensor:
    """FedKTL Eq. 1: cross-entropy of s · cosines, after the angle to the true class was widened by m.

    Without a margin and with scale 1 it is Eq. 6. As published, an angle that the margin takes beyond π comes
    back on the other side.
    """
    labels_B1 = labels_B[:, None]
    own_B1 = cosines_BC.gather(1, labels_B1).clamp(-LARGEST_COSINE, LARGEST_COSINE)
    widened_B1 = (own_B1.acos() + margin).cos()
    return cross_entropy(scale * cosines_BC.scatter(1, labels_B1, widened_B1), labels_B)
