"""What a client computes in a round, in floating-point operations: counted by torch while batches are trained.

So whatever a method does counts: a second model, another pass for prototypes, what is said of public samples.
Some of it grows with a client's samples and some does not, so it is counted at two sizes. What clients do with
what came from the server does not count, because nothing has come: images (FedKTL), generated features (FedGen),
the digest of logits for public samples (FedMD, FedProtoKD, FedPKD), features of public samples (Fed2PKD).
"""

from dataclasses import replace

import msgspec
import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from fedsim import assembly, models
from fedsim.config import Experiment
from fedsim.data import Federation
from fedsim.learning.training import samples_per_epoch
from fedsim.method import Client

NUM_BATCHES = (2, 3)
"""At which it is counted; more than one, since FedL2G's clients keep the first apart for their quiz."""


def training_flops(experiment: Experiment, federation: Federation) -> list[float]:
    """Of each client's training in one round, with what it makes ready to send."""
    counted: dict[str, tuple[float, float]] = {}
    flops = []
    for client in range(experiment.run.clients):
        name = models.architecture(experiment.model, client)
        if name not in counted:
            counted[name] = _fixed_and_per_sample(experiment, federation, client)
        fixed, per_sample = counted[name]
        num_samples = samples_per_epoch(len(federation.client(client).train), experiment.train)
        flops.append(fixed + per_sample * num_samples)
    return flops


def _fixed_and_per_sample(experiment: Experiment, federation: Federation, client: int) -> tuple[float, float]:
    """The straight line through the counts at both sizes; no fixed part is less than nothing."""
    data = federation.client(client)
    # All batches are the first one again, so that it matters neither how many samples the client has nor how long
    # its texts are; of two samples at least, or batch normalisation could not train.
    size = min(experiment.train.batch_size, max(len(data.train), 2))
    train = msgspec.structs.replace(experiment.train, batch_size=size, shuffle=False)
    experiment = msgspec.structs.replace(experiment, train=train)

    def flops(num_batches: int) -> int:
        rows = np.resize(data.train.indices[:size], num_batches * size)
        batches = replace(data, train=replace(data.train, indices=rows))
        return _flops(assembly.make_client(experiment, federation, client, data=batches), experiment.run.rounds)

    fewer, more = NUM_BATCHES
    low, high = flops(fewer), flops(more)
    slope = (high - low) / ((more - fewer) * size)
    return max(low - slope * fewer * size, 0.0), slope


def _flops(half: Client, num_rounds: int) -> int:
    """Of the last round, as the first ones may be a warm-up, and over all local epochs; two for each multiply-add,
    as models/flops.py counts."""
    with FlopCounterMode(display=False) as counter, torch.enable_grad():
        half.receive(num_rounds - 1, {})
        half.train(num_rounds - 1)
        half.upload()
    return counter.get_total_flops()
