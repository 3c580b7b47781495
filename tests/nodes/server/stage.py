"""A server without a network: the real reception, loop and learner, with peers whose every word a test chooses."""

import csv
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from loopback import Clock, LoopbackClient, LoopbackServer

from fedsim import config
from fedsim.contract import Contract
from fedsim.results.folder import RunFolder
from nodes.border import Border
from nodes.checkpoint import Checkpoints, Manifest
from nodes.server.events import EventLog
from nodes.server.learner import Learner
from nodes.server.loop import Outcome, ServerLoop
from nodes.server.reception import Reception
from protocol import messages
from protocol.codec import pack

PAYLOADS = {"prototypes": "prototypes", "class_ids": "index", "counts": "counts"}


def prototypes(value: float, *classes: int) -> dict[str, np.ndarray]:
    """What FedProto sends up for two features, with one row for each class."""
    held = classes or (0, 1)
    return {"prototypes": np.full((len(held), 2), value, np.float32), "class_ids": np.array(held, np.int32)}


class Peer:
    """A client as the wire sees it. It is honest, unless the test gives it another `habit` for its work."""

    def __init__(
        self,
        server: LoopbackServer,
        client: int,
        habit: Callable[["Peer", messages.Work], object] | None = None,
        *,
        place: str = "host",
        slots: int = 8,
        setup: Mapping[str, np.ndarray] | None = None,
        key_owner: int | None = None,
    ):
        self.client, self.clock = client, server.clock
        self.place, self.slots, self.setup = place, slots, setup or {}
        self.socket = LoopbackClient(server, client, key_owner=key_owner)
        self.habit = habit or Peer.answer
        self.on_delivered: Callable[[messages.Work], object] = self.say_delivered
        self.on_stop: Callable[[], object] = self.socket.close
        self.version = ""
        self.facts: dict[str, str] = {}
        self.heard: list[messages.Message] = []
        self.run = ""
        self._num_greetings = 0
        self._delivered: messages.Work | None = None
        server.turns.append(self.turn)

    def turn(self) -> None:
        """Greet after each connection, then react to all that has come."""
        if self.socket.num_connects > self._num_greetings:
            self._num_greetings = self.socket.num_connects
            self.say_hello()
        while (decoded := self.socket.receive(0)) is not None:
            self.heard.append(decoded.message)
            match decoded.message:
                case messages.Welcome(run=run):
                    self.run = run
                    self.say_ready()
                case messages.Work(slot=-1) as work:
                    self._delivered = work
                    self.on_delivered(work)
                case messages.Work() as work:
                    self.habit(self, work)
                case messages.Turn() if self._delivered is not None:
                    self.habit(self, self._delivered)
                case messages.Stop() | messages.Refusal():
                    self.on_stop()

    def say_hello(self, client: int | None = None) -> None:
        number = self.client if client is None else client
        self.socket.send(messages.Hello(client=number, place=self.place, slots=self.slots, version=self.version))

    def say_ready(self, run: str | None = None) -> None:
        ready = messages.Ready(
            run=self.run if run is None else run,
            num_train=10 * (self.client + 1),
            num_test=5,
            num_parameters=7,
            start_seconds=0.5,
            pss_bytes=1000 * (self.client + 1),
            facts=self.facts,
        )
        self.socket.send(ready, pack(self.setup, PAYLOADS))

    def say_delivered(self, work: messages.Work) -> None:
        self.socket.send(messages.Delivered(run=self.run, round=work.round, attempt=work.attempt))

    def say_done(self, work: messages.Work) -> None:
        self.socket.send(messages.Done(run=self.run, round=work.round, attempt=work.attempt))

    def answer(self, work: messages.Work, arrays: dict[str, np.ndarray] | None = None, **changes: Any) -> None:
        """The honest result, or one with other arrays or other fields."""
        honest = prototypes(self.client) if work.train else {}
        sent = honest if arrays is None else arrays
        fields: dict[str, Any] = {
            "run": self.run,
            "round": work.round,
            "attempt": work.attempt,
            "metrics": {"correct": 3.0, "tested": 5.0} | ({"loss": 0.5} if work.train else {}),
            "seconds": {"train": 0.1} if work.train else {},
        }
        kinds = {name: PAYLOADS.get(name, "prototypes") for name in sent}
        self.socket.send(messages.Result(**(fields | changes)), pack(sent, kinds))

    def fail(self, work: messages.Work, error: str = "ValueError: no") -> None:
        self.socket.send(messages.Failure(run=self.run, round=work.round, error=error))

    def last(self) -> messages.Message:
        return self.heard[-1]

    def works(self) -> list[tuple[int, int]]:
        """The questions that came, as (round, attempt)."""
        return [(item.round, item.attempt) for item in self.heard if isinstance(item, messages.Work)]


class Stage:
    """One server and all that is around it."""

    def __init__(self, folder: Path, resume: bool = False, contract: Contract | None = None, **sections: Any):
        layer: dict[str, Any] = {
            "model": {"feature_dim": 2},
            "method": {"name": "fedproto"},
            "cluster": {"quorum": 0.5},
        }
        self.experiment = config.build([layer, sections])
        self.folder = RunFolder.open(folder) if resume else RunFolder.create(folder, self.experiment)
        federation = SimpleNamespace(num_classes=3, input_shape=(1, 4, 4))
        self.clock = Clock()
        self.server = LoopbackServer(self.clock)
        self.said: list[dict[str, Any]] = []
        self.learner = Learner(self.experiment, federation, self.folder, torch.device("cpu"))
        manifest: Manifest | None = None
        if resume and (loaded := Checkpoints(self.folder.checkpoints).load()):
            manifest, state = loaded
            self.learner.load_state(state, manifest.history)
            self.folder.forget_after(manifest.round)
        if contract is not None:
            self.learner.border = Border(contract, {"C": 3, "K": 2})
        self.reception = Reception(self.server, self.experiment, self.learner.border, manifest, self.clock)
        self.events = EventLog(folder / "events.jsonl", self.said.append, self.experiment)
        first_round = manifest.round + 1 if manifest else 0
        self.loop = ServerLoop(self.learner, self.reception, self.events, first_round)
        self.peers: dict[int, Peer] = {}

    def peer(self, client: int, habit: Callable[..., object] | None = None, **options: Any) -> Peer:
        """A new one, which takes the place of an older one with that id."""
        self.peers[client] = Peer(self.server, client, habit, **options)
        return self.peers[client]

    def run(self, **habits: Callable[..., object]) -> Outcome:
        """`run(client_1=late)`: with a peer for every client, all but those named honest."""
        for client in range(self.experiment.run.clients):
            if client not in self.peers:
                self.peer(client, habits.get(f"client_{client}"))
        return self.loop.run()

    def rows(self) -> list[dict[str, str]]:
        """Of metrics.csv."""
        with (self.folder.path / "metrics.csv").open() as file:
            return list(csv.DictReader(file))

    def clients_by_round(self) -> list[int]:
        return [int(row["clients"]) for row in self.rows()]

    def events_of(self, *kinds: str) -> list[dict[str, Any]]:
        """What was said of these kinds, or at all, without when."""
        return [
            {name: value for name, value in event.items() if name != "time"}
            for event in self.said
            if not kinds or event["event"] in kinds
        ]

    def happened(self, *kinds: str) -> list[tuple[Any, ...]]:
        """As (kind, round, client), in order; without the columns that an event does not have."""
        columns = ("event", "round", "client")
        return [tuple(item[name] for name in columns if name in item) for item in self.events_of(*kinds)]

    def booked(self, level: str = "frames", **wanted: object) -> int:
        number: int = getattr(self.reception.accounts.ledger.total(**wanted), level)
        return number


def in_round(
    number: int, habit: Callable[[Peer, messages.Work], object]
) -> Callable[[Peer, messages.Work], object]:
    """Another habit for one round, once; honest otherwise."""
    times = itertools.count()

    def choose(peer: Peer, work: messages.Work) -> object:
        return habit(peer, work) if work.round == number and next(times) == 0 else peer.answer(work)

    return choose


def say_nothing(peer: Peer, work: messages.Work) -> None:
    """What a peer does for as long as the test lasts, or until the test speaks for it."""
