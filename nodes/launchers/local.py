"""A whole cluster on this machine: one process for the server, one for each client, all forked from here.

    launcher ─┬─ server
              └─ host ─┬─ client 0
                       ├─ client 1 ...

Every process dies with its parent, so killing the launcher leaves nothing behind.
"""

import logging
import os

from nodes.client.options import ClientOptions
from nodes.client.program import run_clients
from nodes.launchers import zygote
from nodes.launchers.base import Launcher
from nodes.launchers.processes import describe_exit

log = logging.getLogger(__name__)

_MAX_RESTARTS = 10
_EXIT_GRACE_SECONDS = 3.0


class LocalLauncher(Launcher):
    """All clients under one host process."""

    _host: int | None = None
    _address = ""
    _num_restarts = 0

    def start_clients(self, address: str) -> None:
        self._address = address
        self._host = zygote.fork(lambda: self._host_main(address))

    def watch_clients(self) -> None:
        """The host restarts clients, and we the host: all its clients died with it. One that ended by itself had
        nothing left to do."""
        if self._host is None:
            return
        process, status = os.waitpid(self._host, os.WNOHANG)
        if not process:
            return
        self._host = None
        if os.WIFSIGNALED(status) and self._num_restarts < _MAX_RESTARTS and not self.interrupted:
            self._num_restarts += 1
            log.warning("the host of the clients %s; starting it again", describe_exit(status))
            self.start_clients(self._address)

    def finish_clients(self) -> None:
        if self._host is not None and zygote.has_ended(self._host, _EXIT_GRACE_SECONDS):
            self._host = None

    def kill_clients(self) -> None:
        if self._host is not None:
            zygote.stop_process(self._host)
            self._host = None

    def _host_main(self, address: str) -> int:
        zygote.redirect_output(self.folder.logs / "clients.log")
        options = ClientOptions.of(
            self.experiment.cluster,
            connect=address,
            ids=list(range(self.experiment.run.clients)),
            keys=self.keys_folder,
            state_dir=self.folder.checkpoints,
            # One that has answered already needs a checkpoint to go on from; the server refuses it otherwise.
            restarts=_MAX_RESTARTS,
            code=self.code,
            logs=self.folder.logs,
        )
        return run_clients(options)
