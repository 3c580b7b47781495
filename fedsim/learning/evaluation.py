"""Counting correct predictions, and other measures of them, in large batches and without gradients."""

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fedsim.data import Subset

BATCH_SIZE = 256
"""Fixed, because sums in batch normalisation and matrix products may round differently for other sizes."""

Predict = Callable[[Tensor], Tensor]
"""From outputs (B, ...) to class numbers (B,)."""

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
    further: bool = False,
) -> dict[str, float]:
    """`correct` and `tested`; `predict` turns outputs into class numbers, by default the largest logit's."""
    return count_read_outs(module, data, device, {"": predict or largest}, forward=forward, further=further)


def count_read_outs(
    module: nn.Module,
    data: Subset,
    device: torch.device,
    read_outs: Mapping[str, Predict | None],
    *,
    forward: Callable[[Tensor], Tensor] | None = None,
    watch: Callable[[Tensor], None] = lambda outputs_B: None,
    further: bool = False,
) -> dict[str, float]:
    """`correct` and `tested` of several ways to predict from the same outputs, after the prefix of each. One that
    has nothing to predict with yet is None, and has tested nothing. `watch` sees all outputs. `further` adds
    `macro_f1` of the way without a prefix, and `micro_auc` where it is the largest of the outputs."""
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    correct = {prefix: torch.zeros((), dtype=torch.int64, device=device) for prefix in read_outs}
    for outputs_B, labels_B in outputs(module, data, device, forward=forward):
        watch(outputs_B)
        for prefix, predict in read_outs.items():
            if predict is not None:
                with torch.inference_mode():
                    predicted_B = predict(outputs_B)
                    correct[prefix] += (predicted_B == labels_B).sum()
                if further and not prefix:
                    seen.append((predicted_B, labels_B, outputs_B))
    counts: dict[str, float] = {}
    for prefix, predict in read_outs.items():
        counts[f"{prefix}correct"] = int(correct[prefix])
        counts[f"{prefix}tested"] = len(data) if predict is not None else 0
    if seen:
        predicted_N, labels_N, outputs_N = (torch.cat(parts).cpu() for parts in zip(*seen, strict=True))
        counts["macro_f1"] = macro_f1(predicted_N, labels_N)
        if read_outs[""] is largest:
            counts["micro_auc"] = micro_auc(outputs_N, labels_N)
    return counts


def macro_f1(predicted_N: Tensor, labels_N: Tensor) -> float:
    """The mean of 2 · hits / (predicted + true) over the classes that are predicted or true at all."""
    num = int(max(predicted_N.max(), labels_N.max())) + 1
    hits_C = labels_N[predicted_N == labels_N].bincount(minlength=num)
    both_C = predicted_N.bincount(minlength=num) + labels_N.bincount(minlength=num)
    return float((2 * hits_C[both_C > 0] / both_C[both_C > 0]).double().mean())


def micro_auc(scores_NC: Tensor, labels_N: Tensor) -> float:
    """The chance that a true (sample, class) pair has a larger score than a false one, ties counted half: the area
    under the curve of all pairs together, by their ranks."""
    if not scores_NC.isfinite().all():
        return math.nan
    is_true = one_hot(labels_N, scores_NC.shape[1]).flatten().bool()
    _, places, counts = scores_NC.flatten().unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[places].double()  # from 1 on; equals share their mean
    num_true, num_false = int(is_true.sum()), int((~is_true).sum())
    return float((ranks[is_true].sum() - num_true * (num_true + 1) / 2) / (num_true * num_false))


def largest(logits_BC: Tensor) -> Tensor:
    return logits_BC.argmax(dim=1)
