"""Which launcher the user's options mean. What it ignores is refused, and what it needs is looked for, before any
folder or process is made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedsim.config import Experiment
from fedsim.errors import UserError
from fedsim.results.folder import RunFolder
from nodes.display.run import Display
from nodes.launchers import ray, slurm, ssh
from nodes.launchers.base import Launcher, LaunchOptions
from nodes.launchers.local import LocalLauncher
from nodes.launchers.ray import RayLauncher
from nodes.launchers.relay import is_wanted
from nodes.launchers.slurm import SlurmLauncher
from nodes.launchers.ssh import SshLauncher
from protocol.addresses import any_address

Make = Callable[[RunFolder, Display, LaunchOptions], Launcher]

_TAKES = {
    "local": {"curve"},
    "ssh": {"hosts", "address", "remote_python"},
    "slurm": {"address", "remote_python"},
    "ray": {"address", "ray_address"},
}
"""The options that each has beside --port."""


@dataclass(frozen=True)
class Chosen:
    make: Make
    address: str
    curve: bool

    @classmethod
    def of(cls, name: str | None, *, port: int, **options: Any) -> "Chosen":
        """`options` by the names under which they are typed."""
        given = {option: value for option, value in options.items() if value}
        name = name or ("ssh" if "hosts" in given else "local")
        for option in given:
            if option not in _TAKES[name]:
                typed = f"--{option.replace('_', '-')}"
                others = " or ".join(f"--launcher {other}" for other in _TAKES if option in _TAKES[other])
                reason = "keys are always used" if option == "curve" else f"it is for {others}"
                raise UserError(f"{typed} has no effect with --launcher {name}: {reason}.")
        if name == "local":
            return cls(LocalLauncher, f"tcp://127.0.0.1:{port or '*'}", "curve" in given)
        makers: dict[str, Callable[..., Make]] = {"ssh": _ssh, "slurm": _slurm, "ray": _ray}
        return cls(makers[name](**given), any_address(port), curve=True)

    def check(self, experiment: Experiment) -> None:
        if self.make is not LocalLauncher:
            refuse_links(experiment)

    def launcher(self, folder: RunFolder, display: Display, *, resume: bool) -> Launcher:
        return self.make(folder, display, LaunchOptions(self.address, curve=self.curve, resume=resume))


def refuse_links(experiment: Experiment) -> None:
    """Between machines there are real ones already."""
    if is_wanted(experiment):
        raise UserError(
            "links are waited for on this machine only; for the virtual clock alone --set world.wait=false."
        )


def _ssh(hosts: str = "", address: str | None = None, remote_python: str | None = None) -> Make:
    if not hosts:
        raise UserError("--launcher ssh needs to know the machines; name them with --hosts one,two.")
    machines = ssh.parse_hosts(hosts)
    ssh.require_ssh()
    return lambda folder, display, run: SshLauncher(folder, display, run, machines, address, remote_python)


def _slurm(address: str | None = None, remote_python: str | None = None) -> Make:
    slurm.require_slurm()
    return lambda folder, display, run: SlurmLauncher(folder, display, run, address, remote_python)


def _ray(ray_address: str | None = None, address: str | None = None) -> Make:
    ray.require_ray()
    return lambda folder, display, run: RayLauncher(folder, display, run, ray_address, address)
