"""A host of clients: which code it ends with, and what it adds to what the clients say themselves."""

from pathlib import Path

import pytest
from commands import Command, Start

STOPPED = """
import os, signal, sys
from nodes.launchers import zygote

begun, begins = os.pipe()
wait = os.wait

def work():
    os.write(begins, b"x")
    signal.pause()

def wait_and_be_stopped():
    ended = wait()
    os.kill(os.getpid(), signal.SIGTERM)  # between a client's end and the look at who it was
    return ended

os.wait = wait_and_be_stopped
ends = [lambda: len(os.read(begun, 1) + os.read(begun, 1)) - 2, work, work]
sys.exit(zygote.Host(lambda client: zygote.fork(ends[client])).run(range(3)))
"""

LIVE = """
import sys
from pathlib import Path
from rich.console import Console
from rich.live import Live
from nodes.launchers import zygote

def work():
    zygote.redirect_output(Path("log"))
    print("a line", 20 * "that is long ")
    print("trouble", file=sys.stderr)
    return 0

with Live("the view", console=Console(force_terminal=True, width=40), auto_refresh=False) as live:
    live.refresh()
    sys.exit(not zygote.has_ended(zygote.fork(work), 30))
"""

PROBE = """
import os, signal, sys
from nodes.launchers import zygote

ends = {0: lambda: 0, 1: lambda: 1, 3: lambda: 3, 4: lambda: 4, 9: lambda: os.kill(os.getpid(), signal.SIGKILL)}
host = zygote.Host(lambda client: zygote.fork(ends[client]), max_restarts=1, own_logs=sys.argv[1] == "own")
sys.exit(host.run(map(int, sys.argv[2:])))
"""


@pytest.fixture
def host(python: Start, tmp_path: Path):
    """`host("own", 3, 4)`: clients that end with the code of their id; 9 is killed, again and again."""
    (tmp_path / "probe.py").write_text(PROBE)

    def run(logs: str, *clients: int) -> Command:
        command = python(tmp_path / "probe.py", logs, *map(str, clients))
        command.wait()
        return command

    return run


@pytest.mark.parametrize(
    ("clients", "code"),
    [((0, 0), 0), ((3,), 3), ((4, 4), 4), ((0, 3), 3), ((3, 4), 4), ((4, 1, 3, 0), 4), ((9,), 1), ((9, 3), 3)],
)
def test_a_host_ends_with_the_largest_code_of_its_clients(host, clients, code):
    assert host("shared", *clients).code == code


def test_a_host_that_is_to_end_while_a_client_does_ends_the_others(python: Start, tmp_path: Path) -> None:
    (tmp_path / "stopped.py").write_text(STOPPED)
    command = python(tmp_path / "stopped.py")
    assert (command.wait(), command.stderr, command.alive()) == (0, "", [])


def test_a_live_view_stays_out_of_the_log_of_what_is_forked_under_it(python: Start, tmp_path: Path) -> None:
    (tmp_path / "live.py").write_text(LIVE)
    python(tmp_path / "live.py").succeed()
    assert sorted((tmp_path / "log").read_text().splitlines()) == [f"a line {20 * 'that is long '}", "trouble"]


def test_a_client_that_has_said_why_it_ended_is_not_spoken_for(host):
    assert host("shared", 1, 3, 4).stderr == ""
    assert host("own", 3, 0).stderr == "client 3 exited with code 3\n"


def test_a_client_that_was_killed_could_not_say_anything(host):
    assert host("shared", 9).stderr.splitlines() == [
        "client 9 was killed by signal 9 (SIGKILL); starting it again",
        "client 9 was killed by signal 9 (SIGKILL)",
    ]


TOLD_AT_ONCE = """
import os, signal, sys
from nodes.launchers import zygote

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGTERM, interrupt)
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
_, status = os.waitpid(zygote.fork(lambda: 0), 0)
before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
sys.exit(0 if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM and not before else 1)
"""


def test_a_child_that_is_told_to_end_as_soon_as_it_is_there_ends(python: Start, tmp_path: Path) -> None:
    """With its parent's handler it would only have raised something in the middle of the fork, and gone on."""
    (tmp_path / "told.py").write_text(TOLD_AT_ONCE)
    command = python(tmp_path / "told.py")
    assert command.wait() == 0 and command.stderr == ""
