"""`fedsim sbatch`: a job script for Slurm."""

from pathlib import Path
from typing import Any

import click

from fedsim.errors import UserError
from nodes.cli import _experiment
from nodes.cli._experiment import OPTIONS, build_experiment, default_folder, experiment_options


@click.command(params=experiment_options(*OPTIONS))
@click.option("--nodes", type=click.IntRange(1), required=True, help="Machines of the job.")
@click.option("--time", "time_limit", required=True, help="Of one job, as sbatch wants it: 04:00:00.")
@click.option("--slurm", multiple=True, metavar="OPTION=VALUE", help="A further option of sbatch: partition=gpu.")
@click.option("--out", type=Path, help="Results folder, which all nodes must see; by default runs/<method>-...")
def command(nodes: int, time_limit: str, slurm: tuple[str, ...], out: Path | None, **options: Any) -> None:
    """Write a job script that runs an experiment over the nodes of a job.

    A checkpoint is saved each round unless --checkpoint-every says otherwise. When the time is over the job goes
    back into the queue, and the next one goes on from there.

    \b
    Examples:
      fedsim sbatch --method fedtgp --clients 40 --nodes 4 --time 04:00:00 > job.sh
      fedsim sbatch --preset fedtgp-table2 --nodes 2 --time 1-0 --slurm gpus-per-node=4 > job.sh
    """
    from nodes.launchers import choice, manual, sbatch

    if options["checkpoint_every"] is None:
        options["checkpoint_every"] = 1
    experiment = build_experiment(**options, tell=lambda note: click.echo(note, err=True))
    choice.refuse_links(experiment)
    run = (out or default_folder(experiment)).absolute()
    if run.exists():
        raise UserError(
            f"the results folder {run} exists already, and the job would go on with what is in it, whatever is "
            "typed here; choose another with --out, or hand in the script that this run has."
        )
    _experiment.check(experiment, tell=lambda note: click.echo(note, err=True))
    config = manual.write_config(experiment, run)
    click.echo(sbatch.script(experiment, config, run, nodes, time_limit, slurm), nl=False)
