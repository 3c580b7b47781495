"""A whole cluster on this machine: one process for the server, one for each client, all forked from here.

    launcher ─┬─ server
              └─ host ─┬─ client 0
                       ├─ client 1 ...

Every process dies with its parent, so killing the launcher leaves nothing behind.
"""

import logging
import os

from fedsim.data import Federation
from nodes.client.options import ClientOptions
from nodes.client.program import run_clients
from nodes.launchers import capacity, zygote
from nodes.launchers.base import MAX_RESTARTS, Launcher
from nodes.launchers.processes import describe_exit
from nodes.launchers.relay import RelayProcess

log = logging.getLogger(__name__)

_EXIT_GRACE_SECONDS = 3.0


class LocalLauncher(Launcher):
    """All clients under one host process."""

    _host: int | None = None
    _relay: RelayProcess | None = None
    _address = ""
    _num_restarts = 0

    def start_clients(self, address: str) -> None:
        self._address = address
        notes: list[str] = []
        if self._relay is None and (relay := RelayProcess.between(self.experiment, address, self.folder.logs)):
            self._relay = relay
            notes = relay.notes
        options = self._client_options(address)
        plan = capacity.plan_host(options, capacity.Expected.of(self.experiment, Federation(self.experiment)))
        self._host = zygote.fork(lambda: self._host_main(options, plan))
        self._tell(*notes, *plan.notes)  # only now: a live view draws in a thread, which no fork survives

    def watch_clients(self) -> None:
        """The host restarts clients, and we the host where it was killed: all its clients died with it. One that
        ended after its clients has nothing left to do: they were told to stop, or have said why they ended. One
        that crashed would do so again."""
        if self._host is None:
            return
        process, status = os.waitpid(self._host, os.WNOHANG)
        if not process:
            return
        self._host = None
        if os.WIFSIGNALED(status) and self._num_restarts < MAX_RESTARTS and not self.interrupted:
            self._num_restarts += 1
            log.warning("the host of the clients %s; starting it again", describe_exit(status))
            self.start_clients(self._address)
        elif not self.interrupted and (os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == zygote.EXIT_CRASHED):
            how = f"the host of the clients {describe_exit(status)}, and all its clients have died with it"
            self._tell(f"{how}; see {self.folder.logs / 'clients.log'}")

    def finish_clients(self) -> None:
        if self._host is not None and zygote.has_ended(self._host, _EXIT_GRACE_SECONDS):
            self._host = None
        if self._relay is not None:
            self._tell(*self._relay.stop())
            self._relay = None

    def kill_clients(self) -> None:
        if self._host is not None:
            zygote.stop_process(self._host)
            self._host = None
        if self._relay is not None:
            self._relay.stop()
            self._relay = None

    def _tell(self, *notes: str) -> None:
        for note in notes:
            self._display.on_event({"event": "note", "text": note})

    def _host_main(self, options: ClientOptions, plan: capacity.HostPlan) -> int:
        zygote.redirect_output(self.folder.logs / "clients.log")
        return zygote.code_of_host(lambda: run_clients(options, plan))

    def _client_options(self, address: str) -> ClientOptions:
        return ClientOptions.of(
            self.experiment.cluster,
            connect=self._relay.address if self._relay else address,
            port_step=1 if self._relay else 0,
            ids=list(range(self.experiment.run.clients)),
            keys=self.keys_folder,
            state_dir=self.folder.checkpoints,
            # One that has answered already needs a checkpoint to go on from; the server refuses it otherwise.
            restarts=MAX_RESTARTS,
            code=self.code,
            logs=self.folder.logs,
        )
