"""A client's node with a server whose every word the test chooses and no network."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from loopback import Clock, LoopbackClient, LoopbackServer

from fedsim import config
from nodes.border import pack_experiment
from nodes.client.node import ClientNode
from nodes.client.options import ClientOptions
from nodes.client.own import OwnWorker
from nodes.launchers import processes
from nodes.launchers.placement import Placement
from protocol import messages
from protocol.codec import Parcel, pack
from protocol.transport import Arrived, Lost

EXPERIMENT = config.build([{"run": {"clients": 3}, "model": {"feature_dim": 2}, "method": {"name": "fedproto"}}])
DOWN = {"prototypes": np.full((1, 2), 7.0, np.float32), "class_ids": np.array([2], np.int32)}
KINDS = {"prototypes": "prototypes", "class_ids": "index"}


class Half:
    """In the place of a method's client: counts what it is asked to do, and sends that up."""

    def __init__(self) -> None:
        self.num_trained = 0
        self.received: list[tuple[int, dict[str, np.ndarray]]] = []
        self.metrics: dict[str, float] = {"loss": 0.25}
        self.on_train: Callable[[], object] = lambda: None
        self.data = SimpleNamespace(train=range(30), test=range(10))
        self.model = torch.nn.Linear(2, 3)
        self.agreed: dict[str, np.ndarray] = {}

    def setup(self) -> dict[str, np.ndarray]:
        return {}

    def receive_setup(self, down: dict[str, np.ndarray]) -> None:
        self.agreed = down

    def receive(self, round: int, down: dict[str, np.ndarray]) -> None:
        self.received.append((round, down))

    def evaluate(self) -> dict[str, float]:
        return {"correct": 4, "tested": 10}

    def train(self, round: int) -> dict[str, float]:
        self.num_trained += 1
        self.on_train()
        return self.metrics

    def drops(self, round: int) -> bool:
        return False

    def upload(self) -> dict[str, np.ndarray]:
        trained = np.full((1, 2), self.num_trained, np.float32)
        return {"prototypes": trained, "class_ids": np.array([1], np.int32)}

    def state(self) -> dict[str, np.ndarray]:
        return {"num_trained": np.array(self.num_trained)}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        self.num_trained = int(state["num_trained"])


class Home:
    """One client and the server's end of its connection. A message to the client is followed by its step."""

    def __init__(self, folder: Path, connected: bool = True, patience: float = 60.0):
        self.clock = Clock()
        self.server = LoopbackServer(self.clock)
        self.socket = LoopbackClient(self.server, 1, connected=connected)
        self.halves: list[Half] = []
        self.states = folder
        options = ClientOptions(connect="tcp://far:1", ids=[1], patience=patience, state_dir=folder)
        placement = Placement("rack 7", 2, cores=(5, 6))
        self.node = ClientNode(
            1, options, placement, self.socket, OwnWorker(1, placement, processes.Turnstile(1)), self.clock
        )

    @property
    def half(self) -> Half:
        return self.halves[-1]

    def tell(self, message: messages.Message, parcel: Parcel = Parcel()) -> list[messages.Message]:  # noqa: B008
        """What the client answers."""
        self.server.send(self.socket.route, message, parcel)
        self.node.step()
        return self.heard()

    def heard(self) -> list[messages.Message]:
        self.arrived = [event for event in self.server.events(0) if not isinstance(event, Lost)]
        assert all(isinstance(event, Arrived) for event in self.arrived)
        return [event.decoded.message for event in self.arrived]

    def welcome(self, run: str = "r", restore: int = -1) -> list[messages.Message]:
        message = messages.Welcome(run=run, states="ab", restore=restore)
        return self.tell(message, pack_experiment(EXPERIMENT))

    def join(self, run: str = "r") -> None:
        self.node.step()
        assert [messages.kind_of(message) for message in self.heard()] == ["hello"]
        assert [messages.kind_of(message) for message in self.welcome(run)] == ["ready"]

    def work(self, round: int = 0, attempt: int = 0, **changes: Any) -> list[messages.Message]:
        fields = {"slot": 0, "train": True, "evaluate": True, "save": False, "keep": -1, "run": "r"} | changes
        return self.tell(messages.Work(round=round, attempt=attempt, **fields), pack(DOWN, KINDS))

    def uploaded(self) -> float:
        """What the last answer brought: how often its sender had trained."""
        return float(self.arrived[-1].decoded.arrays["prototypes"][0, 0])

    def deliver(self, round: int = 0, attempt: int = 0, **changes: Any) -> list[messages.Message]:
        """Work whose turn comes later."""
        return self.work(round, attempt, slot=-1, **changes)

    def turn(self, round: int = 0, attempt: int = 0, run: str = "r") -> list[messages.Message]:
        return self.tell(messages.Turn(run=run, round=round, attempt=attempt, slot=1))
