"""How to start a run by hand: the commands for the server's machine and for the clients' machines."""

import shlex
from pathlib import Path

import click

from fedsim import own_files
from fedsim.config import Experiment, to_layer, to_toml
from fedsim.errors import UserError
from nodes.client.options import ClientOptions, id_range

DEFAULT_PORT = 5555


def print_commands(experiment: Experiment, folder: Path, port: int) -> None:
    """Writes the experiment beside the future results folder and prints what to type where."""
    config = folder.with_name(f"{folder.name}.toml")
    try:
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(to_toml(experiment))
    except OSError as error:
        raise UserError(
            f"{config} cannot be written: {error.strerror}; choose another place with --out."
        ) from None
    ids, address = list(range(experiment.run.clients)), f"tcp://SERVER:{port}"
    server = f"--config {shlex.quote(str(config))} --bind {address} --keys keys --out {shlex.quote(str(folder))}"
    code = tuple(own_files.copy_name(place) for place in own_files.places(to_layer(experiment)))
    options = ClientOptions.of(experiment.cluster, connect=address, ids=ids, keys=Path("keys"), code=code)
    words = options.between_machines().words()
    click.echo(
        f"""\
# The experiment is in {config}. Replace SERVER by the address of the server's machine.

# On the server's machine: make its key, collect every client's public key (client-*.key) in keys/, then start.
fedsim keys new server --folder keys
python -m nodes.server {server}

# On each client machine: make keys for its clients, send client-*.key to the server, fetch server.key from it.\
{_example_of_sharing(ids)}{f"{chr(10)}# Copy {', '.join(code)} to it: code never travels." if code else ""}
fedsim keys new {id_range(ids)} --folder keys
python -m nodes.client {shlex.join(words)}"""
    )


def _example_of_sharing(ids: list[int]) -> str:
    if len(ids) == 1:
        return ""
    half = (len(ids) + 1) // 2
    halves = f"{id_range(ids[:half])} and {id_range(ids[half:])}"
    return f"\n# Several machines share the ids {id_range(ids)} among them, for example {halves}."
