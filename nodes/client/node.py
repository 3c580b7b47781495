"""One client: joins the server, takes the experiment from it, works round after round.

Its options say where the server is; everything else comes from the server.
"""

import logging
import math
import time
import traceback
from collections.abc import Callable

import msgspec
import torch

from fedsim import assembly
from fedsim.contract import Arrays
from fedsim.data import Federation
from fedsim.errors import FedsimError, UserError
from nodes.border import Border, check_metrics, unpack_experiment, where
from nodes.checkpoint import StateFiles, client_files
from nodes.client.options import ClientOptions
from nodes.launchers import processes
from nodes.launchers.placement import Placement
from nodes.work import Order, carry_out
from protocol import messages
from protocol.codec import Decoded, Parcel
from protocol.errors import AdmissionRefused, DecodeError, PeerUnreachable, ProtocolError
from protocol.transport import ClientSocket

log = logging.getLogger("client")

EXIT_FAILED, EXIT_REFUSED, EXIT_NO_SERVER = 1, 3, 4

_POLL_SECONDS = 0.2
_IDLE_SECONDS = 5.0  # then others may have the memory that the last work needed
_MAX_ERROR_CHARS = 1500


class ClientNode:
    """A client's life between Hello and Stop. Messages are handled by `on_<message>`."""

    def __init__(
        self,
        client: int,
        options: ClientOptions,
        placement: Placement,
        socket: ClientSocket,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.client = client
        self.options = options
        self.placement = placement
        self.exit_code: int | None = None
        """None as long as there is something to do."""
        self._socket = socket
        self._clock = clock
        self._started = time.perf_counter()
        self._num_greetings = 0
        self._last_contact, self._tidy_at = clock(), math.inf
        self._run = ""
        self._last_round = self._current_round = -1
        self._last_answer: tuple[messages.Result, Parcel] | None = None

    def run(self) -> int:
        """Work until the server says stop; returns the exit code."""
        while self.exit_code is None:
            try:
                self.step()
            except (AdmissionRefused, PeerUnreachable) as error:
                print(f"client {self.client} may not join {self.options.connect}: {error}.", flush=True)
                self.exit_code = EXIT_REFUSED
        return self.exit_code

    def step(self) -> None:
        """Wait a moment for a message, and do what it says."""
        try:
            decoded = self._socket.receive(_POLL_SECONDS)
        except DecodeError as error:
            log.warning("dropped a message: %s", error)
            return
        if self._socket.num_connects > self._num_greetings:
            self._num_greetings = self._socket.num_connects
            self._say_hello()
        if decoded is not None:
            self._handle(decoded)
        now = self._clock()  # work takes time, in which nobody has looked for the server
        if decoded is not None or self._socket.connected:
            self._last_contact = now
        elif now - self._last_contact > self.options.patience:
            patience = f"{self.options.patience:g} s"
            self._end(f"no server at {self.options.connect} for {patience}; giving up.", EXIT_NO_SERVER)
        if decoded is not None:
            self._tidy_at = now + _IDLE_SECONDS
        elif now > self._tidy_at:
            processes.return_freed_memory()
            self._tidy_at = math.inf

    def _end(self, reason: str, exit_code: int) -> None:
        print(f"client {self.client}: {reason}", flush=True)
        self.exit_code = exit_code

    def _say_hello(self) -> None:
        place, slots = self.placement.place[:64], self.placement.slots
        self._socket.send(messages.Hello(client=self.client, place=place, slots=slots))

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
                    self._end(reason, 0)
                case messages.Refusal(reason=reason):
                    self._end(reason, EXIT_REFUSED)
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
        try:
            experiment = unpack_experiment(arrays, self.options.code)
        except UserError as error:
            self._refuse(str(error))
            return
        torch.set_num_threads(1)
        federation = Federation(experiment)
        device = torch.device(self.placement.device)
        self._half = assembly.make_client(experiment, federation, self.client, device)
        setting = assembly.setting_of(experiment, federation)
        self._border = Border(assembly.contract_of(experiment), setting.dimensions)
        self._states: StateFiles = client_files(self.options.state_dir, welcome.states, self.client)
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

    def _refuse(self, reason: str) -> None:
        """We cannot take part; the run may go on without us, or with a client of this id that can."""
        self._socket.send(messages.Refusal(reason=reason[:_MAX_ERROR_CHARS]))
        self._end(reason, EXIT_REFUSED)

    def on_setup(self, arrays: Arrays) -> None:
        fields = self._border.contract.setup_down
        down = self._border.incoming(arrays, fields, f"client {self.client}, set-up, down")
        self._half.receive_setup(down)

    def on_work(self, work: messages.Work, arrays: Arrays) -> None:
        """Work that was done already is answered again, not done again: training twice would change the result."""
        if work.round == self._last_round and self._last_answer is not None:
            answer, parcel = self._last_answer
            self._socket.send(msgspec.structs.replace(answer, attempt=work.attempt), parcel)
            return
        if self.placement.cores:
            processes.pin(self.placement.cores[work.slot])
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
        self._end(f"failed: {sentence}", EXIT_FAILED)
