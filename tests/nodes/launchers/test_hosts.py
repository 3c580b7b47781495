"""Hosts that begin, fail and die, over doubles of the lines to them: nothing is started."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fedsim import config
from fedsim.errors import UserError
from fedsim.results.folder import RunFolder
from fedsim.version import __version__
from nodes.launchers import hosts
from nodes.launchers.base import LaunchOptions
from nodes.launchers.bundle import Bundle, decode
from nodes.launchers.host import AnySaid, Begun, Crashed, Ended, Facts, Trouble
from nodes.launchers.hosts import HostsLauncher, Line

ADDRESS = "tcp://[::]:7777"


class FakeLine:
    """A host that answers as the test wants: `answer` to its bundle, `death` at any time."""

    def __init__(self, facts: Facts, answer: AnySaid) -> None:
        self.told: list[Bundle] = []
        self.death: str | None = None
        self.hung_up = False
        self._answer = answer
        self._says: list[AnySaid] = [facts]

    def say(self, said: AnySaid) -> None:
        self._says.append(said)

    def tell(self, text: bytes) -> None:
        self.told.append(decode(text, "the test"))
        self.say(self._answer)

    def listen(self) -> list[bytes]:
        said, self._says = self._says, []
        return [b"Welcome to this machine!", *map(msgspec.json.encode, said)]

    def ended(self) -> str | None:
        return self.death

    def hang_up(self) -> None:
        self.hung_up = True
        self.death = self.death or "ended with code 0"

    def cut(self) -> None:
        assert self.death is not None


class FakeMachines(HostsLauncher):
    """By name: their cores, and what their hosts answer."""

    def __init__(self, folder: RunFolder, cores: dict[str, int], **answers: AnySaid) -> None:
        super().__init__(folder, self, LaunchOptions(ADDRESS, curve=True), None)
        self.notes: list[str] = []
        self.cores, self.answers = cores, answers
        self.gpus: dict[str, int] = {}
        self.lines: dict[str, list[FakeLine]] = {}

    def on_event(self, event: dict[str, Any]) -> None:
        self.notes.append(event["text"])

    def close(self) -> None: ...

    def machines(self) -> list[str]:
        return list(self.cores)

    def call(self, machine: str, log: Path) -> Line:
        assert log == self.folder.logs / f"host-{machine}.log"
        facts = Facts(version=__version__, cores=self.cores[machine], gpus=self.gpus.get(machine, 0))
        line = FakeLine(facts, self.answers.get(machine, Begun()))
        self.lines.setdefault(machine, []).append(line)
        return line

    def default_server_name(self, facts: Facts) -> str:
        return "10.0.0.9"


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., FakeMachines]:
    def made(cores: dict[str, int], cluster: dict[str, Any] | None = None, **answers: AnySaid) -> FakeMachines:
        experiment = config.build([{"run": {"clients": 4}, "cluster": cluster or {}}])
        return FakeMachines(RunFolder.create(tmp_path / "run", experiment), cores, **answers)

    return made


def ids_of(line: FakeLine) -> list[int]:
    return line.told[-1].options().ids


def test_each_host_is_told_its_share_and_nobody_elses_secrets(make: Callable[..., FakeMachines]) -> None:
    launcher = make({"a": 1, "b": 3})
    launcher.start_clients(ADDRESS)
    told = {machine: lines[0].told[0] for machine, lines in launcher.lines.items()}
    assert {machine: set(bundle.keys) for machine, bundle in told.items()} == {"a": {0}, "b": {1, 2, 3}}
    options = told["b"].options()
    assert (options.connect, options.place, options.keys) == ("tcp://10.0.0.9:7777", "b", None)
    assert launcher.notes == ["2 hosts with clients: a 0, b 1-3"]


@pytest.mark.parametrize(
    ("device", "shares"), [("auto", {"b": [0, 1, 2, 3]}), ("cpu", {"a": [0, 1, 2], "b": [3]})]
)
def test_gpus_that_are_not_to_be_used_weigh_nothing(
    device: str, shares: dict[str, list[int]], make: Callable[..., FakeMachines]
) -> None:
    launcher = make({"a": 6, "b": 2}, cluster={"device": device})
    launcher.gpus = {"b": 1}
    launcher.start_clients(ADDRESS)
    assert {machine: ids_of(line) for machine, (line,) in launcher.lines.items() if line.told} == shares


def test_a_host_without_clients_goes_home(make: Callable[..., FakeMachines]) -> None:
    launcher = make({"a": 64, "b": 1})
    launcher.start_clients(ADDRESS)
    assert launcher.lines["b"][0].hung_up and not launcher.lines["b"][0].told
    launcher.watch_clients()
    assert len(launcher.lines["b"]) == 1, "nobody misses it"


def test_no_machine_at_all_is_a_sentence(make: Callable[..., FakeMachines]) -> None:
    with pytest.raises(UserError, match=r"^there is no machine with a core or a GPU for clients; add one"):
        make({}).start_clients(ADDRESS)


def test_trouble_at_the_start_is_a_sentence(make: Callable[..., FakeMachines]) -> None:
    launcher = make({"a": 1, "b": 1}, b=Trouble(reason="it finds no server"))
    with pytest.raises(UserError, match=r"^host b: it finds no server\.$"):
        launcher.start_clients(ADDRESS)


def test_another_version_is_refused_with_both(
    make: Callable[..., FakeMachines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "__version__", "9.9")
    with pytest.raises(
        UserError, match=rf"host a has fedsim {__version__} and this machine 9\.9; install the same"
    ):
        make({"a": 1}).start_clients(ADDRESS)


def test_a_silent_host_is_not_waited_for_for_ever(
    make: Callable[..., FakeMachines], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "_ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(FakeLine, "listen", lambda self: [])
    with pytest.raises(UserError, match="host a has not answered within 0 s"):
        make({"a": 1}).start_clients(ADDRESS)


def test_where_clients_save_hosts_must_see_it(make: Callable[..., FakeMachines]) -> None:
    launcher = make({"a": 1}, cluster={"checkpoint_every": 1})
    launcher.start_clients(ADDRESS)
    (bundle,) = launcher.lines["a"][0].told
    assert Path(bundle.proof).exists()
    assert bundle.options().state_dir == launcher.folder.checkpoints
    launcher.kill_clients()
    assert not Path(bundle.proof).exists()


def test_a_dead_host_is_started_again_where_it_was(make: Callable[..., FakeMachines]) -> None:
    launcher = make({"a": 1, "b": 1})
    launcher.start_clients(ADDRESS)
    launcher.lines["b"][0].death = "was killed by signal 9"
    launcher.watch_clients()
    launcher.watch_clients()
    assert [ids_of(line) for line in launcher.lines["b"]] == [[2, 3], [2, 3]]
    assert launcher.notes[-1] == "host b was killed by signal 9; clients 2-3 start again on b"


def test_clients_move_from_a_machine_that_cannot_begin_to_where_there_is_least_to_do(
    make: Callable[..., FakeMachines],
) -> None:
    launcher = make({"a": 2, "b": 1, "c": 1})
    launcher.start_clients(ADDRESS)
    launcher.answers["c"] = Trouble(reason="it finds no server")
    launcher.lines["c"][0].death = "is gone"
    for _ in range(4):
        launcher.watch_clients()
    assert [ids_of(line) for line in launcher.lines["b"]] == [[2], [3]]
    assert launcher.notes[-1] == "host c: it finds no server; client 3 starts again on b"


def test_when_nobody_is_left_it_is_said(make: Callable[..., FakeMachines]) -> None:
    launcher = make({"a": 2})
    launcher.start_clients(ADDRESS)
    launcher.cores = {}
    launcher.lines["a"][0].death = "is gone"
    launcher.watch_clients()
    assert launcher.notes[-1] == "host a is gone; no other host is left for clients 0-3"


def test_clients_that_ended_by_themselves_are_not_started_again(make: Callable[..., FakeMachines]) -> None:
    launcher = make({"a": 1})
    launcher.start_clients(ADDRESS)
    line = launcher.lines["a"][0]
    line.say(Ended())
    line.death = "ended with code 3"
    launcher.watch_clients()
    assert len(launcher.lines["a"]) == 1 and len(launcher.notes) == 1


def test_a_host_that_crashed_is_told_of_and_not_started_again(make: Callable[..., FakeMachines]) -> None:
    launcher = make({"a": 1})
    launcher.start_clients(ADDRESS)
    line = launcher.lines["a"][0]
    line.say(Crashed(reason="no device cuda:3."))
    line.death = "ended with code 70"
    launcher.watch_clients()
    launcher.watch_clients()
    assert len(launcher.lines["a"]) == 1
    story = "host a has crashed, and all its clients have died with it: no device cuda:3"
    assert launcher.notes[1:] == [f"{story}; see {launcher.folder.logs / 'host-a.log'}"]
