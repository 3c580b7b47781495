"""`fedsim run`, which is also run_cluster.py: an experiment on this machine from one command."""

import pdb
import traceback
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from fedsim.config import Experiment
from fedsim.errors import UserError
from nodes.cli import _experiment
from nodes.cli._experiment import build_experiment, default_folder, refuse_with, refuse_with_resume, run_options

if TYPE_CHECKING:
    from fedsim.results.folder import RunFolder
    from nodes.display.run import Display

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
@click.option(
    "--launcher", type=click.Choice(["local", "ssh", "slurm", "ray"]), help="Who starts the clients; or --hosts."
)
@click.option("--hosts", help="Machines to start clients on, over ssh: one,two,user@three.")
@click.option("--address", help="Name of this machine as the hosts know it; by default as ssh, Slurm or Ray do.")
@click.option("--remote-python", help="Python of the hosts, with fedsim; by default the same path as here.")
@click.option("--ray-address", help="A running Ray cluster (auto); without it, Ray on this machine.")
@click.option("--in-process", is_flag=True, help="No processes, no sockets: the oracle.")
@click.option("--debug", is_flag=True, help="With --in-process: open the debugger where something fails.")
@click.option("--print-commands", is_flag=True, help="Print how to start it by hand on several machines.")
def command(
    out: Path | None,
    resume: Path | None,
    port: int,
    curve: bool,
    launcher: str | None,
    hosts: str | None,
    address: str | None,
    remote_python: str | None,
    ray_address: str | None,
    in_process: bool,
    debug: bool,
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

        experiment = build_experiment(**options, tell=lambda note: click.echo(f"# {note}"))
        _experiment.check(experiment)
        manual.print_commands(experiment, out or default_folder(experiment), port or manual.DEFAULT_PORT)
        return 0

    from fedsim.results.folder import RunFolder
    from nodes.checkpoint import Checkpoints
    from nodes.display.run import go_on_line, make_display
    from nodes.display.tracking import tracked
    from nodes.launchers import choice, zygote
    from nodes.launchers.base import ServerKilled

    chosen = choice.Chosen.of(
        launcher,
        port=port,
        curve=curve,
        hosts=hosts,
        address=address,
        remote_python=remote_python,
        ray_address=ray_address,
    )
    zygote.use_one_thread()
    experiment = build_experiment(**options) if resume is None else RunFolder.open(resume).experiment()
    if in_process:
        _refuse_what_needs_processes(experiment)
    else:
        chosen.check(experiment)
    zygote.preload()
    folder = _experiment.run_folder(experiment, out, resume)
    console = Console(highlight=False)
    display = make_display(console, experiment.run.rounds, quiet=quiet)
    interrupted = False
    with tracked(folder, lambda text: console.print(Text(text, style="yellow"), soft_wrap=True)):
        if in_process:
            code = _run_in_process(folder, display, debug=debug)
        else:
            started = chosen.launcher(folder, display, resume=resume is not None)
            try:
                code = started.run()
            except ServerKilled as error:
                saved = Checkpoints(folder.checkpoints).exist
                line = go_on_line(_experiment.resume_command(folder), saved=saved)
                raise UserError(f"{error}\n{line}") from None
            interrupted = started.interrupted
        _experiment.show_end(console, folder, no_report=no_report, interrupted=interrupted)
    return code


def _run_in_process(folder: "RunFolder", display: "Display", *, debug: bool) -> int:
    """What fails is told in a few lines, or looked at in the debugger; the whole traceback is in the folder."""
    from nodes import failures
    from nodes.inprocess import run_in_process

    try:
        with closing(display):
            return run_in_process(folder, display.on_event)
    except UserError:
        raise
    except Exception as error:
        log = folder.logs / "traceback.log"
        log.write_text("".join(traceback.format_exception(error)))
        who = "".join(f"{note}: " for note in getattr(error, "__notes__", ())) or "the run failed: "
        click.echo(f"error: {who}{failures.explained(error, f'its traceback: {log}')}", err=True)
        if debug:
            pdb.post_mortem(error.__traceback__)
        return 1


def _refuse_what_would_be_ignored(given: Mapping[str, Any], of_experiment: Mapping[str, Any]) -> None:
    """`given` are all options of the command, `of_experiment` those among them that say what is run."""
    in_process, print_commands = given["in_process"], given["print_commands"]
    elsewhere = {name: given[name] for name in ("launcher", "hosts", "address", "remote_python", "ray_address")}
    if given["resume"] is not None:
        refuse_with_resume(out=given["out"], in_process=in_process, print_commands=print_commands, **of_experiment)
    if given["debug"] and not in_process:
        raise UserError("--debug looks into the process that fails, so it needs --in-process.")
    if print_commands:
        refuse_with("--print-commands", "it is for a start by hand", in_process=in_process, **elsewhere)
    if in_process:
        unused = {"port": given["port"] or None, "curve": given["curve"], "slots": given["slots"] or None}
        saving = {"checkpoint_every": given["checkpoint_every"] or None}
        refuse_with("--in-process", "it has no sockets, processes or checkpoints", **unused, **saving, **elsewhere)


def _refuse_what_needs_processes(experiment: Experiment) -> None:
    """The same from a file or --set as from an option of its own."""
    world = experiment.world_config()
    if (world.link or world.links) and not (world.deadline_seconds or world.availability):
        raise UserError(
            "links have no effect with --in-process, which has no wire, without a world.deadline_seconds."
        )
    for name in ("slots", "checkpoint_every"):
        if value := getattr(experiment.cluster, name):
            raise UserError(
                f"cluster.{name} = {value} cannot be had with --in-process: it has no sockets, processes or "
                f"checkpoints; add --set cluster.{name}=0."
            )
