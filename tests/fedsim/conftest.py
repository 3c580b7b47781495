"""A federation so small that whole rounds take milliseconds: points in a plane, linear models, no files."""

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedsim import config, contract, methods
from fedsim.data import ClientData, Dataset, Subset
from fedsim.methods.base import Client, ClientContext, Server, ServerContext, Step, Task, Upload
from fedsim.models import SplitModel
from fedsim.models.base import Backbone
from fedsim.seeds import Streams

# Matrices here are tiny: a second thread only waits, and on a busy machine it waits long.
torch.set_num_threads(1)

NUM_CLASSES, NUM_INPUTS, FEATURE_DIM = 5, 6, 4
CPU = torch.device("cpu")
CLASSES_HELD = [[0, 1, 2], [1, 3], [0, 1, 2, 3], [2]]  # nobody holds class 4; client 3 holds a single class
SAMPLES_HELD = [36, 24, 33, 12]


def toy_data(client: int, num_samples: int | None = None) -> ClientData:
    """Noisy points around one centre per class; a third as many for testing as for training."""
    num_train = SAMPLES_HELD[client] if num_samples is None else num_samples
    num_all = num_train + max(num_train // 3, 1)
    draw = np.random.default_rng(100 + client)
    centres = np.random.default_rng(7).normal(size=(NUM_CLASSES, NUM_INPUTS))
    labels = np.array(CLASSES_HELD[client])[draw.integers(len(CLASSES_HELD[client]), size=num_all)]
    inputs = (2 * centres[labels] + draw.normal(size=(num_all, NUM_INPUTS))).astype(np.float32)
    dataset = Dataset("toy", inputs, labels.astype(np.int64), NUM_CLASSES, num_train)
    return ClientData(Subset(dataset, np.arange(num_train)), Subset(dataset, np.arange(num_train, num_all)))


def toy_model(seed: int, *, dropout: float = 0.0) -> SplitModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = nn.Sequential(nn.Linear(NUM_INPUTS, FEATURE_DIM), nn.Tanh(), nn.Dropout(dropout))
        return SplitModel(
            "toy",
            Backbone(body, FEATURE_DIM),
            nn.Identity(),
            nn.Linear(FEATURE_DIM, NUM_CLASSES),
            FEATURE_DIM,
        )


@dataclass
class Toy:
    """All halves of one method, and the rounds that they play."""

    method: ModuleType
    experiment: config.Experiment
    task: Task
    contract: contract.Contract
    clients: list[Client]
    server: Server
    down: dict[str, np.ndarray] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def play(self, num_rounds: int) -> list[list[dict[str, float]]]:
        """Play rounds, checking all traffic against the contract; returns the metrics of every client."""
        history = []
        for round in range(len(self.steps), len(self.steps) + num_rounds):
            uploads, metrics = [], []
            for client_id, client in enumerate(self.clients):
                client.receive(round, self.down)
                metrics.append(client.evaluate() | client.train(round))
                arrays = client.upload()
                contract.check(arrays, self.contract.up, self.task.dimensions, f"client {client_id}")
                uploads.append(Upload(client_id, len(client.data.train), arrays))
            step = self.server.aggregate(round, uploads)
            contract.check(step.down, self.contract.down, self.task.dimensions, "server")
            self.down = step.down
            self.steps.append(step)
            history.append(metrics)
        return history


def make_toy(
    method: str,
    *,
    num_samples: dict[int, int] | None = None,
    dropout: float = 0.0,
    train: dict[str, Any] | None = None,
    **options: Any,
) -> Toy:
    """`num_samples` overrides how many training samples a client has; `options` are the method's."""
    experiment = config.build(
        [
            {
                "run": {"clients": len(CLASSES_HELD)},
                "model": {"feature_dim": FEATURE_DIM},
                "train": {"batch_size": 6, "lr": 0.1, **(train or {})},
                "method": {"name": method, **options},
            }
        ]
    )
    module, streams = methods.load(method), Streams(experiment.run.seed)
    options_of_method = experiment.method_config()
    task = Task(len(CLASSES_HELD), NUM_CLASSES, FEATURE_DIM, (NUM_INPUTS,))
    clients = [
        module.Client(
            ClientContext(
                client,
                experiment,
                options_of_method,
                task,
                toy_model(client, dropout=dropout),
                toy_data(client, (num_samples or {}).get(client)),
                streams,
                CPU,
            )
        )
        for client in range(len(CLASSES_HELD))
    ]
    server = module.Server(ServerContext(experiment, options_of_method, task, None, streams, CPU))
    return Toy(module, experiment, task, module.contract(options_of_method), clients, server)


@pytest.fixture
def toy():
    """`toy("fedtgp", tau=1.0)`: the factory."""
    return make_toy


@pytest.fixture
def toy_parts():
    """The makers of data and models, for tests that need no whole federation."""
    return toy_data, toy_model
