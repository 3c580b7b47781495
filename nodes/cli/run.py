"""`fedsim run`, which is also run_cluster.py: an experiment on this machine from one command."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fedsim.config import Experiment
from fedsim.errors import UserError
from nodes.cli import _experiment
from nodes.cli._experiment import build_experiment, default_folder, refuse_with, refuse_with_resume, run_options

_EXAMPLES = """
\b
Examples:
  fedsim run                                         FedTGP on digits, 10 clients
  fedsim run --method fedproto --rounds 50 --seed 2
  fedsim run --dataset fmnist --clients 20 --partition pathological
  fedsim run --method fedtgp --set method.tau=10 --set train.shuffle=true
  fedsim run --checkpoint-every 5 --out runs/long    later: fedsim run --resume runs/long
"""


@click.command(epilog=_EXAMPLES, params=run_options())
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of the server; 0: any that is free.")
@click.option("--curve", is_flag=True, help="Encrypt and authenticate, as between machines.")
@click.option("--launcher", type=click.Choice(["local", "ray"]), default="local", help="Who starts the clients.")
@click.option("--ray-address", help="A running Ray cluster (auto); without it, Ray on this machine.")
@click.option("--in-process", is_flag=True, help="No processes, no sockets: the oracle.")
@click.option("--print-commands", is_flag=True, help="Print how to start it by hand on several machines.")
def command(
    out: Path | None,
    resume: Path | None,
    port: int,
    curve: bool,
    launcher: str,
    ray_address: str | None,
    in_process: bool,
    quiet: bool,
    no_report: bool,
    print_commands: bool,
    **options: Any,
) -> int:
    """Run an experiment: a server and its clients as processes of this machine.

    Without options: FedTGP on digits with 10 heterogeneous clients, in less than a minute.
    """
    _refuse_what_would_be_ignored(click.get_current_context().params, options)
    if print_commands:
        from nodes.launchers import manual

        experiment = build_experiment(**options)
        _experiment.check(experiment)
        manual.print_commands(experiment, out or default_folder(experiment), port or manual.DEFAULT_PORT)
        return 0

    from fedsim.results.folder import RunFolder
    from nodes.display.run import make_display
    from nodes.inprocess import run_in_process
    from nodes.launchers import zygote
    from nodes.launchers.base import Launcher, LaunchOptions
    from nodes.launchers.local import LocalLauncher
    from nodes.launchers.ray import RayLauncher, require_ray

    if launcher == "ray":
        require_ray()
    experiment = build_experiment(**options) if resume is None else RunFolder.open(resume).experiment()
    if in_process:
        _refuse_what_needs_processes(experiment)
    zygote.preload()
    folder = _experiment.run_folder(experiment, out, resume)
    console = Console(highlight=False)
    display = make_display(console, experiment.run.rounds, quiet=quiet)
    if in_process:
        code = run_in_process(folder, display.on_event)
        display.close()
    else:
        launch = LaunchOptions(f"tcp://127.0.0.1:{port or '*'}", curve=curve, resume=resume is not None)
        chosen: Launcher = LocalLauncher(folder, display, launch)
        if launcher == "ray":
            chosen = RayLauncher(folder, display, ray_address)
        code = chosen.run()
    _experiment.show_end(console, folder, no_report=no_report)
    return code


def _refuse_what_would_be_ignored(given: Mapping[str, Any], of_experiment: Mapping[str, Any]) -> None:
    """`given` are all options of the command, `of_experiment` those among them that say what is run."""
    port, in_process = given["port"] or None, given["in_process"]
    on_ray = {"launcher ray": given["launcher"] == "ray", "ray_address": given["ray_address"]}
    if given["resume"] is not None:
        print_commands = given["print_commands"]
        refuse_with_resume(out=given["out"], in_process=in_process, print_commands=print_commands, **of_experiment)
        refuse_with("--resume", "on Ray, clients keep their states only for one run", **on_ray)
    if given["print_commands"]:
        refuse_with("--print-commands", "it is for a start by hand", in_process=in_process, **on_ray)
    if in_process:
        unused = {"port": port, "curve": given["curve"], "slots": given["slots"] or None, **on_ray}
        saving = {"checkpoint_every": given["checkpoint_every"] or None}
        refuse_with("--in-process", "it has no sockets, processes or checkpoints", **unused, **saving)
    if given["launcher"] == "ray":
        refuse_with("--launcher ray", "its server takes any free port", port=port)
    elif given["ray_address"] is not None:
        raise UserError("--ray-address says where Ray runs, so it needs --launcher ray.")


def _refuse_what_needs_processes(experiment: Experiment) -> None:
    """The same from a file or --set as from an option of its own."""
    for name in ("slots", "checkpoint_every"):
        if value := getattr(experiment.cluster, name):
            raise UserError(
                f"cluster.{name} = {value} cannot be had with --in-process: it has no sockets, processes or "
                f"checkpoints; add --set cluster.{name}=0."
            )
