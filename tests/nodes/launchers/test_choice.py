"""Which launcher options mean, and what is refused before anything exists."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from fedsim import config
from fedsim.errors import UserError
from fedsim.results.folder import RunFolder
from nodes.launchers import choice
from nodes.launchers.choice import Chosen
from nodes.launchers.local import LocalLauncher
from nodes.launchers.ssh import SshLauncher

NOTHING: dict[str, Any] = {
    "curve": False,
    "hosts": None,
    "address": None,
    "remote_python": None,
    "ray_address": None,
}


def chosen(name: str | None = None, port: int = 0, **options: Any) -> Chosen:
    return Chosen.of(name, port=port, **{**NOTHING, **options})


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", config.build([{"run": {"clients": 2}}]))


def test_links_are_waited_for_on_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice.ssh, "require_ssh", lambda: None)
    far, slow = chosen(hosts="one,two"), config.build([{"world": {"link": "3g"}}])
    chosen().check(slow)
    far.check(config.build([{"world": {"link": "3g", "wait": False}}]))
    with pytest.raises(UserError, match=r"links are waited for on this machine only; .* world.wait=false"):
        far.check(slow)


def test_without_a_word_all_is_on_this_machine(folder: RunFolder) -> None:
    simple = chosen()
    assert (simple.address, simple.curve) == ("tcp://127.0.0.1:*", False)
    assert isinstance(simple.launcher(folder, None, resume=False), LocalLauncher)


def test_hosts_mean_ssh_and_keys(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice.ssh, "require_ssh", lambda: None)
    over_ssh = chosen(hosts="one, alice@two", port=5000)
    launcher = over_ssh.launcher(folder, None, resume=False)
    assert over_ssh.curve and over_ssh.address.endswith(":5000")
    assert isinstance(launcher, SshLauncher) and launcher.machines() == ["one", "alice@two"]


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        (
            None,
            {"ray_address": "auto"},
            "--ray-address has no effect with --launcher local: it is for --launcher ray.",
        ),
        ("ray", {"hosts": "a"}, "--hosts has no effect with --launcher ray: it is for --launcher ssh."),
        ("ssh", {"hosts": "a", "curve": True}, "--curve has no effect with --launcher ssh: keys are always used."),
        ("ssh", {}, "--launcher ssh needs to know the machines; name them with --hosts one,two."),
        (None, {"hosts": "a,,b"}, "--hosts: '' is no machine to log in to; write --hosts one,two,user@three."),
        (None, {"hosts": "-oProxyCommand=x"}, "'-oProxyCommand=x' is no machine to log in to"),
        (None, {"hosts": "a,b,a"}, "--hosts names a twice; one host starts all clients of a machine."),
    ],
)
def test_what_would_be_ignored_or_cannot_be(name: str | None, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        chosen(name, **options)
    assert sentence in str(refused.value)


def test_programs_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice.ssh.shutil, "which", lambda name: None)
    with pytest.raises(UserError, match=r"there is no program ssh here; install it"):
        chosen(hosts="one")
    monkeypatch.setattr(choice.ray.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"Ray is not installed; run: pip install"):
        chosen("ray")


@pytest.mark.parametrize(
    ("listed", "reason"), [("", "SLURM_JOB_NODELIST is not set"), ("n[1-", "Invalid hostlist: n[1-")]
)
def test_a_job_whose_nodes_are_not_known_is_no_job(
    listed: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = subprocess.CompletedProcess([], 1 if listed else 0, "", f"{reason}\n")
    monkeypatch.setattr(choice.slurm.subprocess, "run", lambda *_, **__: told)
    monkeypatch.setattr(choice.slurm.shutil, "which", lambda name: name)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", listed)
    with pytest.raises(UserError) as refused:
        chosen("slurm")
    assert str(refused.value) == (
        f"the nodes of job 7 are not known here ({reason}); type the command in a shell of salloc, or in a script "
        "for sbatch."
    )
