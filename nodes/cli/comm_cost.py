"""`fedsim comm-cost`: what a round of every method costs, by formula and measured on real sockets."""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from fedsim import config
from fedsim.errors import UserError
from nodes.cli._experiment import OPTIONS

if TYPE_CHECKING:
    from fedsim.costs.measured import SettingCosts

_PIPE_COLUMNS = 160
"""What does not go to a terminal has room for numbers in full."""

# Named by what they send; a rehearsal loads none of them.
_GENERATORS = {"stylegan": "stylegan.pkl", "stable-diffusion": "stable-diffusion", "tiny": "tiny"}

_EXAMPLES = """
\b
Examples:
  fedsim comm-cost --dataset cifar100 --model-group HtFE8              all methods, 20 clients
  fedsim comm-cost --methods fedtgp,fedktl --image-type uint8 --curve
  fedsim comm-cost --clients 10,20,50 --link 10/50 --out cost          against M, and up to a million
  fedsim comm-cost --model-group CNN --methods fedavg,fedproto --rounds 50
"""

_OF_A_RUN = ("data_dir", "partition", "beta", "classes_per_client", "feature_dim", "batch_size", "seed")
_OPTION_OF = {
    ("data", "dataset"): "--dataset",
    ("model", "group"): "--model-group",
    ("run", "clients"): "--clients",
    ("run", "rounds"): "--rounds",
    ("method", "name"): "--methods",
}
"""What has an option with a meaning of its own here, so that a setting would be lost."""
_TARGETS = {name: OPTIONS[name][:2] for name in _OF_A_RUN}


@click.command(epilog=_EXAMPLES, context_settings={"show_default": True})
@click.option(
    "--dataset", "datasets", multiple=True, default=["cifar100"], help="Name of a data set, or a path; repeatable."
)
@click.option("--data-dir", help="Where to look for data first.")
@click.option(
    "--model-group", "groups", multiple=True, default=["HtFE8"], help="Group of models, or one model; repeatable."
)
@click.option("--clients", default="20", help="Number of clients, or a series: 10,20,50.")
@click.option("--methods", default="all", help="all that ship, or some with commas: fedtgp,./my_method.py.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, help="Whole rounds measured.")
@click.option("--partition", help="dirichlet, pathological or iid.")
@click.option("--beta", type=float, help="Concentration of the Dirichlet partition.")
@click.option("--classes-per-client", type=int, help="Of the pathological partition.")
@click.option("--feature-dim", type=int, help="K, the size of a prototype.")
@click.option("--batch-size", type=int, help="Decides which samples of a client are left out of an epoch.")
@click.option("--seed", type=int, help="Of the partition.")
@click.option("--curve", is_flag=True, help="Encrypt and authenticate, as between machines.")
@click.option("--image-type", type=click.Choice(["float32", "uint8"]), help="How FedKTL's images travel.")
@click.option(
    "--generator",
    type=click.Choice([*_GENERATORS]),
    default="stylegan",
    help="Whose latents FedKTL sends; none is loaded.",
)
@click.option("--link", metavar="UP/DOWN", help="Mbit/s of a client's line: how long does a round take on it?")
@click.option(
    "--project", type=click.IntRange(min=1), default=1_000_000, help="Clients to which formulae continue a series."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Any option by its name; method.KEY goes to all methods that have it.",
)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder for CSV, Markdown, LaTeX and charts."
)
def command(
    datasets: tuple[str, ...],
    groups: tuple[str, ...],
    clients: str,
    methods: str,
    link: str | None,
    settings: tuple[str, ...],
    out: Path | None,
    **options: Any,
) -> int:
    """Measure what a round costs, without training.

    A real server and real client processes exchange messages of the real shapes on real sockets. For each method:
    its formula, the elements measured, bytes of payload, messages and wire, and the kernel's count of the same
    bytes. Exits with 1 unless every formula equals its measurement and every wire count the kernel's.
    """
    started = time.monotonic()
    from fedsim.costs.projection import parse_link
    from nodes.launchers import zygote

    zygote.use_one_thread()
    numbers_of_clients, names = _parse_clients(clients), _parse_methods(methods)
    line = parse_link(link) if link else None
    layers, method_options = _layers(settings, options)

    from fedsim.costs.files import require_place, write_files
    from nodes.display.costs import show_series, show_setting
    from nodes.tools.comm_cost import measure_setting

    if out is not None:
        require_place(out)
    zygote.preload()
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_COLUMNS)
    all_series: list[list[SettingCosts]] = []
    for dataset, group in product(datasets, groups):
        all_series.append([])
        for number in numbers_of_clients:
            layer = {"data": {"dataset": dataset}, "model": {"group": group}, "run": {"clients": number}}
            setting = measure_setting(
                [*layers, layer],
                names,
                method_options=method_options,
                method_defaults={"generator": _GENERATORS[options["generator"]]},
                num_rounds=options["rounds"],
                curve=options["curve"],
                leave_out_refused=methods == "all",
            )
            all_series[-1].append(setting)
            show_setting(console, setting, line)
        if len(numbers_of_clients) > 1:
            show_series(console, all_series[-1], options["project"])
    if out is not None:
        paths = write_files(out, all_series, options["project"])
        console.print(Text(f"in {out}: {', '.join(path.name for path in paths)}"), soft_wrap=True)
    console.print(f"{time.monotonic() - started:.1f} s")
    return 0 if all(setting.agrees for series in all_series for setting in series) else 1


def _parse_clients(text: str) -> list[int]:
    """In ascending order, so that a series goes on from its largest."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"--clients wants a number, or several with commas such as 10,20,50, not {text!r}.")
    return sorted({int(part) for part in parts})


def _parse_methods(text: str) -> list[str]:
    from fedsim import methods

    if text == "all":
        return methods.names()
    return list(dict.fromkeys(methods.canonical(name.strip()) for name in text.split(",")))


def _layers(settings: tuple[str, ...], options: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The config of the setting, and the options of methods."""
    layers: list[dict[str, Any]] = [
        {section: {key: options[name]}} for name, (section, key) in _TARGETS.items() if options[name] is not None
    ]
    method_options: dict[str, Any] = {}
    for text in settings:
        layer = config.parse_setting(text)
        _refuse_lost(layer)
        method_options |= layer.pop("method", {})
        layers.append(layer)
    if options.get("image_type"):
        method_options["image_dtype"] = options["image_type"]
    return layers, method_options


def _refuse_lost(layer: dict[str, dict[str, Any]]) -> None:
    """What would be overruled in silence."""
    from nodes.tools.comm_cost import FIXED

    for section, key in ((section, key) for section, options in layer.items() for key in options):
        if option := _OPTION_OF.get((section, key)):
            raise UserError(f"--set {section}.{key} has no place here; give {option}.")
        if key in FIXED.get(section, {}):
            raise UserError(f"--set {section}.{key} has no effect: it is fixed in a rehearsal; leave it out.")
