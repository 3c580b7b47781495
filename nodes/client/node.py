"""One client: joins the server, takes the experiment from it, works round after round.

Its options say where the server is; everything else comes from the server. Nothing is computed here: that is its
worker's part, in this process or in another.
"""

import contextlib
import logging
import math
import time
import traceback
from collections.abc import Callable

import msgspec

from fedsim.contract import Arrays
from fedsim.errors import UserError
from fedsim.version import __version__
from nodes import failures
from nodes.border import Border, Items, Passage, check_metrics, plain, require_frames_fit, wire_settings
from nodes.checkpoint import StateFiles, client_files
from nodes.client.options import ClientOptions, log_name
from nodes.client.worker import CannotTakePart, Worker
from nodes.launchers import processes
from nodes.launchers.placement import Placement
from nodes.work import Order, is_large
from protocol import messages
from protocol.client_socket import ClientSocket
from protocol.codec import Decoded, Parcel
from protocol.errors import AdmissionRefused, DecodeError, EncodeError, ProtocolError, VersionMismatch

log = logging.getLogger("client")

EXIT_FAILED, EXIT_REFUSED, EXIT_NO_SERVER = 1, 3, 4

_POLL_SECONDS = 0.2
_QUIET_SECONDS = 60.0  # where only news can happen, which end the wait: a thousand clocks keep a core busy
_COMPLAINT_SECONDS = 5.0  # without a server, until it is said why there is none
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
        worker: Worker,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.client = client
        self.options = options
        self.placement = placement
        self.exit_code: int | None = None
        """None as long as there is something to do."""
        self._socket = socket
        self._worker = worker
        self._clock = clock
        self._started = time.perf_counter()
        self._num_greetings = 0
        self._last_contact, self._tidy_at = clock(), math.inf
        self._has_complained = False
        self._run = ""
        self._has_agreed = False
        self._last_round = self._current_round = -1
        self._last_answer: messages.Result | None = None
        self._delivered: tuple[messages.Work, Items] | None = None
        """Work whose turn has not come yet."""

    def run(self) -> int:
        """Work until the server says stop; returns the exit code."""
        while self.exit_code is None:
            try:
                self.step()
            except (AdmissionRefused, VersionMismatch) as error:
                print(f"client {self.client} may not join {self.options.connect}: {error}.", flush=True)
                self.exit_code = EXIT_REFUSED
        return self.exit_code

    def step(self) -> None:
        """Wait a moment for a message, and do what it says."""
        has_greeted = self._socket.connected and self._socket.num_connects == self._num_greetings
        is_quiet = has_greeted and self._tidy_at == math.inf
        try:
            decoded = self._socket.receive(_QUIET_SECONDS if is_quiet else _POLL_SECONDS)
        except VersionMismatch:
            raise
        except DecodeError as error:
            log.warning("dropped a message: %s", error)
            return
        if self._socket.num_connects > self._num_greetings:
            self._say_hello()
        if decoded is not None:
            self._handle(decoded)
        now = self._clock()  # work takes time, in which nobody has looked for the server
        if (
            decoded is not None or self._socket.connected or is_quiet
        ):  # a loss ends the wait: it was there until now
            self._last_contact = now
        elif now - self._last_contact > self.options.patience:
            patience, why = f"{self.options.patience:g} s", self._socket.diagnose()
            self._end(f"no server at {self.options.connect} for {patience}: {why}; giving up.", EXIT_NO_SERVER)
        elif now - self._last_contact > _COMPLAINT_SECONDS and not self._has_complained:
            self._has_complained = True
            log.warning("no server at %s so far: %s", self.options.connect, self._socket.diagnose())
        if decoded is not None:
            self._tidy_at = now + _IDLE_SECONDS
        elif now > self._tidy_at:
            self._worker.rest()
            self._tidy_at = math.inf

    def _end(self, reason: str, exit_code: int) -> None:
        self._say(reason)
        self.exit_code = exit_code

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # of a log on a full disk
            print(f"client {self.client}: {text}", flush=True)

    def _say_hello(self) -> None:
        """On every new connection: whatever is open is asked again."""
        self._num_greetings = self._socket.num_connects
        place, slots = self.placement.place, self.placement.slots
        self._socket.send(messages.Hello(client=self.client, place=place, slots=slots, version=__version__))

    def _handle(self, decoded: Decoded) -> None:
        try:
            match decoded.message:
                case messages.Welcome() as welcome:
                    self.on_welcome(welcome, plain(decoded.arrays))
                case messages.Setup() as setup if setup.run == self._run:
                    self.on_setup(decoded.arrays)
                case messages.Work() as work if work.run == self._run:
                    self.on_work(work, decoded.arrays)
                case messages.Turn() as turn if turn.run == self._run:
                    self.on_turn(turn)
                case messages.Stop(reason=reason):
                    self._end(reason, 0)
                case messages.Refusal(reason=reason):
                    self._end(reason, EXIT_REFUSED)
                case other:
                    log.warning("ignored an unexpected %s", messages.kind_of(other))
        except EncodeError as error:
            self._fail(error)
        except (ProtocolError, KeyboardInterrupt):
            raise
        except CannotTakePart as error:
            self._refuse(str(error))
        except Exception as error:
            self._fail(error)

    def on_welcome(self, welcome: messages.Welcome, arrays: Arrays) -> None:
        """Build everything anew, also after a reconnection to a server that was started again."""
        self._run = welcome.run
        self._last_round, self._last_answer, self._delivered = -1, None, None
        self._has_agreed = False
        self._require_limits(arrays)
        states = client_files(self.options.state_dir, welcome.states, self.client)
        started = self._worker.join(arrays, states, welcome.restore)
        self._border = Border(started.contract, started.dimensions, *wire_settings(arrays))
        self._memory = StateFiles(states.folder / "border")
        if welcome.restore >= 0 and self._border.has_memory:
            self._border.load_state(self._memory.load(welcome.restore))
        parcel = self._border.outgoing(started.setup, Passage("setup_up", self.client))
        require_frames_fit(parcel, self._max_frame_mib)
        ready = messages.Ready(
            run=self._run,
            num_train=started.num_train,
            num_test=started.num_test,
            num_parameters=started.num_parameters,
            start_seconds=time.perf_counter() - self._started,
            pss_bytes=processes.pss_bytes(),
            facts=started.facts,
        )
        self._socket.send(ready, parcel)
        self._say(f"joined {self.options.connect} from {self.placement.place}")

    def _require_limits(self, welcome: Arrays) -> None:
        """What is larger than we take would end our connection, again and again."""
        self._max_frame_mib = int(msgspec.json.decode(welcome["experiment"].tobytes())["cluster"]["max_frame_mib"])
        if (needed := self._max_frame_mib) > (taken := self.options.max_frame_mib):
            raise CannotTakePart(
                f"the run's arrays may have {needed} MiB, --max-frame-mib {taken} takes less; give {needed}."
            )

    def _refuse(self, reason: str) -> None:
        """We cannot take part; the run may go on without us, or with a client of this id that can."""
        self._socket.send(messages.Refusal(reason=reason[:_MAX_ERROR_CHARS]))
        self._end(reason, EXIT_REFUSED)

    def on_setup(self, items: Items) -> None:
        """The first one: another comes where the server cannot know that it arrived."""
        if self._has_agreed:
            return
        self._has_agreed = True
        self._worker.agree(self._border.incoming(items, Passage("setup_down", self.client)))

    def on_work(self, work: messages.Work, items: Items) -> None:
        """Work that was done already is answered again, not done again: training twice would change the result."""
        self._delivered = None
        if work.round == self._last_round and self._last_answer is not None:
            again = msgspec.structs.replace(self._last_answer, attempt=work.attempt)
            self._socket.send(again, self._parcel(self._worker.answer(), work.round))
        elif work.slot >= 0:
            self._do(work, items, work.slot)
        else:
            self._delivered = work, items
            self._socket.send(messages.Delivered(run=self._run, round=work.round, attempt=work.attempt))

    def on_turn(self, turn: messages.Turn) -> None:
        """Only for the latest work: one before it is not waited for any more."""
        if self._delivered is None:
            return
        work, items = self._delivered
        if (work.round, work.attempt) == (turn.round, turn.attempt):
            self._delivered = None
            self._do(work, items, turn.slot)

    def _do(self, work: messages.Work, items: Items, slot: int) -> None:
        self._current_round, asked_on = work.round, self._num_greetings
        down = self._border.incoming(items, Passage("down", self.client, work.round))
        # A step may take longer than the server waits for one that was cut off.
        with self._socket.kept(self._say_hello):
            report = self._worker.work(Order(work.round, work.train, work.evaluate), down, slot)
        seconds = dict(report.seconds)
        check_metrics(report.metrics, str(Passage("up", self.client, work.round)))
        parcel = self._parcel(report.arrays, work.round)
        require_frames_fit(parcel, self._max_frame_mib)
        if work.save:  # after the border, which may have something to remember
            started = time.perf_counter()
            if self._border.has_memory:
                self._memory.save(work.round, self._border.state())
                self._memory.keep_only(work.round, work.keep)
            self._worker.save(work.round, work.keep)
            seconds["save"] = time.perf_counter() - started
        answer = messages.Result(
            run=self._run, round=work.round, attempt=work.attempt, metrics=report.metrics, seconds=seconds
        )
        self._last_round, self._last_answer = work.round, answer
        if self._num_greetings > asked_on:  # we are asked again, and then we answer
            return
        self._say(f"round {work.round} done in {sum(report.seconds.values()):.2f} s")
        if is_large(parcel):
            self._socket.send(messages.Done(run=self._run, round=work.round, attempt=work.attempt))
        self._socket.send(answer, parcel)

    def _parcel(self, arrays: Arrays, round: int) -> Parcel:
        return self._border.outgoing(arrays, Passage("up", self.client, round))

    def _fail(self, error: Exception) -> None:
        """Our own code failed: tell the server in a few lines, keep the traceback here."""
        text = failures.sentence(error)
        if not isinstance(error, UserError):  # its sentence says it all
            with contextlib.suppress(OSError):  # of a log on a full disk
                traceback.print_exc()
            logs, place = self.options.logs, self.placement.place
            story = f"its log: {logs / log_name(self.client)}" if logs else f"its traceback: on {place}"
            text = failures.explained(error, story)
        round = max(self._current_round, 0)
        self._socket.send(messages.Failure(run=self._run, round=round, error=text[:_MAX_ERROR_CHARS]))
        self._end(f"failed: {failures.sentence(error)}", EXIT_FAILED)
