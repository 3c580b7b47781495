"""What commands that need an experiment share: options that say which it is, its folder, and how a run ends."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich.console import Console
from rich.text import Text

from fedsim import config
from fedsim.config import Experiment
from fedsim.errors import UserError

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
    "partition": Option("data", "partition", str, "dirichlet, pathological or iid."),
    "beta": Option("data", "beta", float, "Concentration of the Dirichlet partition."),
    "classes_per_client": Option("data", "classes_per_client", int, "Of the pathological partition."),
    "model_group": Option("model", "group", str, "Models with commas: a group, CNN2, ./nets.py:Small, timm:NAME."),
    "feature_dim": Option("model", "feature_dim", int, "K, the size of a prototype."),
    "batch_size": Option("train", "batch_size", int, "Samples in a mini-batch."),
    "local_epochs": Option("train", "local_epochs", int, "Passes over a client's samples in a round."),
    "lr": Option("train", "lr", float, "Learning rate of the clients."),
    "slots": Option("cluster", "slots", int, "Clients that train at once per host or GPU; 0: one a core or GPU."),
    "checkpoint_every": Option("cluster", "checkpoint_every", int, "Rounds between checkpoints; 0: none."),
    "seed": Option("run", "seed", int, "Same seed, same bits."),
}
"""Everything else is reached with --set section.key=value."""


def experiment_options(*names: str) -> list[click.Parameter]:
    """For a command: the short options with these names, and --preset, --config and --set."""
    short = [(f"--{name.replace('_', '-')}", OPTIONS[name]) for name in names]
    return [
        *(
            click.Option([flag], type=option.type, is_flag=option.type is bool, default=None, help=option.help)
            for flag, option in short
        ),
        click.Option(["--preset"], help="Start from a table's settings or a cell: NAME, NAME/LABEL,LABEL."),
        click.Option(["--config", "config_file"], type=Path, help="A TOML file, such as a run's config.toml."),
        click.Option(
            ["--set", "settings"], multiple=True, metavar="SECTION.KEY=VALUE", help="Any option by its name."
        ),
    ]


def run_options() -> list[click.Parameter]:
    """For a command that is one run."""
    return [
        *experiment_options(*OPTIONS),
        click.Option(["--out"], type=Path, help="Results folder; by default runs/<method>-<data set>-<time>."),
        click.Option(["--resume"], type=Path, help="Go on with a run from its last checkpoint."),
        click.Option(["--quiet"], is_flag=True, help="Only the summary."),
        click.Option(
            ["--no-report"], is_flag=True, envvar="FEDSIM_NO_REPORT", show_envvar=True, help="Draw none."
        ),
    ]


def build_experiment(
    preset: str | None = None, config_file: Path | None = None, settings: Iterable[str] = (), **options: Any
) -> Experiment:
    """Defaults < preset < file < command line."""
    from fedsim.presets.tables import preset_layers

    layers = list(preset_layers(preset)) if preset else []
    if config_file:
        layers.append(config.read_toml(config_file))
    for name, (section, key, *_) in OPTIONS.items():
        if options.get(name) is not None:
            layers.append({section: {key: options[name]}})
    return config.build([*layers, *map(config.parse_setting, settings), *options.get("layers", ())])


def check(experiment: Experiment) -> None:
    """Before any process or folder exists."""
    from fedsim import assembly

    for note in assembly.check(experiment).notes:
        click.echo(note)


def default_folder(experiment: Experiment) -> Path:
    what = f"{experiment.method_name}-{experiment.data.short_name}"
    return Path("runs") / f"{what}-{time.strftime('%Y%m%d-%H%M%S')}"


def run_folder(experiment: Experiment, out: Path | None, resume: Path | None) -> "RunFolder":
    """A new one, or that of the run to go on with."""
    from fedsim.results.folder import RunFolder

    if resume is not None:
        return RunFolder.open(resume)
    check(experiment)
    return RunFolder.create(out or default_folder(experiment), experiment)


def show_end(console: Console, folder: "RunFolder", *, no_report: bool) -> None:
    """The summary and the report, of a run that got as far as one."""
    from nodes.display.report_process import draw_report
    from nodes.display.run import print_summary

    if summary := folder.summary():
        print_summary(console, summary, str(folder.path))
        if not no_report:
            console.print(Text(draw_report(folder.path)), soft_wrap=True)


def refuse_with_resume(**options: Any) -> None:
    """A resumed run is the run that it was: nothing about it may be chosen again."""
    refuse_with("--resume", "the run goes on with its own config.toml", **options)


def refuse_with(mode: str, reason: str, **options: Any) -> None:
    """Whoever gives an option expects something of it, so one that `mode` would ignore is refused."""
    for name, value in options.items():
        if value is not None and value is not False and value != ():
            option = name.replace("_", "-").replace("settings", "set").replace("config-file", "config")
            raise UserError(f"--{option} cannot be given with {mode}: {reason}.")
