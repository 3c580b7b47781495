"""What clients send, on both sides: a row for each class held, or a vector of weights.

A client takes the means of some output over its classes (`class_means`) and packs them, the class numbers beside
the rows (`pack`). A server stacks what came from all clients (`stack_uploads`) and averages it, class by class
(`mean_per_class`) or as whole vectors (`mean_of`).

Dimensions: C classes, K numbers of a row, n classes held, N rows of all clients together.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedsim.contract import Arrays, Field, Fields, Payload, class_ids
from fedsim.equations.class_vectors import ClassMeans, ClassVectors
from fedsim.errors import ContractError
from fedsim.learning.evaluation import outputs
from fedsim.learning.parameters import weighted_mean
from fedsim.learning.training import samples_per_epoch
from fedsim.method import ClientContext, Setting, Upload, filled

PROTOTYPES: Fields = {"prototypes": Field(Payload.PROTOTYPES, "n K"), "class_ids": class_ids("n")}
"""A prototype for each class held, or for each that anyone holds."""
COUNTS = Field(Payload.COUNTS, "n", "int32")
"""How many samples of each of these classes: a privacy cost."""

_MANY_STEPS = 50_000
"""Of a server in a round: about a minute of one core, with ten prototypes of 512 features."""

Aggregation = Literal["weighted", "mean"]
"""Whether clients count by their numbers of training samples, or alike."""


def class_means(
    context: ClientContext, forward: Callable[[Tensor], Tensor] | None = None, dim: int | None = None
) -> ClassMeans:
    """Of what `forward` makes of the samples that an epoch of training covers, in evaluation mode: (C, `dim`).
    Without it features, whose means are prototypes."""
    task, model, data = context.task, context.model, context.data.train
    means = ClassMeans(task.num_classes, dim or task.feature_dim, context.device)
    num_samples = samples_per_epoch(len(data), context.experiment.train)
    forward = forward or model.features
    for vectors_BK, labels_B in outputs(model, data, context.device, forward=forward, num_samples=num_samples):
        means.add(vectors_BK, labels_B)
    return means


def many_steps(setting: Setting) -> Iterator[str]:
    """For a method's `notes`: a sentence where the server would take very many steps over all uploaded rows."""
    config, experiment = setting.config, setting.experiment
    held_MC = setting.federation.class_counts()[0] > 0
    num_rows = math.ceil(held_MC.sum() * experiment.run.participation)
    batch_size = config.server_batch_size or experiment.train.batch_size
    num_steps = config.server_epochs * math.ceil(num_rows / batch_size)
    if num_steps >= _MANY_STEPS:
        follows = "" if config.server_batch_size else ", which is the clients' batch size, as published"
        yield (
            f"the server will take about {num_steps:,} steps a round: {config.server_epochs} epochs over "
            f"{num_rows:,} uploaded rows in mini-batches of {batch_size}{follows}; a larger "
            "method.server_batch_size takes fewer, with other results."
        )


def pack(vectors: ClassVectors, counts_C: Tensor | None = None, name: str = "prototypes") -> Arrays:
    """The rows of the classes that there are, their class numbers, and their counts if any are given."""
    rows_nK, ids_n = vectors.rows()
    arrays = {name: rows_nK, "class_ids": ids_n}
    if counts_C is not None:
        arrays["counts"] = counts_C.cpu().numpy()[ids_n].astype(np.int32)
    return arrays


@dataclass(frozen=True)
class Uploaded:
    """The rows of all clients in a round, stacked in the order of client ids."""

    vectors_NK: Tensor
    labels_N: Tensor
    clients_N: np.ndarray
    counts_N: Tensor | None


def stack_uploads(uploads: list[Upload], name: str, dim: int, num_classes: int, device: torch.device) -> Uploaded:
    """Stack the arrays called `name`. Uploads without arrays, and those with no rows, add nothing."""
    uploads = filled(uploads)
    for upload in uploads:
        ids = upload.arrays["class_ids"]
        if len(ids) and not 0 <= ids.min() <= ids.max() < num_classes:
            raise ContractError(
                f"client {upload.client}: field 'class_ids' must lie in 0..{num_classes - 1}, "
                f"not {ids.min()}..{ids.max()}"
            )
        if len(np.unique(ids)) < len(ids):
            raise ContractError(
                f"client {upload.client}: field 'class_ids' names a class twice ({len(ids)} rows for at most "
                f"{num_classes} classes)"
            )

    def stacked(array_name: str, empty: np.ndarray) -> Tensor:
        rows = np.concatenate([empty, *(upload.arrays[array_name] for upload in uploads)], dtype=empty.dtype)
        return torch.from_numpy(rows).to(device)

    clients = [np.full(len(upload.arrays["class_ids"]), upload.client, np.int32) for upload in uploads]
    has_counts = any("counts" in upload.arrays for upload in uploads)
    return Uploaded(
        vectors_NK=stacked(name, np.zeros((0, dim), np.float32)),
        labels_N=stacked("class_ids", np.zeros(0, np.int64)),
        clients_N=np.concatenate([np.zeros(0, np.int32), *clients]),
        counts_N=stacked("counts", np.zeros(0, np.float32)) if has_counts else None,
    )


def mean_per_class(uploaded: Uploaded, num_classes: int) -> ClassVectors:
    """Mean over the clients that hold a class (ProtoNorm Eq. 7), weighted by their counts if they sent any.

    The printed weighted mean (FedTGP Eq. 3, ProtoNorm Eq. 3) is also divided by the number of clients, which
    would shrink the prototypes by that number; no published run does it.
    """
    means = ClassMeans(num_classes, uploaded.vectors_NK.shape[1], uploaded.vectors_NK.device)
    means.add(uploaded.vectors_NK, uploaded.labels_N, uploaded.counts_N)
    return means.means()


def client_weights(uploads: Sequence[Upload], aggregation: Aggregation) -> list[int]:
    """How much each client counts, up to a common factor."""
    return [upload.num_train if aggregation == "weighted" else 1 for upload in uploads]


def mean_of(uploads: Sequence[Upload], name: str, aggregation: Aggregation) -> np.ndarray:
    """The mean of the vectors called `name`, weighed by the clients' numbers of training samples or all alike."""
    return weighted_mean([upload.arrays[name] for upload in uploads], client_weights(uploads, aggregation))
