"""Counting correct predictions, in large batches and without gradients."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from fedsim.data import Subset

BATCH_SIZE = 256
"""Fixed, because sums in batch normalisation and matrix products may round differently for other sizes."""

NOTHING_TESTED: dict[str, float] = {"correct": 0, "tested": 0}
"""What a client reports while it has nothing to predict with."""


def outputs(
    module: nn.Module,
    data: Subset,
    device: torch.device,
    *,
    forward: Callable[[Tensor], Tensor] | None = None,
    num_samples: int | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """(outputs, labels) of each batch in evaluation mode; `forward` is the module's own unless given.

    `num_samples` limits the pass to the first samples of the subset.
    """
    module.eval()
    forward = forward or module
    remaining = len(data) if num_samples is None else num_samples
    for inputs, labels_B in data.batches(BATCH_SIZE, device=device):
        if remaining <= 0:
            return
        # Not around the yield: a generator must not leave inference mode switched on in its caller.
        with torch.inference_mode():
            result = forward(inputs[:remaining])
        yield result, labels_B[:remaining]
        remaining -= len(labels_B)


def count_correct(
    module: nn.Module,
    data: Subset,
    device: torch.device,
    *,
    forward: Callable[[Tensor], Tensor] | None = None,
    predict: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, float]:
    """`correct` and `tested`; `predict` turns outputs into class numbers, by default the largest logit's."""
    predict = predict or _largest
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for outputs_B, labels_B in outputs(module, data, device, forward=forward):
        correct += (predict(outputs_B) == labels_B).sum()
    return {"correct": int(correct), "tested": len(data)}


def _largest(logits_BC: Tensor) -> Tensor:
    return logits_BC.argmax(dim=1)
