"""`fedsim.run`: an experiment from Python, which is also how a notebook does it.

A run forks all its processes from one preloaded parent, and that parent must be young: a program that already has
threads, sockets or tensors, as every notebook has, cannot be forked safely. So the run is started as a command.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsim import config
from fedsim.config import Experiment
from fedsim.errors import UnknownName, UserError
from fedsim.results.load import LoadedRun, load
from nodes.cli._experiment import OPTIONS, build_experiment, default_folder
from nodes.launchers.processes import die_with_parent

_SECTIONS = ("run", "data", "model", "train", "cluster")
_PROJECT = Path(__file__).resolve().parent.parent


def run(
    *,
    method: str | None = None,
    method_options: Mapping[str, Any] | None = None,
    preset: str | None = None,
    out: str | Path | None = None,
    in_process: bool = False,
    verbose: bool = False,
    **options: Any,
) -> LoadedRun:
    """Run an experiment to its end.

    Without `method` it is the preset's, or fedtgp. `options` are those of the command line with underscores
    (dataset, clients, rounds, beta, lr, seed, ...), or whole sections of the config as mappings
    (data={"samples_per_class": 50}). `method_options` are the method's own. `out` is the results folder; `verbose`
    prints a line each round; `in_process` uses no processes and no sockets.
    """
    experiment = build(method, method_options or {}, preset, options)
    folder = Path(out) if out is not None else default_folder(experiment)
    _execute(experiment, folder, in_process=in_process, verbose=verbose)
    return load(folder)


def build(
    method: str | None, method_options: Mapping[str, Any], preset: str | None, options: Mapping[str, Any]
) -> Experiment:
    """The experiment that these arguments mean, checked as on the command line."""
    layers = [{name: dict(options[name])} for name in _SECTIONS if isinstance(options.get(name), Mapping)]
    short = {name: value for name, value in options.items() if {name: value} not in layers}
    for name in short.keys() - OPTIONS:
        raise UnknownName("option", name, [*OPTIONS, *_SECTIONS, "method_options", "out", "preset", "verbose"])
    return build_experiment(preset, method=method, layers=[*layers, {"method": dict(method_options)}], **short)


def _execute(experiment: Experiment, folder: Path, *, in_process: bool, verbose: bool) -> None:
    """Errors of the command become errors here; Ctrl-C, or a notebook's stop button, ends the run cleanly."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "experiment.toml"
        file.write_text(config.to_toml(experiment))
        argv = [sys.executable, "-m", "nodes.api", str(os.getpid()), "--config", str(file), "--out", str(folder)]
        argv += ["--in-process"] * in_process + ["--quiet"] * (not verbose)
        paths = [str(_PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
        errors = Path(scratch) / "errors.txt"
        with errors.open("w") as stderr:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,  # Ctrl-C must reach it once, from here, and not from the terminal as well
            )
        try:
            _follow(child, verbose)
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            child.wait()
            raise
        if child.returncode:
            raise UserError(_reason(folder, errors.read_text()))


def _follow(child: "subprocess.Popen[str]", verbose: bool) -> None:
    assert child.stdout is not None
    with child.stdout as lines:
        for line in lines:
            if verbose:
                print(line, end="", flush=True)
    child.wait()


def _reason(folder: Path, errors: str) -> str:
    """What the command said before it failed, as one sentence."""
    last = errors.strip().splitlines()[-1:]
    if last:
        return last[0].removeprefix("error: ")
    return f"the run in {folder} did not end well; see {folder / 'summary.json'} and {folder / 'logs'}."


if __name__ == "__main__":
    from nodes.cli import execute
    from nodes.cli.run import command

    die_with_parent(int(sys.argv.pop(1)), signal.SIGTERM)
    execute(command)
