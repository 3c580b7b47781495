"""What commands that need an experiment share: options that say which it is, its folder, and how a run ends."""

import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource
from rich.console import Console
from rich.text import Text

from fedsim import config
from fedsim.config import Experiment
from fedsim.errors import UserError
from nodes.cli._values import OF_OPTIONS

if TYPE_CHECKING:
    from fedsim.results.folder import RunFolder


class Option(NamedTuple):
    """A short name for a value of the config."""

    section: str
    key: str
    type: type
    help: str


OPTIONS = {
    "method": Option("method", "name", str, "A method: fedtgp, ./my_method.py or package.module."),
    "dataset": Option("data", "dataset", str, "A data set, or your own: a path, ./FILE.py:FUNCTION, hf:NAME."),
    "data_dir": Option("data", "data_dir", str, "Where to look for data first."),
    "clients": Option("run", "clients", int, "Number of clients."),
    "rounds": Option("run", "rounds", int, "Number of rounds."),
    "participation": Option("run", "participation", float, "Share of the clients that train in a round."),
    "count_partial": Option("run", "count_partial", bool, "Rounds that lost clients may be best or last too."),
    "partition": Option("data", "partition", str, "dirichlet, pathological, iid or natural."),
    "beta": Option("data", "beta", float, "Concentration of the Dirichlet partition."),
    "classes_per_client": Option("data", "classes_per_client", int, "Of the pathological partition."),
    "model_group": Option("model", "group", str, "Models with commas: a group, CNN2, ./nets.py:Small, timm:NAME."),
    "feature_dim": Option("model", "feature_dim", int, "K, the size of a prototype."),
    "batch_size": Option("train", "batch_size", int, "Samples in a mini-batch."),
    "local_epochs": Option("train", "local_epochs", int, "Passes over a client's samples in a round."),
    "lr": Option("train", "lr", float, "Learning rate of the clients."),
    "slots": Option("cluster", "slots", int, "Clients that train at once per host or GPU; 0: one a core or GPU."),
    "checkpoint_every": Option("cluster", "checkpoint_every", int, "Rounds between checkpoints; 0: none."),
    "track": Option("cluster", "track", str, "tensorboard, mlflow, wandb, with commas; '' for none."),
    "link": Option("world", "link", str, "Of all clients: 4g, 'up=10mbit down=50mbit delay=40ms', wifi:5,4g:3."),
    "seed": Option("run", "seed", int, "Same seed, same bits."),
}
"""Everything else is reached with --set section.key=value."""


def experiment_options(*names: str) -> list[click.Parameter]:
    """For a command: the short options with these names, and --preset, --config and --set."""
    return [
        *(
            click.Option(
                [f"--{name.replace('_', '-')}"],
                type=OPTIONS[name].type,
                is_flag=OPTIONS[name].type is bool,
                default=None,
                help=OPTIONS[name].help,
                shell_complete=OF_OPTIONS.get(name),
            )
            for name in names
        ),
        click.Option(
            ["--preset"],
            shell_complete=OF_OPTIONS["preset"],
            help="Start from a table's settings or a cell: NAME, NAME/LABEL,LABEL.",
        ),
        click.Option(["--config", "config_file"], type=Path, help="A TOML file, such as a run's config.toml."),
        click.Option(
            ["--set", "settings"], multiple=True, metavar="SECTION.KEY=VALUE", help="Any option by its name."
        ),
    ]


def run_options() -> list[click.Parameter]:
    """For a command that is one run."""
    return [
        *experiment_options(*OPTIONS),
        click.Option(
            ["--links"], type=Path, metavar="FILE", help="Links of single clients, in TOML (docs/time.md)."
        ),
        click.Option(["--out"], type=Path, help="Results folder; by default runs/<method>-<data set>-<time>."),
        click.Option(["--resume"], type=Path, help="Go on with a run from its last checkpoint."),
        click.Option(["--quiet"], is_flag=True, help="Only the summary."),
        click.Option(
            ["--no-report"], is_flag=True, envvar="FEDSIM_NO_REPORT", show_envvar=True, help="Draw none."
        ),
    ]


def _tell_once(note: str) -> None:
    """A sweep makes many experiments of which the same is to be said."""
    if note not in _told:
        _told.add(note)
        click.echo(note)


_told: set[str] = set()


def build_experiment(
    preset: str | None = None,
    config_file: Path | None = None,
    settings: Iterable[str] = (),
    varied: Sequence[str] = (),
    tell: Callable[[str], None] = _tell_once,
    **options: Any,
) -> Experiment:
    """Defaults < preset < file < command line; a default that does not fit is replaced, and `tell` told so.

    `varied` are settings of one of several experiments, of which some may heed what others do not.
    """
    from fedsim import adaptation
    from fedsim.presets.tables import preset_layers
    from fedsim.world import mixtures

    layers = list(preset_layers(preset)) if preset else []
    if config_file:
        layers.append(config.read_toml(config_file))
    typed = [
        {section: {key: options[name]}}
        for name, (section, key, *_) in OPTIONS.items()
        if options.get(name) is not None
    ]
    if options.get("links") is not None:
        typed.append({"world": {"links": mixtures.read(options["links"], "links")}})
    typed += [*map(config.parse_setting, settings), *options.get("layers", ())]
    experiment, notes = adaptation.build([*layers, *typed, *map(config.parse_setting, varied)])
    if not varied:
        _refuse_unheeded(typed, experiment)
    for note in notes:
        tell(note)
    return experiment


_OF_PARTITIONS = {"beta": "dirichlet", "classes_per_client": "pathological"}


def _refuse_unheeded(typed: Iterable[Mapping[str, Any]], experiment: Experiment) -> None:
    """A preset or a file may say more than one run needs; what somebody types must do something."""
    partition = experiment.data.partition
    for key, value in (item for layer in typed for item in layer.get("data", {}).items()):
        wanted = _OF_PARTITIONS.get(key, partition)
        if partition != wanted and value != getattr(config.Data(), key):
            raise UserError(
                f"data.{key} = {value} has no effect on data.partition = {partition}; leave it out, or set the "
                f"partition to {wanted}."
            )


def check(experiment: Experiment, tell: Callable[[str], None] = click.echo) -> None:
    """Before any process or folder exists."""
    from fedsim import assembly
    from fedsim.results import trackers

    trackers.chosen(experiment.cluster.track)
    federation = assembly.check(experiment)
    for note in (*federation.notes, *assembly.notes(experiment, federation)):
        tell(note)


def default_folder(experiment: Experiment) -> Path:
    what = f"{experiment.method_name}-{experiment.data.short_name}"
    return Path("runs") / f"{what}-{time.strftime('%Y%m%d-%H%M%S')}"


def run_folder(experiment: Experiment, out: Path | None, resume: Path | None) -> "RunFolder":
    """A new one, or that of the run to go on with."""
    from fedsim.results import provenance
    from fedsim.results.folder import RunFolder

    if resume is not None:
        folder = RunFolder.open(resume)
    else:
        check(experiment)
        folder = RunFolder.create(out or default_folder(experiment), experiment)
    folder.provenance = provenance.collect(experiment)
    return folder


def show_end(console: Console, folder: "RunFolder", *, no_report: bool, interrupted: bool = False) -> None:
    """The summary and the report, of a run that got as far as one."""
    from nodes.display.report_process import draw_report
    from nodes.display.run import print_summary

    if summary := folder.summary():
        print_summary(console, summary, str(folder.path), resume_command(folder), interrupted=interrupted)
        if summary["rounds"] and not no_report:
            console.print(Text(draw_report(folder.path)), soft_wrap=True)


def resume_command(folder: "RunFolder") -> str:
    """As a user would type it; from Python, too, a run is gone on with from a shell."""
    context = click.get_current_context()
    typed, how = context.command_path, _typed_beside_the_experiment(context)
    if "nodes.api" in typed:
        typed, how = "fedsim run", []
    elif typed.endswith(".py"):
        typed = f"python {typed}"
    return " ".join([typed, shlex.join(["--resume", str(folder.path), *how])])


def _typed_beside_the_experiment(context: click.Context) -> list[str]:
    """Such as --hosts or --bind: the folder of a run knows what is run, and not how it was started."""
    known = {option.name for option in run_options()} - {"quiet", "no_report"} | {"in_process", "debug"}
    words: list[str] = []
    for option in context.command.params:
        name = option.name or ""
        if name in known or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        if getattr(option, "is_flag", False):
            words.append(option.opts[0])
        else:
            values = context.params[name] if option.multiple else [context.params[name]]
            words += [word for value in values for word in (option.opts[0], str(value))]
    return words


def refuse_with_resume(**options: Any) -> None:
    """A resumed run is the run that it was: nothing about it may be chosen again."""
    refuse_with("--resume", "the run goes on with its own config.toml", **options)


def refuse_with(mode: str, reason: str, **options: Any) -> None:
    """Whoever gives an option expects something of it, so one that `mode` would ignore is refused."""
    for name, value in options.items():
        if value is not None and value is not False and value != ():
            option = name.replace("_", "-").replace("settings", "set").replace("config-file", "config")
            raise UserError(f"--{option} cannot be given with {mode}: {reason}.")
