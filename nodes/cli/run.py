"""`fedsim run`, which is also run_cluster.py: an experiment on this machine from one command."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from fedsim import config
from fedsim.config import Experiment
from fedsim.errors import UserError

# Option -> where it goes in the config. Everything else is reached with --set section.key=value.
TARGETS = {
    "method": ("method", "name"),
    "dataset": ("data", "dataset"),
    "data_dir": ("data", "data_dir"),
    "partition": ("data", "partition"),
    "beta": ("data", "beta"),
    "classes_per_client": ("data", "classes_per_client"),
    "clients": ("run", "clients"),
    "rounds": ("run", "rounds"),
    "participation": ("run", "participation"),
    "count_partial": ("run", "count_partial"),
    "seed": ("run", "seed"),
    "model_group": ("model", "group"),
    "feature_dim": ("model", "feature_dim"),
    "batch_size": ("train", "batch_size"),
    "local_epochs": ("train", "local_epochs"),
    "lr": ("train", "lr"),
    "slots": ("cluster", "slots"),
    "checkpoint_every": ("cluster", "checkpoint_every"),
}

_EXAMPLES = """
\b
Examples:
  fedsim run                                         FedTGP on digits, 10 clients
  fedsim run --method fedproto --rounds 50 --seed 2
  fedsim run --dataset fmnist --clients 20 --partition pathological
  fedsim run --method fedtgp --set method.tau=10 --set train.shuffle=true
  fedsim run --checkpoint-every 5 --out runs/long    later: fedsim run --resume runs/long
"""


def experiment_options(function: Any) -> Any:
    """The options that say what is run; shared by every command that needs an experiment."""
    options = [
        click.option("--method", help="A method: fedtgp, ./my_method.py or package.module."),
        click.option("--dataset", help="Name of a data set, or your own: a path, ./FILE.py:FUNCTION, hf:NAME."),
        click.option("--data-dir", help="Where to look for data first."),
        click.option("--clients", type=int, help="Number of clients."),
        click.option("--rounds", type=int, help="Number of rounds."),
        click.option("--participation", type=float, help="Share of the clients that train in a round."),
        click.option(
            "--count-partial", is_flag=True, default=None, help="Rounds that lost clients may be best or last too."
        ),
        click.option("--partition", help="dirichlet, pathological or iid."),
        click.option("--beta", type=float, help="Concentration of the Dirichlet partition."),
        click.option("--classes-per-client", type=int, help="Of the pathological partition."),
        click.option("--model-group", help="Models with commas: a group, CNN2, ./nets.py:Small, timm:NAME."),
        click.option("--feature-dim", type=int, help="K, the size of a prototype."),
        click.option("--batch-size", type=int),
        click.option("--local-epochs", type=int),
        click.option("--lr", type=float, help="Learning rate of the clients."),
        click.option(
            "--slots", type=int, help="Clients that train at once per host or GPU; 0: one per core or GPU."
        ),
        click.option("--checkpoint-every", type=int, help="Rounds between checkpoints; 0: none."),
        click.option("--preset", help="Start from a table's settings or a cell: NAME, NAME/LABEL,LABEL."),
        click.option("--config", "config_file", type=Path, help="A TOML file, such as a run's config.toml."),
        click.option(
            "--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Any option by its name."
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


seed_option = click.option("--seed", type=int, help="Same seed, same bits.")
"""Apart from the others: commands that run several experiments have --seeds."""

no_report_option = click.option(
    "--no-report",
    is_flag=True,
    envvar="FEDSIM_NO_REPORT",
    show_envvar=True,
    help="Draw no report.html when the run is over.",
)


def build_experiment(
    preset: str | None, config_file: Path | None, settings: tuple[str, ...], **options: Any
) -> Experiment:
    """Defaults < preset < file < command line."""
    from fedsim.presets.tables import preset_layers

    layers: list[dict[str, Any]] = []
    if preset:
        layers += preset_layers(preset)
    if config_file:
        layers.append(config.read_toml(config_file))
    for name, (section, key) in TARGETS.items():
        if options.get(name) is not None:
            layers.append({section: {key: options[name]}})
    layers += [config.parse_setting(text) for text in settings]
    return config.build(layers)


@click.command(epilog=_EXAMPLES)
@experiment_options
@seed_option
@click.option("--out", type=Path, help="Results folder; by default runs/<method>-<data set>-<time>.")
@click.option("--resume", type=Path, help="Go on with a run from its last checkpoint.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the server; 0: any free one, and 5555 with --print-commands.",
)
@click.option("--curve", is_flag=True, help="Encrypt and authenticate, as between machines.")
@click.option("--launcher", type=click.Choice(["local", "ray"]), default="local", help="Who starts the clients.")
@click.option("--ray-address", help="A running Ray cluster (auto); without it, Ray on this machine.")
@click.option("--in-process", is_flag=True, help="No processes, no sockets: the oracle.")
@click.option("--quiet", is_flag=True, help="Only the summary.")
@no_report_option
@click.option(
    "--print-commands",
    is_flag=True,
    help="Print how to start the same run by hand on several machines, with keys.",
)
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
        return _print_commands(build_experiment(**options), out, port)

    from fedsim.results.folder import RunFolder
    from nodes.display.report_process import draw_report
    from nodes.display.run import make_display, print_summary
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
    if resume is None:
        _check(experiment)
        folder = RunFolder.create(out or default_folder(experiment), experiment)
    else:
        folder = RunFolder.open(resume)

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
    summary = folder.summary()
    if summary is not None:
        print_summary(console, summary, str(folder.path))
        if not no_report:
            console.print(Text(draw_report(folder.path)), soft_wrap=True)
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


def _print_commands(experiment: Experiment, out: Path | None, port: int) -> int:
    from nodes.launchers.manual import DEFAULT_PORT, print_commands

    _check(experiment)
    print_commands(experiment, out or default_folder(experiment), port or DEFAULT_PORT)
    return 0


def default_folder(experiment: Experiment) -> Path:
    what = f"{experiment.method_name}-{experiment.data.short_name}"
    return Path("runs") / f"{what}-{time.strftime('%Y%m%d-%H%M%S')}"


def _check(experiment: Experiment) -> None:
    """Before any process or folder exists."""
    from fedsim import assembly

    for note in assembly.check(experiment).notes:
        click.echo(note)


def refuse_with_resume(**options: Any) -> None:
    """A resumed run is the run that it was: nothing about it may be chosen again."""
    refuse_with("--resume", "the run goes on with its own config.toml", **options)


def refuse_with(mode: str, reason: str, **options: Any) -> None:
    """Whoever gives an option expects something of it, so one that `mode` would ignore is refused."""
    for name, value in options.items():
        if value is not None and value is not False and value != ():
            option = name.replace("_", "-").replace("settings", "set").replace("config-file", "config")
            raise UserError(f"--{option} cannot be given with {mode}: {reason}.")
