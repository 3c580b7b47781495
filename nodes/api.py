"""`fedsim.run`: an experiment from Python, which is also how a notebook does it.

A run forks all its processes from one preloaded parent, and that parent must be young: a program that already has
threads, sockets or tensors, as every notebook has, cannot be forked safely. So the run is started as a command,
and what it prints is passed on line by line, which is right in a script, a terminal and a notebook.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedsim import config
from fedsim.config import Experiment
from fedsim.errors import FedsimError, UserError
from fedsim.own import loading
from fedsim.results.folder import RunFolder
from fedsim.results.load import LoadedRun, load
from fedsim.results.provenance import COMMAND
from nodes.cli._experiment import build_experiment, default_folder
from nodes.launchers.processes import die_with_parent

_SECTIONS = ("run", "data", "model", "train", "cluster", "wire", "world")
_SHORT = {"data": "dataset", "model": "model_group", "method_options": "method"}
"""What is meant where one of these is given a name."""
_PROJECT = Path(__file__).resolve().parent.parent
_COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""What notebooks set to get colours from programs that they start; plain lines are right everywhere."""

Tell = Callable[[str], None]


def run(
    *,
    out: str | Path | None,
    in_process: bool,
    report: bool,
    progress: bool,
    **arguments: Any,
) -> LoadedRun:
    """As `fedsim.run` says, which has all arguments by name."""
    _refuse_inside_a_run()
    tell: Tell = _say if progress else _ignore
    experiment = build(**arguments, tell=tell)
    folder = Path(out) if out is not None else default_folder(experiment)
    flags = ["--in-process"] * in_process + ["--no-report"] * (not report) + ["--quiet"] * (not progress)
    _execute(experiment, folder, flags, _call(arguments), tell)
    return load(folder)


def build(
    method: str | None = None,
    preset: str | None = None,
    method_options: Mapping[str, Any] | None = None,
    tell: Tell = print,
    **options: Any,
) -> Experiment:
    """The experiment that these arguments mean, checked as on the command line."""
    layers = [{name: _mapping(name, options[name])} for name in _SECTIONS if options.get(name) is not None]
    short = {name: value for name, value in options.items() if name not in _SECTIONS}
    layers.append({"method": _mapping("method_options", method_options or {})})
    return build_experiment(preset, method=method, layers=layers, tell=tell, **short)


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        short = f"; {_SHORT[name]} takes a name" if name in _SHORT else ""
        raise UserError(f'{name} = {value!r} is not valid: give a dictionary such as {{"option": value}}{short}.')
    return dict(value)


def _refuse_inside_a_run() -> None:
    """A script that is the method of its own run is imported by that run, and would start it again and again."""
    file = loading.being_run()
    if file is None and getattr(multiprocessing.current_process(), "_inheriting", False):
        file = "the script"  # imported once more by a process that it started
    if file is not None:
        raise UserError(
            f"{file} calls fedsim.run while it is being imported, which would start runs within runs; put the "
            'call under `if __name__ == "__main__":`.'
        )


def _execute(experiment: Experiment, folder: Path, flags: list[str], call: str, tell: Tell) -> None:
    """Errors of the command become errors here; Ctrl-C, or a notebook's stop button, ends the run cleanly."""
    with tempfile.TemporaryDirectory() as scratch:
        file, errors = Path(scratch) / "experiment.toml", Path(scratch) / "errors.txt"
        file.write_text(config.to_toml(experiment))
        argv = [sys.executable, "-m", "nodes.api", str(os.getpid()), "--config", str(file), "--out", str(folder)]
        with errors.open("w") as stderr:
            child = subprocess.Popen(
                [*argv, *flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=_environment(call),
                start_new_session=True,  # Ctrl-C must reach it once, from here, and not from the terminal as well
            )
        if _follow(child, tell):
            raise KeyboardInterrupt
        if child.returncode:
            kind = UserError if child.returncode == UserError.exit_code else FedsimError
            raise kind(_reason(folder, errors.read_text()))


def _environment(call: str) -> dict[str, str]:
    paths = [str(_PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {name: value for name, value in os.environ.items() if name not in _COLOURS}
    return {**inherited, "NO_COLOR": "1", "PYTHONPATH": os.pathsep.join(paths), COMMAND: call}


def _follow(child: "subprocess.Popen[str]", tell: Tell) -> bool:
    """Pass its lines on to the end; whether the user stopped it. Every Ctrl-C is its to deal with."""
    assert child.stdout is not None
    interrupted = False
    while True:
        try:
            for line in child.stdout:
                tell(line.rstrip("\n"))
            child.wait()
            child.stdout.close()
            return interrupted
        except KeyboardInterrupt:
            interrupted = True
            child.send_signal(signal.SIGINT)


def _reason(folder: Path, errors: str) -> str:
    """Why the command failed: what it said itself, or the run's summary."""
    _, sign, said = f"\n{errors.strip()}".rpartition("\nerror: ")
    if sign:
        return said
    summary = RunFolder(folder).summary()
    if summary:
        return f"{summary['reason']} (in {folder})"
    return f"the run in {folder} did not end well; see {folder / 'logs'}."


def _call(arguments: Mapping[str, Any]) -> str:
    """As it stands in the program, but for defaults."""
    return (
        f"fedsim.run({', '.join(f'{name}={value!r}' for name, value in arguments.items() if value is not None)})"
    )


def _say(line: str) -> None:
    print(line, flush=True)


def _ignore(line: str) -> None:
    pass


if __name__ == "__main__":
    from nodes.cli import execute
    from nodes.cli.run import command

    die_with_parent(int(sys.argv.pop(1)), signal.SIGTERM)
    execute(command)
