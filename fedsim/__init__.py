"""fedsim: the learning side of the simulator. It knows methods, models and data, and nothing of sockets.

import fedsim
run = fedsim.run(method="fedtgp", dataset="digits", rounds=5)     a cluster on this machine
run = fedsim.load("runs/some")                                    a run folder, read back
"""

import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.version import __version__

if TYPE_CHECKING:
    from fedsim.results.load import LoadedRun

__all__ = ["__version__", "load", "run"]

_RUNNER = "nodes.api:run"
"""Who starts processes. Nothing that learns may depend on it, so it is bound by name, and only when a user calls
`fedsim.run`: importing fedsim, or any module of it, never loads nodes or protocol."""

Section = Mapping[str, Any]


def run(
    method: str | None = None,
    *,
    preset: str | None = None,
    dataset: str | None = None,
    data_dir: str | None = None,
    clients: int | None = None,
    rounds: int | None = None,
    participation: float | None = None,
    count_partial: bool | None = None,
    partition: str | None = None,
    beta: float | None = None,
    classes_per_client: int | None = None,
    model_group: str | None = None,
    feature_dim: int | None = None,
    batch_size: int | None = None,
    local_epochs: int | None = None,
    lr: float | None = None,
    slots: int | None = None,
    checkpoint_every: int | None = None,
    track: str | None = None,
    link: str | None = None,
    seed: int | None = None,
    method_options: Section | None = None,
    run: Section | None = None,
    data: Section | None = None,
    model: Section | None = None,
    train: Section | None = None,
    cluster: Section | None = None,
    wire: Section | None = None,
    world: Section | None = None,
    out: str | Path | None = None,
    in_process: bool = False,
    report: bool = True,
    progress: bool = True,
    **unknown: Any,
) -> "LoadedRun":
    """Run an experiment to its end, in processes of its own, and return its results.

    What is not given is as `fedsim run` has it, and as on the command line a default that does not fit the method
    or the data is replaced, with a line that says so. The same arguments and seed give the same bits.

    What is run
        method              a method (`fedsim methods`), "./my_method.py" or "package.module"
        method_options      the method's own options: {"tau": 10}
        preset              a table of a paper or one of its cells: "fedtgp-table10/practical,fedproto"
        clients, rounds     how many
        participation       share of the clients that train in a round
        count_partial       let rounds that lost clients be best or last too
        seed                same seed, same bits

    Data and models
        dataset             a name, or your own: a path, "./data.py:load", "hf:NAME"
        data_dir            where to look for data first
        partition           "dirichlet", "pathological", "iid" or "natural"
        beta                concentration of the Dirichlet partition; small is heterogeneous
        classes_per_client  of the pathological partition
        model_group         models with commas: "HtCNN8", "CNN2,./nets.py:Small,timm:NAME"
        feature_dim         K, the size of a prototype

    Training
        batch_size, local_epochs, lr

    How it is run
        slots               clients that train at once; 0: one a core or GPU
        checkpoint_every    rounds between checkpoints; go on with `fedsim run --resume FOLDER`
        link                of all clients: "4g", "up=10mbit down=50mbit delay=40ms", "wifi:5,4g:3"
        track               who else is told: "tensorboard,mlflow,wandb"
        in_process          no processes and no sockets: the same numbers, without a ledger
        out                 the results folder; by default runs/<method>-<data set>-<time>
        report              draw report.html when it is over
        progress            print a line for each round

    Everything else
        run, data, model, train, cluster, wire, world    sections of the config: data={"stratified": True}

    A mistake raises `fedsim.errors.UserError`, a run that fails `fedsim.errors.FedsimError`, each with the reason.
    Ctrl-C, or a notebook's stop button, ends the run cleanly, keeps its folder and raises KeyboardInterrupt.
    """
    given = {name: value for name, value in locals().items() if name != "unknown"}
    if unknown:
        from fedsim.errors import UnknownName

        raise UnknownName("option", next(iter(unknown)), given)
    return pkgutil.resolve_name(_RUNNER)(**given)


def load(folder: str | Path) -> "LoadedRun":
    """A run folder, finished or interrupted, read back: its tables are pandas DataFrames."""
    from fedsim.results.load import load as read

    return read(Path(folder))
