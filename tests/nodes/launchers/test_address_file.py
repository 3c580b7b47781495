"""The file by which clients find the server of a job, and a task's share of the clients."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedsim.errors import UserError
from nodes.cli.client import command as client_command
from nodes.client import program
from nodes.client.node import EXIT_NO_SERVER
from nodes.launchers import address_file
from nodes.launchers.address_file import Announcement, NoServer, reachable, wait_for_server

NOBODY = "tcp://127.0.0.1:1"


@pytest.fixture
def listening() -> Iterator[str]:
    """An address at which something listens."""
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        end.listen()
        yield f"tcp://127.0.0.1:{end.getsockname()[1]}"


@pytest.fixture(autouse=True)
def short_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """What listens in these tests never says a word."""
    monkeypatch.setattr("protocol.diagnosis._SECONDS", 0.05)
    monkeypatch.setattr(address_file, "_LOOK_SECONDS", 0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "server.json"


def written(path: Path, address: str, clients: int = 4, machine: str | None = None) -> Path:
    path.write_text(
        json.dumps({"address": address, "clients": clients, "machine": machine or socket.gethostname()})
    )
    return path


def test_the_file_is_there_while_the_server_is(path, listening):
    announcement = Announcement(path, 4)
    assert not path.exists()
    announcement.write([listening])
    assert [entry.name for entry in path.parent.iterdir()] == ["server.json"]
    found = wait_for_server(path, 0)
    assert (found.address, found.clients, found.machine) == (listening, 4, socket.gethostname())
    announcement.close()
    announcement.close()
    assert not path.exists()


def test_a_server_removes_what_was_left_and_not_what_is_anothers(path, listening):
    written(path, "tcp://no.invalid:1")
    announcement = Announcement(path, 4)
    assert not path.exists()
    announcement.write([NOBODY])
    written(path, listening)
    announcement.close()
    assert path.exists()
    with pytest.raises(UserError, match=r"is that of a server that runs at tcp://127.*; name another file, or"):
        Announcement(path, 4)


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (["tcp://10.0.0.1:7"], "tcp://10.0.0.1:7"),
        (["tcp://0.0.0.0:7"], "tcp://HERE:7"),
        (["tcp://[::]:7"], "tcp://HERE:7"),
        (["tcp://127.0.0.1:7"], "tcp://127.0.0.1:7"),
        (["tcp://127.0.0.1:7", "tcp://[::1]:8", "tcp://[fd00::1]:9"], "tcp://[fd00::1]:9"),
        (["tcp://localhost:7", "tcp://0.0.0.0:9"], "tcp://HERE:9"),
    ],
)
def test_others_are_told_an_address_that_they_can_reach(bound, expected):
    assert reachable(bound) == expected.replace("HERE", socket.gethostname())


def test_a_file_that_never_comes_is_one_sentence(path):
    with pytest.raises(NoServer) as error:
        wait_for_server(path, 0.05)
    assert str(error.value) == (
        f"there is no {path}, after 0.05 s; start `fedsim server --address-file {path}`, in a folder that all "
        "machines share, or wait longer with --patience."
    )
    assert error.value.exit_code == EXIT_NO_SERVER


def test_a_file_that_a_killed_server_left_is_waited_out(path, listening, monkeypatch):
    written(path, NOBODY)
    with pytest.raises(NoServer, match=f"^nothing listens at {NOBODY}, which .*server.json names, after 0.05 s; "):
        wait_for_server(path, 0.05)
    looks = iter(range(3))
    monkeypatch.setattr(address_file.time, "sleep", lambda _: next(looks) == 1 and written(path, listening))
    assert wait_for_server(path, 60).address == listening


def test_what_no_waiting_would_mend_is_said_at_once(path):
    with pytest.raises(UserError, match=r"which only elsewhere itself can reach; start it with --bind"):
        wait_for_server(written(path, "tcp://127.0.0.1:7", machine="elsewhere"), 60)
    with pytest.raises(UserError, match=r"knows no machine of that name; start the server with an address"):
        wait_for_server(written(path, "tcp://no.invalid:7"), 60)
    path.write_text("{}")
    with pytest.raises(UserError, match=r"is no file of `fedsim server --address-file` \(.*\); remove it\.$"):
        wait_for_server(path, 60)


@pytest.mark.parametrize("make", [lambda path: Announcement(path, 4), lambda path: wait_for_server(path, 60)])
def test_a_folder_that_does_not_exist_is_refused_by_both(make, tmp_path):
    with pytest.raises(UserError, match=r"there is no folder .*nowhere; make it where all see it\.$"):
        make(tmp_path / "nowhere" / "server.json")
    with pytest.raises(UserError, match=r"is a folder; name a file in it\.$"):
        make(tmp_path)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list:
    """The options of the clients that a command would start."""
    made: list = []
    monkeypatch.setattr(program, "run_clients", lambda options, **_: made.append(options) or 0)
    for name in ("SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    return made


def client(*words: str | Path, **environment: str):
    return CliRunner().invoke(client_command, [str(w) for w in words], standalone_mode=False, env=environment)


def test_tasks_share_the_clients(path, listening, started):
    written(path, listening, clients=5)
    for task in range(3):
        words = ("--address-file", path, "--ids", "auto", "--slots", "2")
        done = client(*words, SLURM_PROCID=str(task), SLURM_NTASKS="3")
        assert done.return_value == 0 and done.output == ""
    assert [(options.connect, options.slots) for options in started] == [(listening, 2)] * 3
    assert sorted(one for options in started for one in options.ids) == list(range(5))
    client("--address-file", path, "--ids", "3-4")
    assert started[-1].ids == [3, 4]


def test_a_task_without_clients_says_so_and_is_content(path, listening, started):
    written(path, listening, clients=1)
    words = ("--address-file", path, "--ids", "auto")
    done = [client(*words, SLURM_PROCID=task, SLURM_NTASKS="2") for task in "01"]
    assert [one.return_value for one in done] == [0, 0] and len(started) == 1
    assert "".join(one.output for one in done) in (
        f"task {task} of 2 has nothing to do: the run has 1 client.\n" for task in range(2)
    )


@pytest.mark.parametrize(
    ("words", "environment", "sentence"),
    [
        (("--ids", "auto"), {}, "this is no task of Slurm; start it with srun, or name the clients: --ids 0-9."),
        (("--ids", "auto"), {"SLURM_PROCID": "2", "SLURM_NTASKS": "2"}, "this is no task of Slurm; start it with"),
        (("--ids", "0", "--connect", "tcp://a:1"), {}, "--connect cannot be given with --address-file: "),
        (("--ids", "0", "--patience", "1"), {}, "--patience 1 is shorter than --heartbeat 5, so"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_any_wait(words, environment, sentence, path, started):
    done = client("--address-file", path, *words, **environment)
    assert isinstance(done.exception, UserError) and sentence in str(done.exception)
    assert done.exception.exit_code == 2 and not started


def test_only_the_servers_file_says_how_many_clients_there_are(started):
    done = client("--connect", "tcp://a:1", "--ids", "auto", SLURM_PROCID="0", SLURM_NTASKS="2")
    assert str(done.exception).startswith("--ids auto needs --address-file: ")
