"""A whole cluster on this machine: one process for the server, one for each client, all forked from here.

    launcher ─┬─ server
              └─ host ─┬─ client 0
                       ├─ client 1 ...

Every process dies with its parent, so killing the launcher leaves nothing behind.
"""

import json
import os
import select
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedsim.config import Experiment
from fedsim.errors import UserError
from fedsim.results.folder import RunFolder
from nodes import processes, zygote
from nodes.client import Settings, client_keys, run_client
from nodes.display import Display
from nodes.events import Event, pipe_watcher
from nodes.placement import place_client, visible_gpus
from nodes.server import security_from, serve
from protocol import keys
from protocol.errors import AddressUnusable
from protocol.limits import MEBIBYTE, Limits

_MAX_RESTARTS = 10
_EXIT_GRACE_SECONDS = 3.0


@dataclass(frozen=True)
class LocalOptions:
    """How the cluster of one machine is started."""

    address: str = "tcp://127.0.0.1:*"
    curve: bool = False
    resume: bool = False


def run_local(folder: RunFolder, display: Display, options: LocalOptions) -> int:
    """Start everything, watch it, and leave nothing running; returns the exit code."""
    launcher = _Launcher(folder, folder.experiment(), display, options)
    try:
        return launcher.run()
    finally:
        launcher.stop()
        display.close()


class _Launcher:
    def __init__(self, folder: RunFolder, experiment: Experiment, display: Display, options: LocalOptions):
        self._folder = folder
        self._experiment = experiment
        self._display = display
        self._options = options
        self._keys_folder = _make_keys(folder, experiment.run.clients) if options.curve else None
        self._running: dict[str, int] = {}
        self._interrupts = 0

    def run(self) -> int:
        events_in, events_out = os.pipe()
        address_in, address_out = os.pipe()
        self._running["server"] = zygote.fork(lambda: self._server_main(address_out, events_out))
        os.close(events_out)
        os.close(address_out)
        with os.fdopen(address_in) as pipe:
            address = pipe.readline().strip()
        if not address.startswith("tcp://"):
            os.waitpid(self._running.pop("server"), 0)
            raise UserError(address or f"the server did not start; see {self._folder.logs / 'server.log'}.")
        self._running["clients"] = zygote.fork(lambda: self._host_main(address))
        previous = signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            self._watch(events_in)
            return self._finish()
        finally:
            signal.signal(signal.SIGINT, previous)
            os.close(events_in)

    def stop(self) -> None:
        """Whatever still runs is ended: the clients' host first, so that it restarts nobody."""
        for name in ("clients", "server"):
            if process := self._running.pop(name, None):
                zygote.stop_process(process)

    def _watch(self, events_in: int) -> None:
        """Show events until the server closes its end of the pipe."""
        buffer = b""
        while True:
            if not select.select([events_in], [], [], 0.5)[0]:
                continue
            chunk = os.read(events_in, 1 << 16)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                event: Event = json.loads(line)
                self._display.on_event(event)

    def _finish(self) -> int:
        _, status = os.waitpid(self._running.pop("server"), 0)
        if os.WIFSIGNALED(status):
            self.stop()
            hint = (
                f"; go on with: --resume {self._folder.path}" if self._experiment.cluster.checkpoint_every else ""
            )
            raise UserError(f"the server {processes.describe_exit(status)}{hint}.")
        clients = self._running.pop("clients")
        if not zygote.has_ended(clients, _EXIT_GRACE_SECONDS):
            zygote.stop_process(clients)
        return os.waitstatus_to_exitcode(status)

    def _on_interrupt(self, *_: object) -> None:
        """The first Ctrl-C ends the run with the results so far, the second ends it now."""
        self._interrupts += 1
        number = signal.SIGTERM if self._interrupts == 1 else signal.SIGKILL
        for name in ("server",) if self._interrupts == 1 else ("clients", "server"):
            if process := self._running.get(name):
                os.kill(process, number)

    def _server_main(self, address_out: int, events_out: int) -> int:
        zygote.redirect_output(self._folder.logs / "server.log")

        def tell(text: str) -> None:
            os.write(address_out, f"{text}\n".encode())
            os.close(address_out)

        try:
            return serve(
                self._folder,
                self._options.address,
                security=security_from(self._keys_folder) if self._keys_folder else None,
                resume=self._options.resume,
                watcher=pipe_watcher(events_out),
                on_bound=tell,
            )
        except (AddressUnusable, UserError) as error:
            tell(str(error))
            return 2

    def _host_main(self, address: str) -> int:
        zygote.redirect_output(self._folder.logs / "clients.log")
        cluster = self._experiment.cluster
        start = client_starter(
            lambda client: Settings(
                address=address,
                client=client,
                placement=place_client(
                    client,
                    host=socket.gethostname(),
                    gpus=visible_gpus(dict(os.environ)),
                    cores=processes.cores(),
                    slots=cluster.slots,
                ),
                state_folder=self._folder.checkpoints,
                patience_seconds=cluster.patience_seconds,
                heartbeat_seconds=cluster.heartbeat_seconds,
                limits=Limits(max_frame_bytes=cluster.max_frame_mib * MEBIBYTE),
                **client_keys(self._keys_folder, client),
            ),
            logs=self._folder.logs,
        )
        restarts = _MAX_RESTARTS if cluster.checkpoint_every else 0
        return zygote.Host(start, restarts).run(range(self._experiment.run.clients))


def client_starter(settings: Callable[[int], Settings], logs: Path | None) -> Callable[[int], int]:
    """What a host calls to fork one client; with `logs` each client has a log file of its own."""

    def start(client: int) -> int:
        def main() -> int:
            if logs is not None:
                zygote.redirect_output(logs / f"client-{client:05d}.log")
            return run_client(settings(client))

        return zygote.fork(main)

    return start


def _make_keys(folder: RunFolder, num_clients: int) -> Path:
    path = folder.path / "keys"
    if not path.exists():
        keys.create(path, keys.SERVER)
        for client in range(num_clients):
            keys.create(path, keys.client_name(client))
    return path
