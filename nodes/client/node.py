"""One client: joins the server, takes the experiment from it, works round after round.

It needs the server's address, its id and, where the server wants keys, its key; everything else comes from
the server. A range of ids is started from one preloaded parent.
"""

import logging
import math
import os
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import torch

from fedsim import assembly
from fedsim.contract import Arrays
from fedsim.data import Federation
from fedsim.errors import FedsimError
from nodes.border import Border, check_metrics, unpack_experiment, where
from nodes.checkpoint import StateFiles, client_files
from nodes.launchers import processes
from nodes.launchers.placement import Placement
from nodes.work import Order, carry_out
from protocol import keys as key_files
from protocol import messages
from protocol.codec import Decoded, Parcel
from protocol.errors import AddressUnusable, AdmissionRefused, DecodeError, PeerUnreachable, ProtocolError
from protocol.keys import KeyPair
from protocol.limits import DEFAULT_LIMITS, Limits
from protocol.transport import ClientSocket

log = logging.getLogger("client")

EXIT_REFUSED, EXIT_NO_SERVER = 3, 4

_POLL_SECONDS = 0.2
_IDLE_SECONDS = 5.0  # then others may have the memory that the last work needed
_MAX_ERROR_CHARS = 1500


@dataclass(frozen=True)
class Settings:
    """All that a client must know to join."""

    address: str
    client: int
    placement: Placement
    state_folder: Path
    patience_seconds: float = 60.0
    heartbeat_seconds: float = 0.0
    keys: KeyPair | None = None
    server_key: bytes | None = None
    limits: Limits = DEFAULT_LIMITS


class ClientNode:
    """A client's life between Hello and Stop. Messages are handled by `on_<message>`."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.client = settings.client
        self._started = time.perf_counter()
        self._socket = ClientSocket(
            settings.address,
            settings.client,
            limits=settings.limits,
            keys=settings.keys,
            server_key=settings.server_key,
            heartbeat_seconds=settings.heartbeat_seconds,
        )
        self._stop_reason: str | None = None
        self._exit_code = EXIT_REFUSED
        self._run = ""
        self._last_round = self._current_round = -1
        self._last_answer: tuple[messages.Result, Parcel] | None = None

    def run(self) -> int:
        """Work until the server says stop; returns the exit code."""
        try:
            return self._loop()
        except (AdmissionRefused, PeerUnreachable) as error:
            print(f"client {self.client} may not join {self.settings.address}: {error}.", flush=True)
            return EXIT_REFUSED
        finally:
            self._socket.close()

    def _loop(self) -> int:
        greeted, last_contact, tidy_at = 0, time.monotonic(), math.inf
        while self._stop_reason is None:
            try:
                decoded = self._socket.receive(_POLL_SECONDS)
            except DecodeError as error:
                log.warning("dropped a message: %s", error)
                continue
            if self._socket.num_connects > greeted:
                greeted = self._socket.num_connects
                self._say_hello()
            if decoded is not None or self._socket.connected:
                last_contact = time.monotonic()
            elif time.monotonic() - last_contact > self.settings.patience_seconds:
                seconds = self.settings.patience_seconds
                print(
                    f"client {self.client}: no server at {self.settings.address} for {seconds:g} s; giving up.",
                    flush=True,
                )
                return EXIT_NO_SERVER
            if decoded is not None:
                self._handle(decoded)
                tidy_at = time.monotonic() + _IDLE_SECONDS
            elif time.monotonic() > tidy_at:
                processes.return_freed_memory()
                tidy_at = math.inf
        print(f"client {self.client}: {self._stop_reason}", flush=True)
        return self._exit_code

    def _say_hello(self) -> None:
        placement = self.settings.placement
        self._socket.send(messages.Hello(client=self.client, place=placement.place[:64], slots=placement.slots))

    def _handle(self, decoded: Decoded) -> None:
        try:
            match decoded.message:
                case messages.Welcome() as welcome:
                    self.on_welcome(welcome, decoded.arrays)
                case messages.Setup() as setup if setup.run == self._run:
                    self.on_setup(decoded.arrays)
                case messages.Work() as work if work.run == self._run:
                    self.on_work(work, decoded.arrays)
                case messages.Stop(reason=reason):
                    self._stop_reason, self._exit_code = reason, 0
                case messages.Refusal(reason=reason):
                    self._stop_reason, self._exit_code = reason, EXIT_REFUSED
                case other:
                    log.warning("ignored an unexpected %s", messages.kind_of(other))
        except (ProtocolError, KeyboardInterrupt):
            raise
        except Exception as error:
            self._fail(error)

    def on_welcome(self, welcome: messages.Welcome, arrays: Arrays) -> None:
        """Build everything anew, also after a reconnection to a server that was started again."""
        self._run = welcome.run
        self._last_round, self._last_answer = -1, None
        experiment = unpack_experiment(arrays)
        torch.set_num_threads(1)
        federation = Federation(experiment)
        device = torch.device(self.settings.placement.device)
        self._half = assembly.make_client(experiment, federation, self.client, device)
        setting = assembly.setting_of(experiment, federation)
        self._border = Border(assembly.contract_of(experiment), setting.dimensions)
        self._states: StateFiles = client_files(self.settings.state_folder, welcome.states, self.client)
        if welcome.restore >= 0:
            self._half.load_state(self._states.load(welcome.restore))
        setup = self._half.setup()
        fields = self._border.contract.setup_up
        parcel = self._border.outgoing(setup, fields, f"client {self.client}, set-up, up")
        processes.return_freed_memory()
        ready = messages.Ready(
            run=self._run,
            num_train=len(self._half.data.train),
            num_test=len(self._half.data.test),
            num_parameters=sum(p.numel() for p in self._half.model.parameters()),
            start_seconds=time.perf_counter() - self._started,
            pss_bytes=processes.pss_bytes(),
        )
        self._socket.send(ready, parcel)

    def on_setup(self, arrays: Arrays) -> None:
        fields = self._border.contract.setup_down
        down = self._border.incoming(arrays, fields, f"client {self.client}, set-up, down")
        self._half.receive_setup(down)

    def on_work(self, work: messages.Work, arrays: Arrays) -> None:
        """Work that was done already is answered again, not done again: training twice would change the result."""
        if work.round == self._last_round and self._last_answer is not None:
            answer, parcel = self._last_answer
            self._socket.send(_with_attempt(answer, work.attempt), parcel)
            return
        if self.settings.placement.cores:
            processes.pin(self.settings.placement.cores[work.slot])
        self._current_round = work.round
        contract = self._border.contract
        down = self._border.incoming(arrays, contract.down, where(self.client, work.round, "down"))
        report = carry_out(self._half, Order(work.round, work.train, work.evaluate), down)
        seconds = dict(report.seconds)
        if work.save:
            started = time.perf_counter()
            self._states.save(work.round, self._half.state())
            self._states.keep_only(work.round, work.keep)
            seconds["save"] = time.perf_counter() - started
        check_metrics(report.metrics, where(self.client, work.round, "up"))
        parcel = self._border.outgoing(report.arrays, contract.up, where(self.client, work.round, "up"))
        answer = messages.Result(
            run=self._run, round=work.round, attempt=work.attempt, metrics=report.metrics, seconds=seconds
        )
        self._last_round, self._last_answer = work.round, (answer, parcel)
        self._socket.send(answer, parcel)

    def _fail(self, error: Exception) -> None:
        """Our own code failed: tell the server in a sentence, keep the traceback here."""
        traceback.print_exc()
        sentence = str(error) if isinstance(error, FedsimError) else f"{type(error).__name__}: {error}"
        round = max(self._current_round, 0)
        self._socket.send(messages.Failure(run=self._run, round=round, error=sentence[:_MAX_ERROR_CHARS]))
        self._exit_code = 1
        self._stop_reason = f"failed: {sentence}"


def _with_attempt(answer: messages.Result, attempt: int) -> messages.Result:
    return messages.Result(
        run=answer.run, round=answer.round, attempt=attempt, metrics=answer.metrics, seconds=answer.seconds
    )


class ClientKeys(TypedDict, total=False):
    """The part of `Settings` that comes from a folder of keys."""

    keys: KeyPair
    server_key: bytes


def client_keys(folder: Path | None, client: int) -> ClientKeys:
    if folder is None:
        return {}
    own = key_files.load_secret(folder, key_files.client_name(client))
    return {"keys": own, "server_key": key_files.load_public(folder / f"{key_files.SERVER}.key")}


def run_client(settings: Settings) -> int:
    """The main function of a client's process."""
    os.environ.update(settings.placement.environment)
    torch.set_num_threads(1)
    try:
        return ClientNode(settings).run()
    except AddressUnusable as error:
        print(f"client {settings.client}: {error}", flush=True)
        return EXIT_NO_SERVER
