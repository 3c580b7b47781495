"""Who holds which samples: pure functions of labels, settings and one random stream.

The rules are the published ones (PFLlib, used by FedTGP, FedKTL and ProtoNorm), and with numpy's legacy
generator at seed 1 they give the published partitions sample for sample. So the order and the number of draws
in this file are part of its meaning. Each rule returns one array of row numbers per client.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedsim.errors import UserError


@dataclass(frozen=True)
class Part:
    """The rows one client trains on and the rows it is tested on, in the order drawn."""

    train: np.ndarray
    test: np.ndarray


class TooUneven(UserError):
    """No draw gave every client enough samples."""

    def __init__(self, message: str, best: list[list[np.ndarray]], smallest: int):
        super().__init__(message)
        self.best = best
        """For each client its rows of each class, in the draw whose smallest client was the largest."""
        self.smallest = smallest
        """That client's samples."""


def least_samples(batch_size: int, train_fraction: float, num_samples: int, num_clients: int) -> int:
    """The published minimum: a test part of one batch, but no more than half of an even share."""
    # The ratio is not an integer in binary (10 / (1 - .75) is), hence the rounding before the cut.
    one_test_batch = round(batch_size / (1 - train_fraction), 9)
    return int(min(one_test_batch, num_samples / num_clients / 2))


def dirichlet(
    labels: np.ndarray,
    num_classes: int,
    num_clients: int,
    beta: float,
    least: int,
    max_redraws: int,
    random: np.random.RandomState,
) -> list[np.ndarray]:
    """Each class is dealt in proportions p ~ Dir(β·1); a client with an even share already gets no more.

    Everything is drawn again until the smallest client holds `least` samples; TooUneven after `max_redraws`.
    """
    if least * num_clients > len(labels):
        raise UserError(
            f"{num_clients} clients with at least {least} samples each need {least * num_clients} samples, "
            f"but there are {len(labels)}; lower data.min_samples or run.clients."
        )
    even_share = len(labels) / num_clients
    rows_of_class = [np.flatnonzero(labels == label) for label in range(num_classes)]
    best: list[list[np.ndarray]] = []
    smallest = -1
    for _ in range(1 + max_redraws):
        held: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
        sizes = np.zeros(num_clients, dtype=np.int64)
        for rows in rows_of_class:
            shuffled = rows.copy()
            random.shuffle(shuffled)
            shares = random.dirichlet(np.repeat(beta, num_clients)) * (sizes < even_share)
            total = shares.sum()
            if not total > 0:  # β so small that the class fell to full clients only, or that numpy divided 0 by 0
                break
            ends = (np.cumsum(shares / total) * len(shuffled)).astype(int)
            ends[-1] = len(shuffled)
            for own, start, end in zip(held, [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
                own.append(shuffled[start:end])
            sizes += np.diff(ends, prepend=0)
        else:
            if sizes.min() >= least:
                return [np.concatenate(pieces) for pieces in held]
            if sizes.min() > smallest:
                best, smallest = held, int(sizes.min())
    message = (
        f"{1 + max_redraws} Dirichlet draws of {len(labels)} samples for {num_clients} clients at β = {beta} "
        f"never gave every client {least} samples (the best draw: {max(smallest, 0)}); raise data.beta or "
        "data.max_redraws, or lower data.min_samples or run.clients."
    )
    raise TooUneven(message, best, smallest)


def levelled(held: list[list[np.ndarray]], least: int) -> list[np.ndarray]:
    """A draw in which the largest client gives of its largest class until the smallest one has `least` samples.

    What is given is of one class, so that clients stay unlike each other. `held` is as in TooUneven; `least` is at
    most half of an even share.
    """
    held = [list(pieces) for pieces in held]
    sizes = [sum(map(len, pieces)) for pieces in held]
    while min(sizes) < least:
        smallest, largest = int(np.argmin(sizes)), int(np.argmax(sizes))
        label = int(np.argmax([len(piece) for piece in held[largest]]))
        piece = held[largest][label]
        num_given = min(least - sizes[smallest], len(piece), sizes[largest] - least)
        held[largest][label] = piece[num_given:]
        held[smallest].append(piece[:num_given])
        sizes[smallest] += num_given
        sizes[largest] -= num_given
    return [np.concatenate(pieces) for pieces in held]


def pathological(
    labels: np.ndarray,
    num_classes: int,
    num_clients: int,
    classes_per_client: int,
    least: int,
    random: np.random.RandomState,
) -> list[np.ndarray]:
    """Blocks of clients share blocks of classes; sizes are uneven.

    Class by class, the first ceil(M/C · classes_per_client) clients that still have room receive it, in
    dataset order. All but the last receiver get a random size, the last one gets what is left. Classes that
    come when no client has room are dropped, as published (Flowers102 with 20 × 10: classes 100 and 101).
    """
    if classes_per_client > num_classes:
        raise UserError(
            f"data.classes_per_client = {classes_per_client} is more than there are classes; "
            f"give at most {num_classes}."
        )
    num_receivers = math.ceil(num_clients / num_classes * classes_per_client)
    room = np.full(num_clients, classes_per_client)
    held: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for label in range(num_classes):
        receivers = np.flatnonzero(room > 0)[:num_receivers]
        if len(receivers) == 0:
            break
        rows = np.flatnonzero(labels == label)
        sizes = _receiver_sizes(label, len(rows), len(receivers), least / num_classes, random)
        for client, piece in zip(receivers, np.split(rows, np.cumsum(sizes)), strict=True):
            held[client].append(piece)
        room[receivers] -= 1
    parts = [np.concatenate(pieces) for pieces in held]
    if empty := sum(len(part) == 0 for part in parts):
        raise UserError(
            f"{classes_per_client} of {num_classes} classes per client leave {empty} of {num_clients} "
            f"clients without samples; set data.min_samples = {num_classes} or lower run.clients."
        )
    return parts


def _receiver_sizes(
    label: int, num_rows: int, num_receivers: int, least: float, random: np.random.RandomState
) -> np.ndarray:
    """Sizes of all receivers but the last."""
    even = num_rows / num_receivers
    low, high = int(max(even / 10, least)), int(even)
    if num_receivers > 1 and low >= high:
        raise UserError(
            f"class {label} has {num_rows} samples, too few to be shared by {num_receivers} clients with at "
            f"least {max(low, 1)} each; lower run.clients, data.classes_per_client or data.min_samples."
        )
    return random.randint(low, high, num_receivers - 1) if num_receivers > 1 else np.empty(0, dtype=np.int64)


def iid(labels: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """Samples dealt out class by class like cards: clients differ by at most one in every class and in all.

    PFLlib gives all remainders to the last client, which leaves the others empty when clients outnumber a class.
    """
    if len(labels) < num_clients:
        raise UserError(f"{len(labels)} samples are too few for {num_clients} clients; lower run.clients.")
    by_class = np.argsort(labels, kind="stable")
    return [np.sort(by_class[client::num_clients]) for client in range(num_clients)]


def natural(groups: np.ndarray, num_clients: int, name: str) -> list[np.ndarray]:
    """One client for each subject or domain that has samples, in the order of their numbers."""
    found = np.unique(groups)
    if len(found) != num_clients:
        raise UserError(
            f"the samples of {name} come from {len(found)} subjects or domains, and a natural partition makes "
            f"each one a client, not {num_clients}; set run.clients = {len(found)} (--clients {len(found)})."
        )
    return [np.flatnonzero(groups == group) for group in found]


def split(rows: np.ndarray, train_fraction: float, random: np.random.RandomState) -> Part:
    """Shuffled train and test parts with the draws and the order of scikit-learn's `train_test_split`."""
    shuffled = rows[random.permutation(len(rows))]
    num_test = len(rows) - int(train_fraction * len(rows))
    return Part(train=shuffled[num_test:], test=shuffled[:num_test])


def stratified_split(
    rows: np.ndarray, labels: np.ndarray, train_fraction: float, random: np.random.RandomState
) -> Part:
    """As `split`, but each class is split by itself; its train part is rounded to the nearest, half upwards.

    `labels` are those of `rows`. A class with one sample is trained on.
    """
    train, test = [], []
    for label in np.unique(labels):
        own = rows[labels == label]
        own = own[random.permutation(len(own))]
        num_train = math.floor(train_fraction * len(own) + 0.5)
        train.append(own[: max(1, num_train)])
        test.append(own[max(1, num_train) :])
    # Shuffled again: batches are taken in this order, and one class after another would be no way to train.
    both = np.concatenate(train), np.concatenate(test)
    return Part(*(part[random.permutation(len(part))] for part in both))
