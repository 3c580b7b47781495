"""Vectors per class, and the tensor work that prototype methods do with them. Pure: no files, no rounds.

Dimensions: B batch, C classes, K features, n classes present.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class ClassVectors:
    """One vector per class, some of them absent. Rows of absent classes are zero."""

    vectors_CK: Tensor
    present_C: Tensor

    @classmethod
    def empty(cls, num_classes: int, dim: int, device: torch.device | None = None) -> ClassVectors:
        return cls(
            torch.zeros(num_classes, dim, device=device), torch.zeros(num_classes, dtype=torch.bool, device=device)
        )

    @classmethod
    def of_all(cls, vectors_CK: Tensor) -> ClassVectors:
        """No class is absent."""
        return cls(vectors_CK, torch.ones(len(vectors_CK), dtype=torch.bool, device=vectors_CK.device))

    @classmethod
    def from_rows(
        cls, rows_nK: np.ndarray, ids_n: np.ndarray, num_classes: int, device: torch.device | None = None
    ) -> ClassVectors:
        result = cls.empty(num_classes, rows_nK.shape[1], device)
        ids = torch.from_numpy(ids_n.astype(np.int64)).to(result.present_C.device)
        result.vectors_CK[ids] = torch.from_numpy(rows_nK).to(result.vectors_CK)
        result.present_C[ids] = True
        return result

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The present rows (n, K) float32 and their class numbers (n,) int32."""
        ids = self.present_C.nonzero().squeeze(1)
        return self.vectors_CK[ids].cpu().numpy(), ids.to(torch.int32).cpu().numpy()

    @property
    def any(self) -> bool:
        return bool(self.present_C.any())


class ClassMeans:
    """Adds up vectors class by class, over any number of batches. Each weighs 1 unless weights are given."""

    def __init__(self, num_classes: int, dim: int, device: torch.device | None = None):
        self.sums_CK = torch.zeros(num_classes, dim, device=device)
        self.weights_C = torch.zeros(num_classes, device=device)

    def add(self, vectors_BK: Tensor, labels_B: Tensor, weights_B: Tensor | None = None) -> None:
        if weights_B is None:
            weights_B = torch.ones(len(labels_B), device=labels_B.device)
        else:
            vectors_BK = vectors_BK * weights_B[:, None]
        self.sums_CK.index_add_(0, labels_B, vectors_BK.detach())
        self.weights_C.index_add_(0, labels_B, weights_B)

    def means(self) -> ClassVectors:
        present_C = self.weights_C > 0
        divisors_C = torch.where(present_C, self.weights_C, 1.0)
        return ClassVectors(self.sums_CK / divisors_C[:, None], present_C)


def prototype_loss(
    features_BK: Tensor, labels_B: Tensor, targets: ClassVectors, distance: Literal["mse", "l2"]
) -> Tensor:
    """Mean over the batch of φ(feature, target of its class); a sample whose class has no target counts as 0.

    The papers write it per class (FedTGP Eq. 11, ProtoNorm Eq. 15); their runs take it per sample.
    """
    squares_B = (features_BK - targets.vectors_CK[labels_B]).square().sum(dim=1)
    present_B = targets.present_C[labels_B]
    if distance == "mse":
        return (squares_B * present_B).mean() / features_BK.shape[1]
    # The clamp passes no gradient below it, so a distance of 0 gives 0 and not 0/0.
    return (squares_B.clamp_min(1e-12).sqrt() * present_B).mean()


def margins(vectors_nK: Tensor) -> Tensor:
    """Distance of each row to the nearest other row, (n,); NaN for a single row, which has no other."""
    if len(vectors_nK) < 2:
        return torch.full((len(vectors_nK),), torch.nan, device=vectors_nK.device)
    # Differences and not a Gram matrix: prototypes of an untrained model nearly coincide.
    distances_nn = torch.cdist(vectors_nK, vectors_nK, compute_mode="donot_use_mm_for_euclid_dist")
    return distances_nn.fill_diagonal_(torch.inf).min(dim=1).values


def class_margins(prototypes: ClassVectors) -> Tensor:
    """`margins` among the present classes, (C,); NaN for absent ones."""
    result_C = torch.full(prototypes.present_C.shape, torch.nan, device=prototypes.vectors_CK.device)
    result_C[prototypes.present_C] = margins(prototypes.vectors_CK[prototypes.present_C])
    return result_C


def nearest_prototype(
    prototypes: ClassVectors, allowed_C: Tensor | None = None
) -> Callable[[Tensor], Tensor] | None:
    """A function from features (B, K) to the class of the nearest prototype; None if there is no candidate.

    ‖f−p‖² ranks as ‖p−m‖² − 2(f−m)·(p−m) for any m, so one matrix product decides. m is the prototypes' mean:
    what they have in common cancels before the product and not by rounding after it.
    """
    candidates_C = prototypes.present_C if allowed_C is None else prototypes.present_C & allowed_C
    ids_n = candidates_C.nonzero().squeeze(1)
    if not len(ids_n):
        return None
    rows_nK = prototypes.vectors_CK[ids_n].double()
    mean_K = rows_nK.mean(dim=0)
    centred_nK = rows_nK - mean_K
    # Halved and negated, so that the largest score is the nearest: (f−m)·(p−m) − ‖p−m‖²/2.
    bias_n = -(centred_nK.square().sum(dim=1) / 2 + centred_nK @ mean_K)
    weight_Kn, bias_n = centred_nK.T.float().contiguous(), bias_n.float()

    def predict(features_BK: Tensor) -> Tensor:
        return ids_n[torch.addmm(bias_n, features_BK, weight_Kn).argmax(dim=1)]

    return predict
