"""How long runs will take here: samples × measured cost of the models ÷ speed of this machine's cores.

The estimate is of the clients' work and of the one server's step that takes longer than that. What other servers
do, the start of processes and disks come on top, and a GPU makes all of it shorter; it says hours or weeks, not
minutes.
"""

import math
import os
import time
from collections.abc import Iterable

import numpy as np
from threadpoolctl import threadpool_limits

from fedsim.config import Experiment
from fedsim.data.sources.known import sizes_of
from fedsim.models import groups

PUBLISHED_PIXELS = 32 * 32
EVALUATION_SHARE = 0.25
"""Time of a sample that is only passed through the model, to predict or for prototypes, as a share of training."""
CLASSES_HELD_SHARE = 0.4
"""Of all classes, that a client has samples of in the papers' Dirichlet partitions; more than half is rare."""
_SIDE = 512
_REPEATS = 20


def machine_speed() -> float:
    """Operations per second of float32 matrix products, one on each core; measured on one, in a moment."""
    left, right = (np.ones((_SIDE, _SIDE), dtype=np.float32) for _ in range(2))
    best = math.inf
    with threadpool_limits(limits=1):
        for _ in range(_REPEATS):
            started = time.perf_counter()
            left @ right
            best = min(best, time.perf_counter() - started)
    return num_cores() * 2 * _SIDE**3 / best


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def operations(experiment: Experiment) -> float | None:
    """What the clients of a run do, in operations of a matrix product; None for data or models of unknown size."""
    sizes, each = sizes_of(experiment.data.dataset), _training_mflops(experiment)
    if sizes is None or each is None:
        return None
    run, data, train = experiment.run, experiment.data, experiment.train
    samples = sizes.num_samples
    if data.samples_per_class:
        samples = min(samples, data.samples_per_class * sizes.num_classes)
    num_train, num_test = samples * data.train_fraction, samples * (1 - data.train_fraction)
    # Prototypes, logits and the like cost about one more pass; public samples are passed once or twice.
    trained = (num_train * train.local_epochs + 2 * data.public_samples * run.clients) * run.participation
    passed = num_train * run.participation + num_test / run.evaluate_every
    area = 1.0
    if len(sizes.input_shape) == 3:
        area = (data.image_size**2 or math.prod(sizes.input_shape[1:])) / PUBLISHED_PIXELS
    of_clients = (trained + EVALUATION_SHARE * passed) * each * area * 1e6
    return run.rounds * (of_clients + _of_trainable_prototypes(experiment, sizes.num_classes))


def _of_trainable_prototypes(experiment: Experiment, num_classes: int) -> float:
    """Of FedTGP's server in a round, which may take longer than its clients: six C×K×K products a mini-batch."""
    if experiment.method_name != "fedtgp":
        return 0.0
    config, run, data = experiment.method_config(), experiment.run, experiment.data
    held = data.classes_per_client if data.partition == "pathological" else CLASSES_HELD_SHARE * num_classes
    num_uploaded = run.clients * run.participation * min(held, num_classes)
    steps = config.server_epochs * num_uploaded / (config.server_batch_size or experiment.train.batch_size)
    return steps * 6 * 2 * num_classes * experiment.model.feature_dim**2 * config.use_transform


def seconds(experiments: Iterable[Experiment], speed: float) -> float | None:
    """For all of them, one after the other."""
    total = 0.0
    for experiment in experiments:
        work = operations(experiment)
        if work is None:
            return None
        total += work / speed
    return total


def duration(seconds: float | None) -> str:
    """`4 min`, `3 h`, `12 days`, `5 months`: one number, because it is an estimate."""
    if seconds is None:
        return "?"
    for unit, size, most in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 48), ("days", 86400, 90)):
        if seconds < size * most:
            return f"{max(1, round(seconds / size))} {unit}"
    years = seconds / (365.25 * 86400)
    return f"{round(years * 12)} months" if years < 2 else f"{round(years)} years"


def _training_mflops(experiment: Experiment) -> float | None:
    """Of one sample of the published size, the mean over the clients."""
    given = [groups.entry(experiment.model, client).model for client in range(experiment.run.clients)]
    known = [groups.MODELS[name].training_mflops for name in given if name in groups.MODELS]
    costs = [cost for cost in known if cost is not None]
    return sum(costs) / len(given) if len(costs) == len(given) else None
