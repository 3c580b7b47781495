"""`fedsim time`: finished runs asked again for other links and devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nodes.cli._tables import table_options, tell
from nodes.cli._values import OF_OPTIONS

if TYPE_CHECKING:
    from fedsim.config import Experiment
    from fedsim.results.load import LoadedRun
    from fedsim.results.retimed import Clock
    from fedsim.results.tables.times import Wanted
    from fedsim.world.clock import RoundTime

_EXAMPLES = """
\b
Examples:
  fedsim time runs/fedtgp --link 4g                        all rounds over 4g
  fedsim time runs/sweep --accuracy 70,80 --link fibre --link 3g --out times.tex
  fedsim time runs/sweep --accuracy 80 --link "up=1mbit down=5mbit delay=20ms" --device phone
  fedsim time runs/sweep --link satellite --plot accuracy-by-seconds.pdf
"""


@click.command(epilog=_EXAMPLES)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUNS...")
@click.option(
    "--link", "links", multiple=True, shell_complete=OF_OPTIONS["link"],
    help="Of all clients, as in fedsim run; several make columns. Without any: the runs' own, else all profiles.",
)  # fmt: skip
@click.option(
    "--device", default="", help="Of all clients: phone, gflops=10, phone:3,laptop:1. Without: as measured."
)
@click.option(
    "--accuracy", default="", metavar="PERCENT,...", help="Until the mean accuracy is this; else all rounds."
)
@click.option(
    "--schedule", default="devices,slots", show_default=True,
    help="devices: every client computes on its own. slots: as many at once as in the run.",
)  # fmt: skip
@click.option("--metric", default="seconds", show_default=True, help="seconds, megabytes, rounds, with commas.")
@table_options
@click.option("--plot", type=click.Path(path_type=Path), help="Accuracy by seconds, as .pdf, .svg or .png.")
def command(
    runs: tuple[Path, ...],
    links: tuple[str, ...],
    device: str,
    accuracy: str,
    schedule: str,
    metric: str,
    kind: str,
    out: tuple[Path, ...],
    caption: str,
    plot: Path | None,
) -> int:
    """How long RUNS would take over other links, which are run folders or folders of them, such as a sweep's.

    Nothing is run: bytes are the ledger's, seconds of computing the measured ones or, with --device, operations at
    the device's speed. Runs that differ only in seeds share a cell.
    """
    from fedsim.results.groups import collect
    from fedsim.results.tables import times
    from nodes.display.tables import check_files

    check_files(out, caption, latex=kind == "latex")
    collection = collect(runs, finished_only=True)
    wanted = times.Wanted(
        links=_links(links, collection.runs),
        accuracies=_accuracies(accuracy),
        schedules=tuple(word.strip() for word in schedule.split(",")),
        metrics=tuple(word.strip() for word in metric.split(",")),
    )
    _refuse_measured_on_devices(wanted, device)
    clocks = {run: _clock(run, wanted, device) for run in collection.runs}
    table = times.build(collection, clocks, wanted)
    tell(table, kind, out, caption)
    if plot is not None:
        from fedsim.results.plots import compared, paper

        drawn = compared.by_virtual_seconds(clocks, wanted.links, wanted.schedules[0])
        path = paper.draw(drawn, collection, plot, paper.Page(paper.WIDTHS["page"]))
        click.echo(f"wrote {path}", err=kind != "text")
    return 1 if table.warnings else 0


OWN = "own"
"""The column of links that the runs themselves had."""


def _links(given: tuple[str, ...], runs: list[LoadedRun]) -> tuple[str, ...]:
    from fedsim.world import links, mixtures

    for text in given:
        for link, _ in mixtures.parts(text):
            links.parse(link)
    if given:
        return tuple(dict.fromkeys(given))
    return (OWN,) if all(run.experiment.world for run in runs) else tuple(links.PROFILES)


def _accuracies(given: str) -> tuple[float, ...]:
    from fedsim.errors import UserError

    try:
        found = tuple(float(word) / 100 for word in given.split(",")) if given.strip() else ()
    except ValueError:
        raise UserError(
            f"--accuracy wants numbers in per cent with commas, such as 70,80, not {given!r}."
        ) from None
    if not all(0 < share <= 1 for share in found):
        raise UserError(f"--accuracy {given} is not between 0 and 100 per cent.")
    return found


def _refuse_measured_on_devices(wanted: Wanted, device: str) -> None:
    from fedsim.errors import UserError
    from fedsim.world import devices, mixtures

    for text, _ in mixtures.parts(device) if device else ():
        devices.parse(text)
    if device and "slots" in wanted.schedules:
        raise UserError(
            "--device is for clients on devices of their own, and slots are as measured; add --schedule devices."
        )


def _clock(run: LoadedRun, wanted: Wanted, device: str) -> Clock:
    from fedsim.results import retimed
    from fedsim.world import devices, links
    from fedsim.world.clock import Air, on_own_devices
    from nodes.tools.replay import on_own_slots

    experiment = _with(run.experiment, device=device) if device else run.experiment
    dealt = devices.of_clients(experiment)
    flops = _flops(experiment) if any(dealt) else ()
    found: dict[tuple[str, str], list[RoundTime]] = {}
    for link in wanted.links:
        air = Air(
            links.of_clients(experiment if link == OWN else _with(experiment, link=link)), experiment.run.seed
        )
        for schedule in wanted.schedules:
            if schedule == "slots":
                found[link, schedule] = on_own_slots(run, air)
            else:
                parts = retimed.parts_of(run, dealt if flops else (), flops)
                found[link, schedule] = on_own_devices(parts, retimed.server_seconds(run), air)
    return found


def _with(experiment: Experiment, **world: str) -> Experiment:
    """The same with another link or device for all, in place of those of single clients."""
    import msgspec

    several: dict[str, dict[str, str]] = {f"{name}s": {} for name in world}
    return msgspec.structs.replace(experiment, world={**(experiment.world or {}), **world, **several})


def _flops(experiment: Experiment) -> list[float]:
    """Needs the data set, for who holds how much."""
    from fedsim.data import Federation
    from fedsim.world.work import training_flops

    return training_flops(experiment, Federation(experiment))
