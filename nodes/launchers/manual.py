"""How to start a run by hand: the commands for the server's machine and for the clients' machines."""

import shlex
from pathlib import Path

import click

from fedsim.config import Experiment, to_layer, to_toml
from fedsim.errors import UserError
from fedsim.own import files

DEFAULT_PORT = 5555


def write_config(experiment: Experiment, folder: Path) -> Path:
    """The experiment, beside the future results folder."""
    if folder.name in ("", ".."):
        raise UserError(f"--out {folder} is no name for a new folder; give one such as runs/mine.")
    config = folder.with_name(f"{folder.name}.toml")
    try:
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(to_toml(experiment))
    except OSError as error:
        raise UserError(
            f"{config} cannot be written: {error.strerror}; choose another place with --out."
        ) from None
    return config


def print_commands(experiment: Experiment, folder: Path, port: int) -> None:
    """Writes the experiment beside the future results folder and prints what to type where."""
    config = write_config(experiment, folder)
    address, ids = f"tcp://SERVER:{port}", range(experiment.run.clients)
    hosts = min(2, len(ids))
    code = [files.copy_name(place) for place in files.places(to_layer(experiment))]
    copies = f"\n# Copy {', '.join(code)} there, into the same folder: code never travels." if code else ""
    file, out = shlex.quote(str(config)), shlex.quote(str(folder))
    click.echo(
        f"""\
# The experiment is in {config}. Replace SERVER by the address of the server's machine.

# On the server's machine: make keys, and one bundle for each machine with clients ({hosts} here), then start.
fedsim keys bundle --config {file} --connect {address} --hosts {hosts} --folder keys
fedsim server --config {file} --bind {address} --keys keys --out {out}

# On each client machine, with its own bundle; copy it by a safe way, for it holds secret keys.{copies}
fedsim client --bundle host-1.bundle"""
    )
