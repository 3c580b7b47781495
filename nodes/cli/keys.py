"""`fedsim keys`: the keys with which nodes on several machines know each other."""

from pathlib import Path
from typing import Any

import click

from nodes.cli._experiment import build_experiment, experiment_options
from nodes.client.options import IdRange
from protocol import keys


@click.group()
def command() -> None:
    """Make keys for a run over several machines.

    \b
    Examples:
      fedsim keys bundle --config experiment.toml --connect tcp://10.0.0.1:5555 --hosts 2
      fedsim keys new server --folder keys
      fedsim keys new 0-49 --folder keys
    A bundle is all that one machine with clients needs. Made with `new` on the machines themselves, secrets never
    travel: copy server.key to every client's folder and each client-<id>.key to the server's; *.key_secret stay.
    """


@command.command()
@click.argument("who")
@click.option("--folder", type=Path, default=Path("keys"), show_default=True)
def new(who: str, folder: Path) -> None:
    """Make the key pair of WHO: `server`, a client id, or a range of ids such as 0-49."""
    names = (
        [keys.SERVER] if who == keys.SERVER else [keys.client_name(i) for i in IdRange().convert(who, None, None)]
    )
    for name in names:
        click.echo(keys.create(folder, name))


@command.command(params=experiment_options("clients"))
@click.option("--connect", required=True, help="The server's address as its clients know it, tcp://host:port.")
@click.option("--hosts", type=click.IntRange(1), required=True, help="Machines that share the clients.")
@click.option("--folder", type=Path, default=Path("keys"), show_default=True)
def bundle(connect: str, hosts: int, folder: Path, **options: Any) -> None:
    """Make all keys of a run: the server's in FOLDER, and one file for each machine with clients.

    FOLDER/host-1.bundle has the address, the ids and the secret keys of the first machine's clients. Copy it there
    and start them with `fedsim client --bundle host-1.bundle`; nobody else may read it.
    """
    from nodes.launchers import bundle
    from protocol.addresses import host_of

    host_of(connect, listens=False)
    experiment = build_experiment(**options, tell=lambda note: None)
    for path, ids in bundle.make_files(experiment, connect, hosts, folder):
        click.echo(f"{path}  clients {ids}")
    click.echo(f"{folder}  for the server: --keys {folder}")
