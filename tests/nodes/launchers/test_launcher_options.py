"""Every launcher passes on every option that an experiment decides for its clients."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedsim import config
from fedsim.config import Cluster
from fedsim.results.folder import RunFolder
from nodes.cli.client import command
from nodes.client.options import ClientOptions
from nodes.launchers import local, ray
from nodes.launchers.base import LaunchOptions
from nodes.launchers.local import LocalLauncher
from nodes.launchers.manual import print_commands
from nodes.launchers.ray import RayLauncher, run_host

CLUSTER = {
    "device": "cpu",
    "slots": 3,
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
    assert changed == {"--device", "--slots", "--patience", "--heartbeat", "--max-frame-mib"}


def parsed(words: list[str]) -> ClientOptions:
    return ClientOptions(**command.make_context("client", list(words)).params)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", EXPERIMENT)


def test_on_this_machine(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process is started: what the host would do is done here."""
    given: list[ClientOptions] = []
    monkeypatch.setattr(local.zygote, "fork", lambda main: main())
    monkeypatch.setattr(local.zygote, "redirect_output", lambda path: None)
    monkeypatch.setattr(local, "run_clients", lambda options: given.append(options) or 0)
    launcher = LocalLauncher(folder, SimpleNamespace(), LaunchOptions(curve=True))
    launcher.start_clients(ADDRESS)
    own = {"keys": folder.path / "keys", "state_dir": folder.checkpoints, "logs": folder.logs, "restarts": 10}
    assert given == [replace(DECIDED, **own)]


def test_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_commands(EXPERIMENT, tmp_path / "run", 7777)
    words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert words[:3] == ["python", "-m", "nodes.client"]
    assert parsed(words[3:]) == replace(DECIDED, connect="tcp://SERVER:7777", keys=Path("keys"))


class FakeRay:
    """Two machines of two cores each; a task is noted, not run."""

    def __init__(self) -> None:
        self.tasks: list[tuple[str, Any]] = []
        self.util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.9")

    def init(self, **options: Any) -> None:
        self.options = options

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": name, "Resources": {"CPU": 2.0}, "Alive": name != "dead"} for name in ("a", "dead", "b")
        ]

    def remote(self, **options: Any) -> Any:
        assert options == {"max_retries": 0}

        def wrap(function: Any) -> Any:
            assert function is run_host

            def at(num_cpus: int, scheduling_strategy: str) -> Any:
                return SimpleNamespace(remote=lambda *given: self.tasks.append((scheduling_strategy, given)))

            return SimpleNamespace(options=at)

        return wrap


def test_on_ray(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay()
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    RayLauncher(folder, SimpleNamespace(), "auto").start_clients(ADDRESS)
    assert fake.options["address"] == "auto"
    assert [node for node, _ in fake.tasks] == ["a", "b"]
    for (_, (words, secrets, code)), ids in zip(fake.tasks, ([0, 1], [2, 3]), strict=True):
        assert parsed(words) == replace(DECIDED, connect="tcp://10.0.0.9:7777", ids=ids)
        assert set(secrets) == {"server.key", *(f"client-{client}.key_secret" for client in ids)}
        assert code == {}, "a method of ours is there already"


def test_a_machine_of_ray_has_keys_and_states_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves neither behind."""
    seen: dict[str, Any] = {}

    def run(argv: list[str], check: bool) -> Any:
        seen["options"] = options = parsed(argv[3:])
        assert argv[:3] == [sys.executable, "-m", "nodes.client"] and options.keys is not None
        seen["files"] = {
            path.name: (path.read_bytes(), path.stat().st_mode & 0o777) for path in options.keys.iterdir()
        }
        return SimpleNamespace(returncode=4)

    monkeypatch.setattr(ray.subprocess, "run", run)
    assert run_host(DECIDED.words(), {"client-0.key_secret": b"secret"}, {}) == 4
    options = seen["options"]
    assert options == replace(DECIDED, keys=options.keys, state_dir=options.keys / "state")
    assert seen["files"] == {"client-0.key_secret": (b"secret", 0o600)}
    assert not options.keys.exists()
