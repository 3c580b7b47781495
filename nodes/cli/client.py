"""`fedsim client`, which is also `python -m nodes.client`: one client, or a range of them, on this machine."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fedsim.errors import UserError
from fedsim.results.wording import counted
from nodes.client.options import ClientOptions, IdRange, click_options

_AUTO = "auto"


class IdsOrAuto(IdRange):
    """`auto` is known when the server's file is."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return value if value == _AUTO else super().convert(value, param, ctx)


def _params() -> list[click.Parameter]:
    """What a bundle or a file of the server knows need not be typed."""
    params = click_options()
    for param in params:
        param.required = False
        if param.name == "ids" and isinstance(param, click.Option):
            param.type = IdsOrAuto()
            param.help = f"{param.help} With --address-file, auto: the share of this task of Slurm."
    return params


@click.command(params=_params())
@click.option("--bundle", "bundle_file", type=Path, help="A file of `fedsim keys bundle`: address, ids and keys.")
@click.option(
    "--address-file",
    type=Path,
    help="The file of `fedsim server --address-file`, in place of --connect; it is waited for.",
)
def command(bundle_file: Path | None, address_file: Path | None, **options: Any) -> int:
    """Start one client or a range of them; the experiment comes from the server.

    \b
    Examples:
      fedsim client --bundle host-1.bundle
      fedsim client --connect tcp://127.0.0.1:5555 --ids 0-9
      fedsim client --connect tcp://10.0.0.1:5555 --ids 7 --keys keys/
      srun fedsim client --address-file server.json --ids auto --keys keys/
    """
    from nodes.client.program import run_clients
    from nodes.launchers import bundle

    context = click.get_current_context()
    if bundle_file is not None:
        told = bundle.read(bundle_file)
        typed = {
            name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }
        for name in sorted(typed & {"address_file", "ids", "keys"}):
            raise UserError(
                f"--{name.replace('_', '-')} cannot be given with --bundle: {bundle_file} has its own."
            )
        changed = {name: value for name, value in options.items() if name in typed}
        return run_clients(replace(told.options(), **changed), secrets=told.secrets(), by_hand=True)
    needed = ("connect", "ids") if address_file is None else ("ids",)
    for param in context.command.params:
        if param.name in needed and options[param.name] is None:
            raise click.MissingParameter(ctx=context, param=param)
    if address_file is not None:
        return _run_found_by(address_file, options)
    if options["ids"] == _AUTO:
        raise UserError("--ids auto needs --address-file: the server's file says how many clients there are.")
    return run_clients(ClientOptions(**options), by_hand=True)


def _run_found_by(path: Path, options: dict[str, Any]) -> int:
    """Where the server is, and for `auto` which clients are ours, is known when the server has written it down."""
    from nodes.client.program import run_clients
    from nodes.launchers import address_file
    from nodes.launchers.bundle import share

    if options["connect"] is not None:
        raise UserError(f"--connect cannot be given with --address-file: {path} has the address.")
    is_auto = options["ids"] == _AUTO
    task, num_tasks = address_file.task_of(os.environ) if is_auto else (0, 1)
    known = ClientOptions(**{**options, "connect": "", "ids": []})
    found = address_file.wait_for_server(path, known.patience)
    ids = share(found.clients, [1] * num_tasks)[task] if is_auto else options["ids"]
    if not ids:
        click.echo(
            f"task {task} of {num_tasks} has nothing to do: the run has {counted(found.clients, 'client')}."
        )
        return 0
    return run_clients(replace(known, connect=found.address, ids=ids), by_hand=True)
