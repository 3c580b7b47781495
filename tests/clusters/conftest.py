"""Real clusters on this machine, made by the tests themselves: an ssh server, Slurm, Ray.

`make test-clusters` runs these; `make test` does not collect them. Where a program is missing its tests are
skipped, and the reason says what to install.
"""

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from commands import PROJECT, wait_for

from benchmarks._ports import free_port

HOST_PROGRAM = "nodes.launchers.host"
MACHINES = ("one", "two", "three")
ENTER = """#!/bin/sh
test -e {folder}/closed-$1 && {{ echo "machine $1 is closed" >&2; exit 255; }}
export TEST_MACHINE=$1 PYTHONPATH={project}
exec sh -c "$SSH_ORIGINAL_COMMAND"
"""
SSHD = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/authorized
PidFile none
StrictModes no
PasswordAuthentication no
PermitRootLogin yes
UsePAM no
"""
CLIENT = """\
Host {machine}
  HostName 127.0.0.1
  User {user}
  Port {port}
  IdentityFile {folder}/{machine}
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
  StrictHostKeyChecking accept-new
  LogLevel ERROR
"""


SLURM_MARK, RAY_MARK = "FEDSIM_TEST_SLURM", "FEDSIM_TEST_RAY"


def program(name: str, package: str) -> str:
    """The path of a program; without it the test is skipped."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"needs the program {name} (Debian: apt-get install {package})")
    return found


def hosts(mark: str) -> list[psutil.Process]:
    """Host processes with these words in their environment, `NAME=value`."""
    name, _, value = mark.partition("=")
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if HOST_PROGRAM in process.cmdline() and process.environ().get(name) == value:
                found.append(process)
    return found


def hosts_of(machine: str) -> list[psutil.Process]:
    """Those that were started over ssh for a machine of the test."""
    return hosts(f"TEST_MACHINE={machine}")


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test there is no host, no client and no folder of theirs."""
    temporary = set(Path("/tmp").glob("fedsim-host-*"))
    yield
    marks = [*(f"TEST_MACHINE={machine}" for machine in MACHINES), f"{SLURM_MARK}=1", f"{RAY_MARK}=1"]
    for mark in marks:
        wait_for(lambda mark=mark: not hosts(mark), f"a host of {mark} is still there", 30)
    assert set(Path("/tmp").glob("fedsim-host-*")) == temporary


@dataclass(frozen=True)
class Ssh:
    """Machines `one`, `two` and `three`, which are all this one, behind a server with a key of its own."""

    folder: Path
    path: str
    """The PATH with which `ssh` means ours."""

    def kill_host(self, machine: str) -> None:
        wait_for(lambda: hosts_of(machine), f"no host on {machine}")[0].send_signal(signal.SIGKILL)

    def close_machine(self, machine: str) -> None:
        """From now on nobody is let in, and who is there is thrown out."""
        (self.folder / f"closed-{machine}").touch()
        for process in hosts_of(machine):
            process.send_signal(signal.SIGKILL)


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Ssh]]:
    """`sshd()`: a running server, made once."""
    daemon, client, keygen = (
        program(name, package)
        for name, package in (
            ("sshd", "openssh-server"),
            ("ssh", "openssh-client"),
            ("ssh-keygen", "openssh-client"),
        )
    )
    folder, port = tmp_path_factory.mktemp("sshd"), free_port()
    for key in ("host", *MACHINES):
        subprocess.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    # A key for each machine: which one it was decides in whose name the command runs.
    lines = [
        f'command="{folder}/enter {machine}" {(folder / f"{machine}.pub").read_text()}' for machine in MACHINES
    ]
    (folder / "authorized").write_text("".join(lines))
    (folder / "enter").write_text(ENTER.format(folder=folder, project=PROJECT))
    (folder / "sshd_config").write_text(SSHD.format(folder=folder, port=port))
    (folder / "ssh_config").write_text(
        "".join(
            CLIENT.format(folder=folder, port=port, machine=machine, user=getpass.getuser())
            for machine in MACHINES
        )
    )
    (folder / "bin").mkdir()
    (folder / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {client} -F {folder}/ssh_config "$@"\n')
    for script in (folder / "enter", folder / "bin" / "ssh"):
        script.chmod(0o755)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where it wants to drop its privileges
    server = subprocess.Popen([daemon, "-D", "-f", folder / "sshd_config", "-E", folder / "log"])
    try:
        wait_for(lambda: _answers(port), f"sshd does not listen: {(folder / 'log')}", 30)
        yield lambda: Ssh(folder, f"{folder}/bin:{os.environ['PATH']}")
    finally:
        server.terminate()
        server.wait(10)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


# ------------------------------------------------------------------------------------------------------ Slurm

SLURM = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPort={ports[0]}
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
KillWait=5
JobRequeue=1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's programs find a cluster of two nodes, which are both this machine."""
    munged, controller, daemon = (
        program(name, package)
        for name, package in (
            ("munged", "munge"),
            ("slurmctld", "slurm-wlm"),
            ("slurmd", "slurm-wlm"),
        )
    )
    if os.getuid() != 0:
        pytest.skip("needs to be root: slurmd starts jobs in users' names")
    folder = tmp_path_factory.mktemp("slurm")
    for parent in (folder, *folder.parents):
        if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(0o755)  # munge wants a path that others cannot change but can follow
    for name in ("state", "spool-n1", "spool-n2", "munge"):
        (folder / name).mkdir(mode=0o700)
    (folder / "munge" / "key").write_bytes(os.urandom(1024))
    (folder / "munge" / "key").chmod(0o400)
    config = folder / "slurm.conf"
    ports = [free_port() for _ in range(3)]
    config.write_text(SLURM.format(host=socket.gethostname(), folder=folder, ports=ports, user=getpass.getuser()))
    environment = {"SLURM_CONF": str(config), SLURM_MARK: "1"}
    files = [f"--{what}-file={folder}/munge/{what}" for what in ("key", "pid", "log", "seed")]
    commands = [
        [munged, "--foreground", "--force", f"--socket={folder}/munge.sock", *files],
        [controller, "-D", "-f", config],
        *([daemon, "-D", "-f", config, "-N", node] for node in ("n1", "n2")),
    ]
    started: list[subprocess.Popen[bytes]] = []
    try:
        with (folder / "output").open("wb") as output:
            for command in commands:
                run = subprocess.Popen(
                    command, stdout=output, stderr=output, env={**os.environ, **environment, SLURM_MARK: ""}
                )
                started.append(run)
        idle = ["sinfo", "--noheader", "--format=%D %t"]
        wait_for(
            lambda: (
                "2 idle"
                in subprocess.run(
                    idle, capture_output=True, text=True, env={**os.environ, **environment}, check=False
                ).stdout
            ),
            f"the nodes are not idle: see {folder}",
            60,
        )
        yield environment
    finally:
        for run in reversed(started):
            run.terminate()
        for run in reversed(started):
            run.wait(30)
