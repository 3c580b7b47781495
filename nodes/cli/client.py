"""`fedsim client`, which is also `python -m nodes.client`: one client, or a range of them, on this machine."""

from pathlib import Path
from typing import Any

import click

from fedsim.errors import UserError


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


@click.command()
@click.option("--connect", "address", required=True, help="The server's address, tcp://host:port.")
@click.option("--ids", "--id", type=IdRange(), required=True, help="Which clients: 7, 0-49 or 0-9,20-29.")
@click.option("--keys", "keys_folder", type=Path, help="Folder with server.key and client-<id>.key_secret.")
@click.option("--slots", type=int, default=0, help="Clients that train at once; 0: one per core or GPU.")
@click.option("--place", help="Name of this host in the run; hosts of one name share their slots.")
@click.option(
    "--state-dir", type=Path, default=Path("fedsim-state"), show_default=True, help="Where clients save."
)
@click.option("--patience", type=float, default=60.0, show_default=True, help="Seconds without a server.")
@click.option("--heartbeat", type=float, default=0.0, help="Seconds between heartbeats; 0: none.")
@click.option("--restarts", type=int, default=3, show_default=True, help="How often a killed client is restarted.")
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
    logs: Path | None,
) -> int:
    """Start one client or a range of them; the experiment comes from the server.

    \b
    Examples:
      fedsim client --connect tcp://127.0.0.1:5555 --ids 0-9
      fedsim client --connect tcp://10.0.0.1:5555 --ids 7 --keys keys/
    """
    import socket

    from nodes import processes, zygote
    from nodes.client import Settings, client_keys
    from nodes.launchers.local import client_starter
    from nodes.placement import place_client, usable_gpus

    if not address.startswith("tcp://"):
        raise UserError(f"{address} is no server address; write tcp://host:port.")
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
            **secrets[client],
        )

    return zygote.Host(client_starter(settings, logs), restarts, forward_interrupt=True).run(ids)
