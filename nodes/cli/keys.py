"""`fedsim keys`: the keys with which nodes on several machines know each other."""

from pathlib import Path

import click

from nodes.client.options import IdRange
from protocol import keys


@click.group()
def command() -> None:
    """Make keys for a run over several machines.

    \b
    Examples:
      fedsim keys new server --folder keys
      fedsim keys new 0-49 --folder keys
    Copy server.key to every client's folder and each client-<id>.key to the server's; *.key_secret stay.
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
