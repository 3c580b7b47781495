"""A whole cluster on this machine: one process for the server, one for each client, all forked from here.

    launcher ─┬─ server
              └─ host ─┬─ client 0
                       ├─ client 1 ...

Every process dies with its parent, so killing the launcher leaves nothing behind.
"""

import socket
from collections.abc import Callable
from pathlib import Path

from nodes.client.node import Settings, client_keys, run_client
from nodes.launchers import processes, zygote
from nodes.launchers.base import Launcher
from nodes.launchers.placement import place_client, usable_gpus
from protocol.limits import MEBIBYTE, Limits

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
        cluster = self.experiment.cluster
        gpus, cores = usable_gpus(cluster.device), processes.cores()

        def settings(client: int) -> Settings:
            return Settings(
                address=address,
                client=client,
                placement=place_client(
                    client, host=socket.gethostname(), gpus=gpus, cores=cores, slots=cluster.slots
                ),
                state_folder=self.folder.checkpoints,
                patience_seconds=cluster.patience_seconds,
                heartbeat_seconds=cluster.heartbeat_seconds,
                limits=Limits(max_frame_bytes=cluster.max_frame_mib * MEBIBYTE),
                **client_keys(self.keys_folder, client),
            )

        # One that has answered already needs a checkpoint to go on from; the server refuses it otherwise.
        host = zygote.Host(client_starter(settings, self.folder.logs), _MAX_RESTARTS)
        return host.run(range(self.experiment.run.clients))


def client_starter(settings: Callable[[int], Settings], logs: Path | None) -> Callable[[int], int]:
    """What a host calls to fork one client; with `logs` each client has a log file of its own."""

    def start(client: int) -> int:
        def main() -> int:
            if logs is not None:
                zygote.redirect_output(logs / f"client-{client:05d}.log")
            return run_client(settings(client))

        return zygote.fork(main)

    return start
