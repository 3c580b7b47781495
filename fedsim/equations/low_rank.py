"""Weights as low-rank factors, each matrix at the lowest rank that keeps a wanted share of its energy.

A weight with two or more dimensions is a matrix (r, c): its first dimension by all others, so a convolution has a
row per output channel. Cut to its t largest singular values it is U diag(σ) V, t (r + c + 1) numbers, and keeps
the share Σ_{j≤t} σ_j² / Σ_j σ_j² of its squared norm, its energy. Where the factors would not be fewer numbers
than the matrix, the matrix itself travels; so do weights with one dimension.

Dimensions: p parameters, f numbers that travel, m matrices, r rows, c columns, t rank, s the smaller of r and c.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

RAW = 0
"""In the place of a rank: the matrix as it is. No matrix has rank 0 here, even one of zeros is cut to rank 1."""


@dataclass(frozen=True)
class LowRankCodec:
    """Turns all parameters of a model, as one vector, into factors and back. Both ends know the shapes."""

    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> LowRankCodec:
        return cls(tuple(tuple(parameter.shape) for parameter in module.parameters()))

    @property
    def num_matrices(self) -> int:
        return sum(map(_is_matrix, self.shapes))

    def encode(self, vector_p: np.ndarray, energy: float) -> tuple[np.ndarray, np.ndarray]:
        """(f,) float32: in the order of the parameters U, σ and V, or the weight itself; and (m,) int32 ranks."""
        parts: list[Tensor] = []
        ranks: list[int] = []
        for shape, piece in zip(self.shapes, _split(vector_p, [prod(s) for s in self.shapes]), strict=True):
            if not _is_matrix(shape):
                parts.append(piece)
                continue
            factors = cut(piece.view(_sides(shape)), energy)
            ranks.append(len(factors[1]) if factors else RAW)
            parts += [factor.reshape(-1) for factor in factors] if factors else [piece]
        return torch.cat(parts).numpy(), np.array(ranks, np.int32)

    def decode(self, factors_f: np.ndarray, ranks_m: np.ndarray) -> np.ndarray:
        """(p,) float32: the weights that the factors stand for; ValueError where they stand for none."""
        remaining = iter(ranks_m.tolist())
        ranks = [next(remaining) if _is_matrix(shape) else RAW for shape in self.shapes]
        self._check(ranks, len(factors_f))
        result: list[Tensor] = []
        pieces = _split(factors_f, [_num_numbers(s, t) for s, t in zip(self.shapes, ranks, strict=True)])
        for shape, rank, piece in zip(self.shapes, ranks, pieces, strict=True):
            if rank == RAW:
                result.append(piece)
                continue
            rows, columns = _sides(shape)
            left, sigma_t, right = piece.split([rows * rank, rank, rank * columns])
            result.append(((left.view(rows, rank) * sigma_t) @ right.view(rank, columns)).reshape(-1))
        return torch.cat(result).numpy()

    def _check(self, ranks: list[int], num_received: int) -> None:
        """The border knows how many ranks there are, but not what they say of the other array."""
        for shape, rank in zip(self.shapes, ranks, strict=True):
            if rank != RAW and not 0 < rank <= min(_sides(shape)):
                raise ValueError(f"field 'ranks' gives rank {rank} to a weight of shape {shape}")
        expected = sum(_num_numbers(shape, rank) for shape, rank in zip(self.shapes, ranks, strict=True))
        if num_received != expected:
            raise ValueError(f"field 'factors' has {num_received} numbers, but 'ranks' stands for {expected}")


def cut(matrix_rc: Tensor, energy: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """U (r, t), σ (t,) and V (t, c) of the lowest rank that keeps this share of the energy; None where the matrix
    is not more numbers than they are."""
    if not matrix_rc.isfinite().all():
        return None  # has no such factors; as it is, the border finds and names it
    rows, columns = matrix_rc.shape
    # Wide, so that the matrix of inner products is small. Its eigenvalues are σ², and it takes a third of the time
    # of a singular value decomposition; in double precision squaring loses nothing that single precision shows.
    wide = (matrix_rc if rows <= columns else matrix_rc.T).double()
    squares_s, vectors_ss = torch.linalg.eigh(wide @ wide.T)  # ascending
    rank = rank_for(squares_s.flip(0), energy)
    if rank * (rows + columns + 1) >= rows * columns:
        return None
    left_st = vectors_ss.flip(1)[:, :rank]
    right = left_st.T @ wide
    sigma_t = right.norm(dim=1)
    right = right / sigma_t.clamp_min(torch.finfo(torch.float64).tiny)[:, None]
    outer = (left_st, right) if rows <= columns else (right.T, left_st.T)
    return outer[0].float(), sigma_t.float(), outer[1].float()


def rank_for(squares_s: Tensor, energy: float) -> int:
    """The smallest t ≥ 1 for which the t first of σ², in falling order, hold this share of all of them."""
    kept_s = squares_s.clamp_min(0).cumsum(dim=0)  # rounding may leave an eigenvalue just below 0
    return int(torch.searchsorted(kept_s, energy * kept_s[-1])) + 1


def _is_matrix(shape: tuple[int, ...]) -> bool:
    return len(shape) > 1


def _sides(shape: tuple[int, ...]) -> tuple[int, int]:
    return shape[0], prod(shape[1:])


def _num_numbers(shape: tuple[int, ...], rank: int) -> int:
    return prod(shape) if rank == RAW else rank * (sum(_sides(shape)) + 1)


def _split(vector: np.ndarray, sizes: list[int]) -> tuple[Tensor, ...]:
    return torch.from_numpy(vector).split(sizes)
