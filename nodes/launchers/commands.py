"""How to start a run by hand: the commands for the server's machine and for the clients' machines."""

from pathlib import Path

import click

from fedsim.config import Experiment, to_toml


def print_commands(experiment: Experiment, folder: Path) -> int:
    """Writes the experiment beside the future results folder and prints what to type where."""
    config = folder.with_name(f"{folder.name}.toml")
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(to_toml(experiment))
    last = experiment.run.clients - 1
    click.echo(
        f"""\
# The experiment is in {config}. Replace SERVER by the address of the server's machine.

# On the server's machine: make its key, collect every client's public key (client-*.key) in keys/, then start.
fedsim keys new server --folder keys
python -m nodes.server --config {config} --bind tcp://SERVER:5555 --keys keys --out {folder}

# On each client machine: make keys for its clients, send client-*.key to the server, fetch server.key from it.
# Several machines share the ids 0-{last} among them, for example 0-{last // 2} and {last // 2 + 1}-{last}.
fedsim keys new 0-{last} --folder keys
python -m nodes.client --connect tcp://SERVER:5555 --ids 0-{last} --keys keys --heartbeat 5"""
    )
    return 0
