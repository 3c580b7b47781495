"""A federation so small that whole rounds take milliseconds: points in a plane, linear models, no files."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from fedsim import config, contract, methods
from fedsim.data import ClientData, Dataset, Subset
from fedsim.method import Client, ClientContext, Server, ServerContext, Step, Task, Upload
from fedsim.models import SplitModel
from fedsim.models.base import Backbone
from fedsim.seeds import Streams
from protocol.codec import pack
from protocol.ledger import receipt_of

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


@dataclass(frozen=True)
class Commons:
    """In the place of a Federation: the samples that no client holds."""

    public: Subset
    global_test: Subset


def toy_commons(num_public: int = 20, num_test: int = 30) -> Commons:
    """Samples of all classes around the same centres as the clients'."""
    draw = np.random.default_rng(99)
    centres = np.random.default_rng(7).normal(size=(NUM_CLASSES, NUM_INPUTS))
    num_all = num_public + num_test
    labels = draw.integers(NUM_CLASSES, size=num_all)
    inputs = (2 * centres[labels] + draw.normal(size=(num_all, NUM_INPUTS))).astype(np.float32)
    dataset = Dataset("commons", inputs, labels.astype(np.int64), NUM_CLASSES, num_public)
    public = Subset(dataset, np.arange(num_public), labelled=False)
    return Commons(public, Subset(dataset, np.arange(num_public, num_all)))


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

    def setup(self) -> dict[str, np.ndarray]:
        """What comes before the first round; returns what every client was told."""
        uploads = []
        for client_id, client in enumerate(self.clients):
            arrays = client.setup()
            contract.check(arrays, self.contract.setup_up, self.task.dimensions, f"client {client_id}")
            uploads.append(Upload(client_id, len(client.data.train), arrays))
        down = self.server.setup(uploads)
        contract.check(down, self.contract.setup_down, self.task.dimensions, "server")
        if self.contract.setup_down:
            for client in self.clients:
                client.receive_setup(_copies(down))
        return down

    def play(self, num_rounds: int, cohort: Iterable[int] | None = None) -> list[list[dict[str, float]]]:
        """Play rounds, checking all traffic against the contract; returns the metrics of every client.

        `cohort` are the clients that take part; the others hear of nothing.
        """
        history = []
        chosen = range(len(self.clients)) if cohort is None else list(cohort)
        for round in range(len(self.steps), len(self.steps) + num_rounds):
            uploads, metrics = [], []
            for client_id in chosen:
                client = self.clients[client_id]
                client.receive(round, _copies(self.down))
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

    def states(self) -> list[dict[str, np.ndarray]]:
        """Of all clients, and of the server."""
        return [half.state() for half in (*self.clients, self.server)]

    def take_over(self, other: "Toy") -> list[dict[str, np.ndarray]]:
        """Go on where another federation is, as after a restart; returns the states that were restored."""
        saved = [_copies(state) for state in other.states()]
        for half, state in zip((*self.clients, self.server), saved, strict=True):
            half.load_state(state)
        self.down, self.steps = other.down, list(other.steps)
        return saved


def assert_same(first: list[dict[str, np.ndarray]], second: list[dict[str, np.ndarray]]) -> None:
    """States, or messages, are the same to the bit."""
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], err_msg=name)
            assert one[name].dtype == other[name].dtype


def _copies(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Each client has its own, as if they had travelled."""
    return {name: array.copy() for name, array in arrays.items()}


def assemble(experiment: config.Experiment, task: Task, models: list[SplitModel], data: list[ClientData]) -> Toy:
    """The halves of the experiment's method, with a model and data for each client."""
    module, streams = methods.load(experiment.method_name), Streams(experiment.run.seed)
    options, commons = experiment.method_config(), toy_commons()
    known = {"public": commons.public, "global_test": commons.global_test}
    clients = [
        module.Client(ClientContext(client, experiment, options, task, model, own_data, streams, CPU, **known))
        for client, (model, own_data) in enumerate(zip(models, data, strict=True))
    ]
    server = module.Server(ServerContext(experiment, options, task, commons, streams, CPU))
    return Toy(module, experiment, task, module.contract(options), clients, server)


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
    clients = range(len(CLASSES_HELD))
    return assemble(
        experiment,
        Task(len(CLASSES_HELD), NUM_CLASSES, FEATURE_DIM, (NUM_INPUTS,)),
        [toy_model(client, dropout=dropout) for client in clients],
        [toy_data(client, (num_samples or {}).get(client)) for client in clients],
    )


def elements(arrays: contract.Arrays, fields: contract.Fields) -> int:
    """Of a message with these arrays, as the ledger counts them."""
    parcel = pack(arrays, {name: str(field.payload) for name, field in fields.items()})
    receipt = receipt_of("result", [0, *map(len, parcel.frames)], parcel.specs, curve=False)
    return sum(part.elements for part in receipt.parts)
