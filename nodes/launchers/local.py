"""A whole cluster on this machine: one process for the server, one for each client, all forked from here.

    launcher ─┬─ server
              └─ host ─┬─ client 0
                       ├─ client 1 ...

Every process dies with its parent, so killing the launcher leaves nothing behind.
"""

from nodes.client.options import ClientOptions
from nodes.client.program import run_clients
from nodes.launchers import zygote
from nodes.launchers.base import Launcher

_MAX_RESTARTS = 10
_EXIT_GRACE_SECONDS = 3.0


class LocalLauncher(Launcher):
    """All clients under one host process."""

    _host: int | None = None

    def start_clients(self, address: str) -> None:
        self._host = zygote.fork(lambda: self._host_main(address))

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
