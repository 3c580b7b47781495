"""How to start a run by hand: the commands for the server's machine and for the clients' machines."""

import shlex
from pathlib import Path

import click

from fedsim.config import Cluster, Experiment, to_toml
from fedsim.errors import UserError

DEFAULT_PORT = 5555
_HEARTBEAT_SECONDS = 5.0
"""Between machines a connection may die without a word, so clients send heartbeats whatever the config says."""


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
    last = experiment.run.clients - 1
    ids, address = _ids(0, last), f"tcp://SERVER:{port}"
    server = f"--config {shlex.quote(str(config))} --bind {address} --keys keys --out {shlex.quote(str(folder))}"
    clients = f"--connect {address} --ids {ids} --keys keys {_client_options(experiment.cluster)}"
    click.echo(
        f"""\
# The experiment is in {config}. Replace SERVER by the address of the server's machine.

# On the server's machine: make its key, collect every client's public key (client-*.key) in keys/, then start.
fedsim keys new server --folder keys
python -m nodes.server {server}

# On each client machine: make keys for its clients, send client-*.key to the server, fetch server.key from it.\
{_example_of_sharing(last)}
fedsim keys new {ids} --folder keys
python -m nodes.client {clients}"""
    )


def _client_options(cluster: Cluster) -> str:
    """What clients cannot take from the server, because they need it before they have found one."""
    options = [f"--heartbeat {cluster.heartbeat_seconds or _HEARTBEAT_SECONDS:g}"]
    if cluster.patience_seconds != Cluster().patience_seconds:
        options.append(f"--patience {cluster.patience_seconds:g}")
    if cluster.slots != Cluster().slots:
        options.append(f"--slots {cluster.slots}")
    if cluster.max_frame_mib != Cluster().max_frame_mib:
        options.append(f"--max-frame-mib {cluster.max_frame_mib}")
    return " ".join(options)


def _example_of_sharing(last: int) -> str:
    if last == 0:
        return ""
    halves = f"{_ids(0, last // 2)} and {_ids(last // 2 + 1, last)}"
    return f"\n# Several machines share the ids {_ids(0, last)} among them, for example {halves}."


def _ids(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
