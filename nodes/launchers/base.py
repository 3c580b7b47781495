"""What all launchers share: the server as a forked child, its events on the screen, a clean end of everything."""

import contextlib
import json
import os
import select
import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedsim.config import to_layer
from fedsim.errors import UserError
from fedsim.own import files
from fedsim.results.folder import RunFolder
from nodes.display.run import Display
from nodes.launchers import processes, zygote
from nodes.server.events import pipe_watcher
from nodes.server.program import CTRL_C, WARNING, security_from, serve
from protocol import keys
from protocol.errors import AddressUnusable

MAX_RESTARTS = 10
"""Of a client, and of a host."""
_STOPS = (signal.SIGINT, signal.SIGTERM, WARNING)
_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class LaunchOptions:
    """How the server of a run is started."""

    address: str = "tcp://127.0.0.1:*"
    curve: bool = False
    resume: bool = False


class ServerKilled(UserError):
    """And with it the run, which has no summary; what was saved can be gone on with."""


class Launcher(ABC):
    """Starts a server and, in a way of its own, clients; watches them; leaves nothing running."""

    def __init__(self, folder: RunFolder, display: Display, options: LaunchOptions):
        self.folder = folder
        self.experiment = folder.experiment()
        self.keys_folder: Path | None = None
        if options.curve:
            with folder.in_use():  # a run that is going on needs the keys that it has
                self.keys_folder = _make_keys(folder, self.experiment.run.clients)
        self._display = display
        self._options = options
        self._server: int | None = None
        self._interrupts = 0
        self._interrupted_by = ""

    @abstractmethod
    def start_clients(self, address: str) -> None:
        """Start all clients; they are told the address and nothing else of the experiment."""

    def watch_clients(self) -> None:
        """Called again and again while the run goes on: what was started and died is started again."""

    @abstractmethod
    def finish_clients(self) -> None:
        """The run is over and clients were told so: wait for them a moment."""

    @abstractmethod
    def kill_clients(self) -> None:
        """End whatever clients are left, at once."""

    @property
    def code(self) -> tuple[str, ...]:
        """The own code of the experiment, as the run folder has it."""
        return tuple(files.places(to_layer(self.experiment)))

    @property
    def interrupted(self) -> bool:
        """Whether the user asked for an end, and not the run itself."""
        return self._interrupts > 0

    def run(self) -> int:
        """Start everything and watch it to its end; returns the exit code. Until then Ctrl-C is the launcher's."""
        before = {number: signal.getsignal(number) for number in _STOPS}
        for number in (signal.SIGTERM, WARNING):  # as Ctrl-C, until there is a run: no key may stay behind
            signal.signal(number, signal.default_int_handler)
        try:
            return self._run()
        finally:
            self.kill_clients()
            if self._server is not None:
                zygote.stop_process(self._server)
            if self.keys_folder is not None:  # a run that is resumed has keys of its own
                shutil.rmtree(self.keys_folder, ignore_errors=True)
            self._display.close()
            if not self.interrupted:  # or one Ctrl-C more would cut off what is still to be said
                for number, handler in before.items():
                    signal.signal(number, handler)

    def _run(self) -> int:
        events_in, events_out = os.pipe()
        address_in, address_out = os.pipe()
        self._server = zygote.fork(
            lambda: self._server_main(address_out, events_in, events_out), death_signal=signal.SIGTERM
        )
        os.close(events_out)
        os.close(address_out)
        with os.fdopen(address_in) as pipe:
            address = pipe.readline().strip()
        if not address.startswith("tcp://"):
            self._reap_server()
            raise UserError(address or f"the server did not start; see {self.folder.logs / 'server.log'}.")
        try:
            self.start_clients(address)
        except UserError:
            self._take_back()
            raise
        for number in _STOPS:
            signal.signal(number, self._on_interrupt)
        for line in self._lines(events_in):
            self._display.on_event(json.loads(line))
        status = self._reap_server()
        if os.WIFSIGNALED(status):
            raise ServerKilled(f"the server {processes.describe_exit(status)}.")
        self.finish_clients()
        return os.waitstatus_to_exitcode(status)

    def _take_back(self) -> None:
        """No client could be started: a run that could not begin leaves nothing behind."""
        assert self._server is not None
        self.kill_clients()
        zygote.stop_process(self._server)
        self._server = None
        if not self._options.resume:
            shutil.rmtree(self.folder.path)

    def _lines(self, events_in: int) -> Iterator[bytes]:
        """What the server tells until it closes its end; meanwhile a look after the clients.

        A line that was cut off when the server was killed does not count.
        """
        rest, told_interrupt = b"", False
        with os.fdopen(events_in, "rb", buffering=0) as pipe:
            while True:
                ready, _, _ = select.select([pipe], [], [], _LOOK_SECONDS)
                if self.interrupted and not told_interrupt:
                    told_interrupt = True
                    self._display.on_event({"event": "interrupted", "by": self._interrupted_by})
                self.watch_clients()
                if not ready:
                    continue
                if not (told := pipe.read(1 << 16)):
                    return
                *lines, rest = (rest + told).split(b"\n")
                yield from lines

    def _reap_server(self) -> int:
        assert self._server is not None
        _, status = os.waitpid(self._server, 0)
        self._server = None
        return status

    def _on_interrupt(self, number: int, _: object) -> None:
        """The first Ctrl-C ends the run with the results so far, the second ends it now.

        Without its server the run is over, and `run` ends the clients: a handler may be interrupted by itself.
        """
        self._interrupts += 1
        self._interrupted_by = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        with contextlib.suppress(ProcessLookupError):
            if self._server is not None:
                first = CTRL_C if number == signal.SIGINT else number
                os.kill(self._server, first if self._interrupts == 1 else signal.SIGKILL)

    def _server_main(self, address_out: int, events_in: int, events_out: int) -> int:
        signal.signal(WARNING, signal.SIG_DFL)  # as SIGTERM, until both can be heeded
        os.close(events_in)  # or a server without a launcher would wait for ever for itself to read its events
        zygote.redirect_output(self.folder.logs / "server.log")

        has_told = False

        def tell(text: str) -> None:
            nonlocal has_told
            has_told = True
            os.write(address_out, f"{text}\n".encode())
            os.close(address_out)

        try:
            return serve(
                self.folder,
                self._options.address,
                security=security_from(self.keys_folder),
                resume=self._options.resume,
                watcher=pipe_watcher(events_out),
                on_bound=lambda addresses: tell(addresses[0]),
            )
        except (AddressUnusable, UserError) as error:
            if not has_told:  # before it was bound: nothing has started yet
                tell(str(error))
            return error.exit_code


def _make_keys(folder: RunFolder, num_clients: int) -> Path:
    path = folder.path / "keys"
    shutil.rmtree(path, ignore_errors=True)  # of a launcher that was killed
    keys.create(path, keys.SERVER)
    for client in range(num_clients):
        keys.create(path, keys.client_name(client))
    return path
