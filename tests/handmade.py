"""A client written by hand: the same pieces as a real one, but each step is taken when the test says so."""

import time
from types import TracebackType
from typing import Any

import numpy as np
import torch
from commands import PATIENCE_SECONDS

from fedsim import assembly
from fedsim.data import Federation
from nodes.border import unpack_experiment
from nodes.work import Order, Report, carry_out
from protocol import messages
from protocol.client_socket import ClientSocket
from protocol.codec import Decoded, pack


class HandmadeClient:
    """Joins a live server. Use it as a context manager, which hangs up at the end."""

    def __init__(self, address: str, client: int, **socket_options: Any):
        self.client = client
        self.socket = ClientSocket(address, client, **socket_options)
        self.run = ""

    def __enter__(self) -> "HandmadeClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def receive(self) -> Decoded:
        """The next message, whatever it is."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            if decoded := self.socket.receive(0.1):
                return decoded
        raise TimeoutError(f"nothing came for client {self.client}")

    def say_hello(self, *, place: str = "test", slots: int = 16) -> None:
        self.socket.send(messages.Hello(client=self.client, place=place, slots=slots))

    def join(self) -> None:
        """Hello, Welcome, Ready: from then on there is a learning half."""
        self.say_hello()
        welcome = self.receive()
        assert isinstance(welcome.message, messages.Welcome), welcome.message
        self.run = welcome.message.run
        self.experiment = unpack_experiment(welcome.arrays)
        federation = Federation(self.experiment)
        torch.set_num_threads(1)
        self.half = assembly.make_client(self.experiment, federation, self.client)
        self.contract = assembly.contract_of(self.experiment)
        self.socket.send(
            messages.Ready(
                run=self.run,
                num_train=len(self.half.data.train),
                num_test=len(self.half.data.test),
                num_parameters=sum(p.numel() for p in self.half.model.parameters()),
                start_seconds=0.0,
                pss_bytes=0,
            )
        )

    def next_work(self) -> tuple[messages.Work, dict[str, np.ndarray]] | None:
        """What to do next; None when the server says stop."""
        decoded = self.receive()
        if isinstance(decoded.message, messages.Stop):
            return None
        assert isinstance(decoded.message, messages.Work), decoded.message
        return decoded.message, {name: array.copy() for name, array in decoded.arrays.items()}

    def do(self, work: messages.Work, down: dict[str, np.ndarray]) -> Report:
        return carry_out(self.half, Order(work.round, work.train, work.evaluate), down)

    def answer(
        self,
        work: messages.Work,
        report: Report,
        *,
        arrays: dict[str, np.ndarray] | None = None,
        payload: str = "prototypes",
        **changes: Any,
    ) -> None:
        """The honest result, or one with other arrays or other fields."""
        declared = {name: str(field.payload) for name, field in self.contract.up.items()}
        sent = report.arrays if arrays is None else arrays
        fields: dict[str, Any] = {
            "run": self.run,
            "round": work.round,
            "attempt": work.attempt,
            "metrics": report.metrics,
            "seconds": report.seconds,
        }
        kinds = {name: declared.get(name, payload) for name in sent}
        self.socket.send(messages.Result(**(fields | changes)), pack(sent, kinds))
