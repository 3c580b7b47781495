"""What the programs share with `fedsim`, and how a client that is started by hand is set up."""

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from commands import PROJECT, Start

from fedsim.config import Cluster
from fedsim.version import __version__
from nodes.cli.client import command as client_command
from nodes.client import program
from nodes.client.node import EXIT_NO_SERVER
from nodes.launchers import zygote
from protocol.errors import AddressUnusable


@pytest.mark.parametrize(
    "program",
    [
        (PROJECT / "run_cluster.py",),
        *(("-m", "nodes.server"), ("-m", "nodes.client"), ("-m", "nodes")),
        *(("-m", "nodes", "run"), ("-m", "nodes", "keys", "new")),
    ],
    ids=lambda words: " ".join(str(word) for word in words).replace(f"{PROJECT}/", ""),
)
def test_help_is_short_or_long_everywhere(program, python: Start):
    short, long = (python(*program, option).succeed().stdout for option in ("-h", "--help"))
    assert short == long
    assert short.startswith("Usage: ") and "-h, --help" in short


@pytest.mark.process
@pytest.mark.parametrize("is_safe", [True, False])
def test_of_the_module_path_only_the_working_folder_goes(is_safe: bool, tmp_path):
    """With -P, as hosts of Slurm and Ray are started, what comes first was named by the user."""
    for name in ("named", "here"):
        (tmp_path / name).mkdir()
    (tmp_path / "named" / "probe").mkdir()
    (tmp_path / "named" / "probe" / "__init__.py").write_text("import nodes\n")
    (tmp_path / "named" / "probe" / "__main__.py").write_text("import sys\nprint(sys.path[0])\n")
    path = os.pathsep.join([str(tmp_path / "named"), str(PROJECT)])
    command = [sys.executable, *(["-P"] if is_safe else []), "-m", "probe"]
    told = subprocess.run(
        command, cwd=tmp_path / "here", env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert told.stdout == f"{tmp_path / 'named'}\n"


def test_the_version_needs_no_installation(python: Start):
    """The tests run from a checkout; an installed package of another version must not be asked."""
    command = python("-m", "nodes", "--version").succeed()
    assert command.stdout.endswith(f", version {__version__}\n")


def test_clients_without_a_server_say_so_once_each(python: Start):
    connect = ("--connect", "tcp://127.0.0.1:1", "--patience", "1", "--heartbeat", "1")
    command = python("-m", "nodes.client", *connect, "--ids", "0-1")
    assert command.wait() == EXIT_NO_SERVER
    assert sorted(command.stdout.splitlines()) == [
        f"client {i}: no server at tcp://127.0.0.1:1 for 1 s: nothing listens there; giving up." for i in range(2)
    ]
    assert command.stderr == ""


def test_a_client_with_a_log_of_its_own_is_spoken_for(python: Start, tmp_path):
    connect = ("--connect", "tcp://127.0.0.1:1", "--patience", "1", "--heartbeat", "1", "--ids", "7")
    command = python("-m", "nodes.client", *connect, "--logs", "logs")
    assert command.wait() == EXIT_NO_SERVER
    assert (command.stdout, command.stderr) == ("", "client 7 exited with code 4\n")
    assert "giving up" in (tmp_path / "logs" / "client-00007.log").read_text()


@pytest.mark.parametrize(("options", "mebibytes"), [((), Cluster().max_frame_mib), (("--max-frame-mib", "3"), 3)])
def test_clients_have_the_frame_limit_of_the_option(options, mebibytes, monkeypatch):
    """Nothing is started: what a forked client would do is done here, as far as its socket."""
    made = []

    def socket(address, client, *, limits, **_):
        made.append((address, client, limits.max_frame_bytes))
        raise AddressUnusable("as far as this")

    monkeypatch.setattr(zygote, "preload", lambda: None)
    monkeypatch.setattr(zygote, "fork", lambda main: main())
    monkeypatch.setattr(zygote.Host, "run", lambda self, ids: max(map(self.start, ids)))
    monkeypatch.setattr(program, "ClientSocket", socket)
    words = ["--connect", "tcp://127.0.0.1:1", "--ids", "2-3", *options]
    assert CliRunner().invoke(client_command, words, standalone_mode=False).return_value == EXIT_NO_SERVER
    assert made == [("tcp://127.0.0.1:1", client, mebibytes * 1024 * 1024) for client in (2, 3)]
