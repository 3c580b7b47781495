"""The command that goes on with a run, as it is printed at the end: it starts the run as it was started."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from nodes.cli import run, server
from nodes.cli._experiment import resume_command

FOLDER = Path("runs/a run")


def printed(command: click.Command, program: str, *words: str) -> str:
    with command.make_context(program, list(words)):
        return resume_command(SimpleNamespace(path=FOLDER))


@pytest.mark.parametrize(
    "how",
    [
        [],
        ["--hosts", "one,alice@two", "--address", "10.0.0.9", "--remote-python", "/my python"],
        ["--launcher", "ray", "--ray-address", "auto", "--port", "5555"],
        ["--curve", "--quiet", "--no-report"],
    ],
)
def test_a_run_goes_on_as_it_was_started(how: list[str]) -> None:
    experiment = ["--method", "fedproto", "--slots", "2", "--set", "run.seed=3", "--out", str(FOLDER)]
    line = printed(run.command, "fedsim run", *experiment, *how)
    _, _, resume, folder, *rest = shlex.split(line)
    assert (resume, Path(folder)) == ("--resume", FOLDER)
    assert sorted(rest) == sorted(how)


def test_a_server_listens_where_it_did() -> None:
    binds = ["--bind", "tcp://[::]:*", "--bind", "tcp://a:1"]
    how = [*binds, "--keys", "keys", "--address-file", "s.json", "--insecure"]
    line = printed(server.command, "fedsim server", "--method", "local", *how)
    assert line == f"fedsim server --resume 'runs/a run' {shlex.join(how)}"


def test_what_goes_on_is_a_cluster_and_from_python_a_plain_command() -> None:
    assert printed(run.command, "run_cluster.py", "--in-process") == "python run_cluster.py --resume 'runs/a run'"
    from_python = printed(run.command, "python -m nodes.api", "--quiet", "--no-report")
    assert from_python == "fedsim run --resume 'runs/a run'"
