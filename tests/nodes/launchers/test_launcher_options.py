"""Every launcher passes on every option that an experiment decides for its clients."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from fedsim import config
from fedsim.config import Cluster
from fedsim.errors import UserError
from fedsim.results.folder import RunFolder
from fedsim.version import __version__
from nodes.client.options import ClientOptions
from nodes.launchers import bundle, host, local
from nodes.launchers.base import LaunchOptions
from nodes.launchers.bundle import Bundle
from nodes.launchers.host import Begun, Facts
from nodes.launchers.local import LocalLauncher
from nodes.launchers.ssh import SshLauncher

CLUSTER = {
    "device": "cpu",
    "slots": 3,
    "compute": "shared",
    "patience_seconds": 90.0,
    "heartbeat_seconds": 2.5,
    "max_frame_mib": 16,
}
ADDRESS = "tcp://0.0.0.0:7777"
EXPERIMENT = config.build([{"run": {"clients": 4}, "cluster": CLUSTER}])
DECIDED = ClientOptions.of(EXPERIMENT.cluster, connect=ADDRESS, ids=[0, 1, 2, 3])
"""What every launcher must hand to its clients, beside what is its own to say."""


def test_the_experiment_leaves_no_option_as_it_is():
    plain = ClientOptions.of(Cluster(), connect=ADDRESS, ids=[0, 1, 2, 3])
    changed = {flag for flag in DECIDED.words()[::2] if flag not in plain.words()}
    assert changed == {"--device", "--slots", "--compute", "--patience", "--heartbeat", "--max-frame-mib"}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", EXPERIMENT)


def test_on_this_machine(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started: what the host would do is done here."""
    given: list[ClientOptions] = []
    monkeypatch.setattr(local.zygote, "fork", lambda main: main())
    monkeypatch.setattr(local.zygote, "redirect_output", lambda path: None)
    monkeypatch.setattr(local, "run_clients", lambda options, plan: given.append(options) or 0)
    launcher = LocalLauncher(folder, SimpleNamespace(), LaunchOptions(curve=True))
    launcher.start_clients(ADDRESS)
    own = {"keys": folder.path / "keys", "state_dir": folder.checkpoints, "logs": folder.logs, "restarts": 10}
    assert given == [replace(DECIDED, **own)]  # the experiment has decided how to compute


def test_the_keys_of_a_run_that_is_going_on_are_left_alone(folder: RunFolder) -> None:
    """Its clients that are started again need them; a run that is over gets new ones when it goes on."""

    def launch() -> dict[str, bytes]:
        made = LocalLauncher(folder, SimpleNamespace(), LaunchOptions(curve=True, resume=True)).keys_folder
        assert made == folder.path / "keys"
        return keys()

    def keys() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (folder.path / "keys").iterdir()}

    before = launch()
    with folder.in_use(), pytest.raises(UserError, match="is being worked on by another process; wait"):
        launch()
    assert keys() == before and "client-3.key_secret" in before
    after = launch()
    assert after.keys() == before.keys() and not after.items() & before.items()


def test_by_hand(tmp_path: Path) -> None:
    files = bundle.make_files(EXPERIMENT, ADDRESS, 2, tmp_path / "keys")
    for (path, ids), own in zip(files, ([0, 1], [2, 3]), strict=True):
        told = bundle.read(path)
        assert ids == f"{own[0]}-{own[1]}" and list(told.keys) == own
        assert told.options() == replace(DECIDED, ids=own, place=path.stem)
        assert path.stat().st_mode & 0o777 == 0o600
    secret = {path.name for path in (tmp_path / "keys").glob("*.key_secret")}
    assert secret == {"server.key_secret"}, "a client's secret is in its bundle and nowhere else"


class FakeLine:
    """A machine of two cores: it gives its facts, takes its bundle, and begins."""

    def __init__(self, gpus: int = 0) -> None:
        self.told: list[Bundle] = []
        self._says: list[host.AnySaid] = [Facts(version=__version__, cores=2, gpus=gpus, seen_from="::1")]

    def tell(self, text: bytes) -> None:
        self.told.append(bundle.decode(text, "the test"))
        self._says.append(Begun())

    def listen(self) -> list[bytes]:
        said, self._says = self._says, []
        return [msgspec.json.encode(item) for item in said]

    def ended(self) -> None:
        return None


def test_over_ssh(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so with Slurm and Ray, which only call their machines in other ways."""
    lines = {"one": FakeLine(), "two": FakeLine()}
    launcher = SshLauncher(folder, SimpleNamespace(on_event=print), LaunchOptions(curve=True), list(lines))
    monkeypatch.setattr(launcher, "call", lambda machine, log: lines[machine])
    launcher.start_clients(ADDRESS)
    for (machine, line), ids in zip(lines.items(), ([0, 1], [2, 3]), strict=True):
        (told,) = line.told
        own = {"connect": "tcp://[::1]:7777", "ids": ids, "place": machine, "restarts": 10}
        assert told.options() == replace(DECIDED, **own)
        assert set(told.secrets()) == set(ids)
        assert told.code == {} and told.proof == "", "a method of ours is there already, and nothing is saved"
