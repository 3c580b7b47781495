"""What every method is: a client half, a server half, and what each of them is given.

One round of a client is: receive what came down, evaluate, train, upload. After the last round there is one
more receive and evaluate, so that the last aggregation counts. Before the first round each client may send
something once (`setup`), and the server may answer it once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

from fedsim import models
from fedsim.config import Experiment, Model
from fedsim.contract import Arrays
from fedsim.data import ClientData, Federation, Subset
from fedsim.learning.stopwatch import Stopwatch
from fedsim.metrics import Metrics as Metrics
from fedsim.models import SplitModel
from fedsim.seeds import Streams

State = dict[str, np.ndarray]
"""Everything a half must remember between rounds, as named arrays. Random draws need no state."""


@dataclass(frozen=True)
class About:
    """What `fedsim methods` says of a method beside its contract and its cost."""

    title: str
    paper: str
    evaluation: str
    needs: tuple[str, ...] = ()


INPUT_LETTERS = {1: ("dim",), 2: ("ch", "length"), 3: ("ch", "h", "w")}
"""Of a vector, a signal and an image, by the number of dimensions of a sample."""


@dataclass(frozen=True)
class Task:
    """The sizes that every node of an experiment agrees on."""

    num_clients: int
    num_classes: int
    feature_dim: int
    input_shape: tuple[int, ...]

    @property
    def dimensions(self) -> dict[str, int]:
        """The letters that contracts may use for fixed sizes."""
        letters = {"C": self.num_classes, "K": self.feature_dim, "M": self.num_clients}
        return letters | dict(zip(INPUT_LETTERS.get(len(self.input_shape), ()), self.input_shape, strict=False))


@dataclass
class Setting:
    """What is known of an experiment before anything is built: for a method's checks, sizes and cost."""

    experiment: Experiment
    config: Any  # the method's own Config
    task: Task
    federation: Federation
    _models: dict[str, SplitModel] = field(default_factory=dict, repr=False)

    @property
    def about(self) -> About:
        return self.experiment.method_module.ABOUT

    @property
    def architectures(self) -> list[str]:
        """The name of each client's model."""
        return [models.architecture(self.experiment.model, client) for client in range(self.task.num_clients)]

    def model(self, client: int) -> SplitModel:
        """A client's model without memory for its weights: shapes only."""
        name = models.architecture(self.experiment.model, client)
        if name not in self._models:
            self._models[name] = _shapes(
                self.experiment.model, client, self.task.input_shape, self.task.num_classes
            )
        return self._models[name]

    @cached_property
    def dimensions(self) -> dict[str, int]:
        """The letters that the method's contract may use for fixed sizes: the task's, and the method's own."""
        module = self.experiment.method_module
        own = module.sizes(self) if hasattr(module, "sizes") else {}
        return self.task.dimensions | own

    @cached_property
    def rehearsed_dimensions(self) -> dict[str, int]:
        """All letters but those that count classes; what only training would show has the size of a rehearsal."""
        module = self.experiment.method_module
        free = module.rehearsal_sizes(self) if hasattr(module, "rehearsal_sizes") else {}
        return self.dimensions | free


@lru_cache(maxsize=64)
def _shapes(model: Model, client: int, input_shape: tuple[int, ...], num_classes: int) -> SplitModel:
    """Kept for the whole process and those forked from it: even without memory a large model takes a while."""
    with torch.device("meta"):
        return models.build(model, client, input_shape, num_classes)


@dataclass(frozen=True)
class Upload:
    """What one client sent in a round. The server sees uploads sorted by client id, always."""

    client: int
    num_train: int
    arrays: Arrays


def filled(uploads: list[Upload]) -> list[Upload]:
    """Without those of clients that had nothing to send, such as one whose data do not fill a batch."""
    return [upload for upload in uploads if upload.arrays]


@dataclass(frozen=True)
class Step:
    """What a server made of a round: what goes down, scalars for metrics.csv, arrays for the record."""

    down: Arrays
    metrics: Metrics = field(default_factory=dict)
    records: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class ClientContext:
    """Everything a client half is given when it is made."""

    client: int
    experiment: Experiment
    config: Any  # the method's own Config
    task: Task
    model: SplitModel
    data: ClientData
    streams: Streams
    device: torch.device
    public: Subset | None = None
    """The public samples of the experiment, if it has any, as a client finds them in its own copy of the data."""
    global_test: Subset | None = None
    """The global test set likewise: for methods whose server has nothing that could be tested."""


@dataclass(frozen=True)
class ServerContext:
    """Everything a server half is given when it is made."""

    experiment: Experiment
    config: Any
    task: Task
    federation: Federation  # for public data and the global test set; never a client's samples
    streams: Streams
    device: torch.device
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    """Measures the parts of the server's step that a method names."""


class Client(ABC):
    """The client half. A method overrides what it needs; the rest is a client that only trains alone."""

    def __init__(self, context: ClientContext):
        self.context = context
        self.model = context.model
        self.data = context.data

    def setup(self) -> Arrays:
        """Sent up once, before the first round."""
        return {}

    def receive_setup(self, down: Arrays) -> None:
        """The server's answer to all set-ups, once."""

    def receive(self, round: int, down: Arrays) -> None:
        """What the server made of the last round; empty before the first aggregation."""

    @abstractmethod
    def evaluate(self) -> Metrics:
        """At least `correct` and `tested` on the client's own test set, both 0 where nothing can be said yet."""

    @abstractmethod
    def train(self, round: int) -> Metrics:
        """One round of local training; at least `loss`, the mean over its batches."""

    def upload(self) -> Arrays:
        """What goes up after training."""
        return {}

    def modules(self) -> dict[str, torch.nn.Module]:
        """The modules whose weights are this client's memory. Saved and restored for a checkpoint."""
        return {"model": self.model}

    def state(self) -> State:
        """The client's memory. A method that keeps more than modules extends this and `load_state`."""
        return modules_state(self.modules())

    def load_state(self, state: State) -> None:
        load_modules_state(self.modules(), state)


class Server:
    """The server half."""

    def __init__(self, context: ServerContext):
        self.context = context

    def setup(self, uploads: list[Upload]) -> Arrays:
        """All clients' set-ups in, what every client is told once out."""
        return {}

    def aggregate(self, round: int, uploads: list[Upload]) -> Step:
        """One round's uploads in, what goes down with the next round out."""
        return Step(down={})

    def modules(self) -> dict[str, torch.nn.Module]:
        return {}

    def state(self) -> State:
        return modules_state(self.modules())

    def load_state(self, state: State) -> None:
        load_modules_state(self.modules(), state)


def modules_state(modules: dict[str, torch.nn.Module]) -> State:
    """`{"model.conv.weight": array}` for all parameters and buffers."""
    return {
        f"{prefix}.{name}": tensor.detach().cpu().numpy().copy()
        for prefix, module in modules.items()
        for name, tensor in module.state_dict().items()
    }


def load_modules_state(modules: dict[str, torch.nn.Module], state: State) -> None:
    for prefix, module in modules.items():
        start = f"{prefix}."
        own = {
            name.removeprefix(start): torch.from_numpy(array.copy())
            for name, array in state.items()
            if name.startswith(start)
        }
        module.load_state_dict(own)
