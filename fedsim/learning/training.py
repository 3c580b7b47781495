"""The one training loop. A method gives its loss of a batch; everything else is the same for all.

    def loss(batch: Batch) -> Tensor:
        return cross_entropy(model(batch.inputs), batch.labels_B)

A loss may use anything: features to be collected on the way, a second mini-batch of generated samples, a
teacher's logits looked up by `batch.rows_B`. Several modules trained together are several entries of
`modules`; each is clipped by its own gradient norm and may have its own learning rate.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.config import Train
from fedsim.data import Subset
from fedsim.data.feeding import to_device
from fedsim.seeds import Streams


class Batch(NamedTuple):
    """One mini-batch. `rows_B` says which samples of the subset it holds."""

    inputs: Tensor
    labels_B: Tensor
    rows_B: np.ndarray


LossOfBatch = Callable[[Batch], Tensor]


def run_epochs(
    loss: LossOfBatch,
    modules: Sequence[nn.Module],
    data: Subset,
    train: Train,
    *,
    streams: Streams,
    round: int,
    device: torch.device,
    client: int | None = None,
    purpose: str = "train",
    learning_rates: Sequence[float] | None = None,
    clip_norm: float = 0.0,
    optimizer: torch.optim.Optimizer | None = None,
) -> float | None:
    """Train `modules` for `train.local_epochs` epochs; returns the mean loss of all batches, None without any.

    All draws (dropout, order of samples) come from the streams named `purpose`, so two trainings in one round
    need two purposes. Without `optimizer` it is plain SGD made anew, hence without memory of earlier rounds.
    """
    for module in modules:
        module.train()
    if optimizer is None:
        optimizer = sgd(modules, train, learning_rates)
    # Summed as a tensor: reading a number every batch would make a GPU wait.
    total_loss = torch.zeros((), device=device)
    num_batches = 0
    with streams.seeded(purpose, client=client, round=round):
        for batch in _epochs(data, train, streams, purpose, client, round, device):
            batch_loss = loss(batch)
            optimizer.zero_grad(set_to_none=True)
            batch_loss.backward()
            if clip_norm:
                for module in modules:
                    nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
            optimizer.step()
            total_loss += batch_loss.detach()
            num_batches += 1
    # Gradients are as large as the model, and a client waits most of the time.
    optimizer.zero_grad(set_to_none=True)
    return float(total_loss) / num_batches if num_batches else None


def sgd(
    modules: Sequence[nn.Module], train: Train, learning_rates: Sequence[float] | None = None
) -> torch.optim.SGD:
    """Plain SGD over all modules, one learning rate each (the experiment's where none is given)."""
    rates = learning_rates or [train.lr] * len(modules)
    groups = [
        {"params": list(module.parameters()), "lr": rate} for module, rate in zip(modules, rates, strict=True)
    ]
    return torch.optim.SGD(groups, lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay)


def samples_per_epoch(num_samples: int, train: Train) -> int:
    """How many samples an epoch covers: with `drop_last` only whole batches, so perhaps none at all."""
    return num_samples - num_samples % train.batch_size if train.drop_last else num_samples


def endless_rows(num: int, size: int, draw: np.random.Generator, device: torch.device) -> Iterator[Tensor]:
    """Row numbers for ever: passes over all of `num`, each in a random order and cut into batches of `size`. The
    last batch of a pass has what is left; a single row is left out, as it has no variance to normalise by."""
    while True:
        for rows in torch.from_numpy(draw.permutation(num)).split(size):
            if len(rows) > 1 or min(num, size) == 1:
                yield to_device(rows, device)


def _epochs(
    data: Subset,
    train: Train,
    streams: Streams,
    purpose: str,
    client: int | None,
    round: int,
    device: torch.device,
) -> Iterator[Batch]:
    """All batches of all epochs."""
    if not samples_per_epoch(len(data), train):
        return
    shuffle = streams.numpy(f"{purpose}-order", client=client, round=round)
    stored_order = np.arange(len(data))
    for _ in range(train.local_epochs):
        order = shuffle.permutation(len(data)) if train.shuffle else None
        rows = stored_order if order is None else order
        start = 0
        for inputs, labels_B in data.batches(
            train.batch_size, drop_last=train.drop_last, order=order, device=device
        ):
            # A trailing batch of one sample has no variance, which batch normalisation cannot train on.
            if len(labels_B) == 1 and train.batch_size > 1:
                continue
            yield Batch(inputs, labels_B, rows[start : start + len(labels_B)])
            start += len(labels_B)
