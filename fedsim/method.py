"""What every method is: a client half, a server half, and what each of them is given.

One round of a client is: receive what came down, evaluate, train, upload. After the last round there is one
more receive and evaluate, so that the last aggregation counts. Before the first round each client may send
something once (`setup`), and the server may answer it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedsim import models
from fedsim.config import Experiment, Model
from fedsim.contract import Arrays
from fedsim.data import ClientData, Federation, Subset
from fedsim.data.inputs import described
from fedsim.learning.evaluation import count_correct
from fedsim.learning.stopwatch import Stopwatch
from fedsim.learning.training import Batch as Batch
from fedsim.learning.training import run_epochs
from fedsim.metrics import Metrics as Metrics
from fedsim.metrics import Reported as Reported
from fedsim.models import SplitModel
from fedsim.seeds import Streams
from fedsim.world.cohort import dropped_of

State = dict[str, np.ndarray]
"""Everything a half must remember between rounds, as named arrays. Random draws need no state."""


@dataclass(frozen=True)
class About:
    """What `fedsim methods` says of a method beside its contract and its cost."""

    title: str
    paper: str
    evaluation: str
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Instead:
    """A value for a setting whose default does not fit, and why. A method's function `adapt(setting)` yields them;
    what the user has set himself stays as it is."""

    section: str
    key: str
    value: Any
    why: str


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
        return letters | described(self.input_shape).letters


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
    """What a server made of a round: what goes down, scalars for metrics.csv, arrays for the record, and a
    sentence where the user should know that something goes wrong."""

    down: Arrays
    metrics: Metrics = field(default_factory=dict)
    records: Arrays = field(default_factory=dict)
    warning: str = ""

    def plus(self, down: Arrays, metrics: Metrics, records: Arrays) -> Step:
        """This and more."""
        return Step(self.down | down, self.metrics | metrics, self.records | records, self.warning)


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


class Client:
    """The client half. As it is, it trains alone; a method overrides what it needs, as a rule its loss."""

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

    def evaluate(self) -> Metrics:
        """At least `correct` and `tested` on the client's own test set, both 0 where nothing can be said yet; by
        the largest logit unless a method predicts otherwise."""
        return count_correct(self.model, self.data.test, self.context.device, further=self.measures_further)

    @property
    def measures_further(self) -> bool:
        """Whether F1 and AUC are wanted beside accuracy, for `count_correct`."""
        return self.context.experiment.run.measures == "all"

    def train(self, round: int) -> Reported:
        """One round of local training; at least `loss`, the mean over its batches, None where there were none."""
        return {"loss": self.train_locally(round)}

    def loss(self, batch: Batch) -> Tensor:
        """What local training lowers, of one mini-batch."""
        return cross_entropy(self.model(batch.inputs), batch.labels_B)

    def optimizer(self) -> torch.optim.Optimizer | None:
        """Of local training, made anew every round; None is plain SGD with the experiment's settings."""
        return None

    def train_locally(
        self,
        round: int,
        *,
        modules: Sequence[nn.Module] | None = None,
        data: Subset | None = None,
        learning_rates: Sequence[float] | None = None,
        clip_norm: float = 0.0,
    ) -> float | None:
        """`run_epochs` with `loss`, `optimizer` and the experiment's settings, of the model on the client's own
        training data unless other modules or other data are given. Returns the mean loss, None of no batches: a
        client with less than one trains nothing while `train.drop_last` holds."""
        return run_epochs(
            self.loss,
            modules or [self.model],
            self.data.train if data is None else data,
            self.context.experiment.train,
            streams=self.context.streams,
            client=self.context.client,
            round=round,
            device=self.context.device,
            learning_rates=learning_rates,
            clip_norm=clip_norm,
            optimizer=self.optimizer(),
        )

    def drops(self, round: int) -> bool:
        """Whether it is one of those whom the server loses after they have trained (`run.drop_rate`)."""
        return self.context.client in dropped_of(self.context.experiment.run, round)

    def upload(self) -> Arrays:
        """What goes up after training."""
        return {}

    def modules(self) -> dict[str, nn.Module]:
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

    def test(self, round: int, model: nn.Module) -> Metrics:
        """`server_accuracy` of what the server made in a round, on the global test set: where there is one, and in
        the rounds whose result the clients evaluate too."""
        context, experiment = self.context, self.context.experiment
        if not experiment.data.global_test or not experiment.run.is_evaluated(round + 1):
            return {}
        with context.stopwatch.part("evaluation"):
            counted = count_correct(model, context.federation.global_test, context.device)
        return {"server_accuracy": counted["correct"] / counted["tested"]}

    def modules(self) -> dict[str, nn.Module]:
        return {}

    def state(self) -> State:
        return modules_state(self.modules())

    def load_state(self, state: State) -> None:
        load_modules_state(self.modules(), state)


def modules_state(modules: dict[str, nn.Module]) -> State:
    """`{"model.conv.weight": array}` for all parameters and buffers."""
    return {
        f"{prefix}.{name}": tensor.detach().cpu().numpy().copy()
        for prefix, module in modules.items()
        for name, tensor in module.state_dict().items()
    }


def load_modules_state(modules: dict[str, nn.Module], state: State) -> None:
    for prefix, module in modules.items():
        start = f"{prefix}."
        own = {
            name.removeprefix(start): torch.from_numpy(array.copy())
            for name, array in state.items()
            if name.startswith(start)
        }
        module.load_state_dict(own)
