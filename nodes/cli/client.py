"""`fedsim client`, which is also `python -m nodes.client`: one client, or a range of them, on this machine."""

import math
from pathlib import Path
from typing import Any

import click

from fedsim.config import Cluster

_MAX_SLOTS = 4096  # as many as a Hello may name
_MAX_HEARTBEAT_SECONDS = 86_400  # ZeroMQ counts milliseconds in 32 bits


class IdRange(click.ParamType[list[int]]):
    """`7`, `0-49` or `0-9,20-29`."""

    name = "ids"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        if isinstance(value, list):
            return value
        ids: list[int] = []
        for part in str(value).split(","):
            first, _, last = part.strip().partition("-")
            if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
                self.fail(f"{value!r} is no range of client ids; write 7, 0-49 or 0-9,20-29.", param, ctx)
            ids += range(int(first), int(last or first) + 1)
        return sorted(set(ids))


class Seconds(click.FloatRange):
    """A duration; click's own range lets `nan` through."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return seconds


@click.command()
@click.option("--connect", "address", required=True, help="The server's address, tcp://host:port.")
@click.option("--ids", "--id", type=IdRange(), required=True, help="Which clients: 7, 0-49 or 0-9,20-29.")
@click.option("--keys", "keys_folder", type=Path, help="Folder with server.key and client-<id>.key_secret.")
@click.option(
    "--slots",
    type=click.IntRange(0, _MAX_SLOTS),
    default=0,
    help="Clients that train at once; 0: one per core or GPU.",
)
@click.option("--place", help="Name of this host in the run; hosts of one name share their slots.")
@click.option(
    "--state-dir", type=Path, default=Path("fedsim-state"), show_default=True, help="Where clients save."
)
@click.option("--patience", type=Seconds(0), default=60.0, show_default=True, help="Seconds without a server.")
@click.option(
    "--heartbeat",
    type=Seconds(0, _MAX_HEARTBEAT_SECONDS),
    default=0.0,
    help="Seconds between heartbeats; 0: none.",
)
@click.option(
    "--restarts",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="How often a killed client is restarted.",
)
@click.option(
    "--max-frame-mib",
    type=click.IntRange(1),
    default=Cluster().max_frame_mib,
    show_default=True,
    help="Largest single array; the same as the server's cluster.max_frame_mib.",
)
@click.option("--logs", type=Path, help="A folder for one log file a client; by default all print here.")
def command(
    address: str,
    ids: list[int],
    keys_folder: Path | None,
    slots: int,
    place: str | None,
    state_dir: Path,
    patience: float,
    heartbeat: float,
    restarts: int,
    max_frame_mib: int,
    logs: Path | None,
) -> int:
    """Start one client or a range of them; the experiment comes from the server.

    \b
    Examples:
      fedsim client --connect tcp://127.0.0.1:5555 --ids 0-9
      fedsim client --connect tcp://10.0.0.1:5555 --ids 7 --keys keys/
    """
    import socket

    from nodes.client.node import Settings, client_keys
    from nodes.launchers import processes, zygote
    from nodes.launchers.local import client_starter
    from nodes.launchers.placement import place_client, usable_gpus
    from protocol.addresses import host_of
    from protocol.limits import MEBIBYTE, Limits

    host_of(address, listens=False)  # refused here, once, and not by every client
    secrets = {client: client_keys(keys_folder, client) for client in ids}
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
    zygote.preload()
    gpus, cores = usable_gpus(), processes.cores()
    host = place or socket.gethostname()

    def settings(client: int) -> Settings:
        return Settings(
            address=address,
            client=client,
            placement=place_client(client, host=host, gpus=gpus, cores=cores, slots=slots),
            state_folder=state_dir,
            patience_seconds=patience,
            heartbeat_seconds=heartbeat,
            limits=Limits(max_frame_bytes=max_frame_mib * MEBIBYTE),
            **secrets[client],
        )

    starter = client_starter(settings, logs)
    return zygote.Host(starter, restarts, forward_interrupt=True, own_logs=logs is not None).run(ids)
