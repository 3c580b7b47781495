"""What a client computes in a round, in floating-point operations: counted by torch while one batch is trained.

So whatever a method does counts: a second model, another pass for prototypes. What clients do with images that
come from the server does not, because there are none before the first round.
"""

from dataclasses import replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from fedsim import assembly, models
from fedsim.config import Experiment
from fedsim.data import Federation
from fedsim.data.dataset import ClientData
from fedsim.learning.training import samples_per_epoch


def training_flops(experiment: Experiment, federation: Federation) -> list[float]:
    """Of each client's training in one round, with what it makes ready to send."""
    per_sample: dict[str, float] = {}
    flops = []
    for client in range(experiment.run.clients):
        data = federation.client(client)
        name = models.architecture(experiment.model, client)
        if name not in per_sample and len(data.train) >= experiment.train.batch_size:
            per_sample[name] = _flops_per_sample(experiment, federation, client, data)
        flops.append(per_sample.get(name, 0.0) * samples_per_epoch(len(data.train), experiment.train))
    return flops


def _flops_per_sample(experiment: Experiment, federation: Federation, client: int, data: ClientData) -> float:
    """Over all local epochs; two for each multiply-add, as models/flops.py counts."""
    size = experiment.train.batch_size
    batch = replace(data, train=replace(data.train, indices=data.train.indices[:size]))
    half = assembly.make_client(experiment, federation, client, data=batch)
    with FlopCounterMode(display=False) as counter, torch.enable_grad():
        half.receive(0, {})
        half.train(0)
        half.upload()
    return counter.get_total_flops() / size
