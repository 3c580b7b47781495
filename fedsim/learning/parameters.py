"""Weights as they travel: all parameters of a module in one flat vector, in the module's own order.

Only the baselines that share weights use this. Buffers, such as the running statistics of batch normalisation,
stay where they are, as in the published runs.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def flatten(tensors: nn.Module | Iterable[Tensor]) -> np.ndarray:
    """(p,) float32 of a module's parameters, or of any tensors."""
    parts = tensors.parameters() if isinstance(tensors, nn.Module) else tensors
    return torch.cat([tensor.detach().reshape(-1).float() for tensor in parts]).cpu().numpy()


def load_flat(tensors: nn.Module | Iterable[Tensor], vector_p: np.ndarray) -> None:
    """Write a vector that `flatten` made back, in place."""
    parts = list(tensors.parameters() if isinstance(tensors, nn.Module) else tensors)
    pieces = torch.from_numpy(vector_p).split([tensor.numel() for tensor in parts])
    with torch.no_grad():
        for tensor, piece in zip(parts, pieces, strict=True):
            tensor.copy_(piece.view_as(tensor))


def weighted_mean(vectors: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Σ wᵢ vᵢ / Σ wᵢ, summed in double precision in the order given, which is that of client ids."""
    total = np.zeros(vectors[0].shape, np.float64)
    for vector, weight in zip(vectors, weights, strict=True):
        total += float(weight) * vector
    return (total / float(sum(weights))).astype(np.float32)
