"""Collecting prototypes and predicting by the nearest one: batched, against a loop over samples.

    python -m benchmarks.prototypes [--samples 2000] [--repeats 5]

Features are given, so that only the prototype work is timed. Both sides must agree before anything is timed.
"""

import argparse

import torch
from torch import Tensor

from benchmarks._common import best_seconds, show
from fedsim.equations.class_vectors import ClassMeans, ClassVectors, nearest_prototype
from fedsim.learning.evaluation import BATCH_SIZE

FEATURE_DIM = 512
CLASSES = (10, 100, 200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for num_classes in CLASSES:
        draw = torch.Generator().manual_seed(0)
        labels_N = torch.randint(num_classes, (arguments.samples,), generator=draw)
        features_NK = torch.randn(arguments.samples, FEATURE_DIM, generator=draw)
        features_NK += torch.randn(num_classes, FEATURE_DIM, generator=draw)[labels_N]
        prototypes = collect(features_NK, labels_N, num_classes)
        torch.testing.assert_close(prototypes.vectors_CK, _loop_collect(features_NK, labels_N, num_classes))
        assert torch.equal(predict(features_NK, prototypes), _loop_predict(features_NK, prototypes))
        for work, slow, fast in (
            (
                "collect",
                lambda f=features_NK, y=labels_N, c=num_classes: _loop_collect(f, y, c),
                lambda f=features_NK, y=labels_N, c=num_classes: collect(f, y, c),
            ),
            (
                "predict",
                lambda f=features_NK, p=prototypes: _loop_predict(f, p),
                lambda f=features_NK, p=prototypes: predict(f, p),
            ),
        ):
            times = best_seconds([slow, fast], arguments.repeats)
            slow_us, fast_us = (1e6 * seconds / arguments.samples for seconds in times)
            rows.append((str(num_classes), work, f"{slow_us:.2f}", f"{fast_us:.3f}", f"{slow_us / fast_us:.0f}×"))
    headings = ("classes", "work", "loop over samples", "fedsim", "ratio")
    show(f"K = {FEATURE_DIM}: µs per sample, one thread", headings, rows)


def collect(features_NK: Tensor, labels_N: Tensor, num_classes: int) -> ClassVectors:
    means = ClassMeans(num_classes, FEATURE_DIM)
    for features_BK, labels_B in zip(features_NK.split(BATCH_SIZE), labels_N.split(BATCH_SIZE), strict=True):
        means.add(features_BK, labels_B)
    return means.means()


def predict(features_NK: Tensor, prototypes: ClassVectors) -> Tensor:
    nearest = nearest_prototype(prototypes)
    return torch.cat([nearest(features_BK) for features_BK in features_NK.split(BATCH_SIZE)])


def _loop_collect(features_NK: Tensor, labels_N: Tensor, num_classes: int) -> Tensor:
    """A dict of lists, one entry per sample, as research code has it."""
    by_class: dict[int, list[Tensor]] = {}
    for feature_K, label in zip(features_NK, labels_N, strict=True):
        by_class.setdefault(int(label), []).append(feature_K)
    result_CK = torch.zeros(num_classes, FEATURE_DIM)
    for label, rows in by_class.items():
        result_CK[label] = torch.stack(rows).mean(dim=0)
    return result_CK


def _loop_predict(features_NK: Tensor, prototypes: ClassVectors) -> Tensor:
    """All distances of one sample after the other; only classes that are present."""
    ids_n = prototypes.present_C.nonzero().squeeze(1)
    rows_nK = prototypes.vectors_CK[ids_n]
    return torch.stack([ids_n[(rows_nK - feature_K).norm(dim=1).argmin()] for feature_K in features_NK])


if __name__ == "__main__":
    main()
