"""A cluster scheduled by Ray (extra `ray`): the server here, a host of clients on every node of the Ray cluster.

Ray only decides where hosts run and tells when one has died; messages still go over our own sockets, so they are
measured like everywhere else. The nodes of a Ray cluster trust each other with code, so the clients' secret
keys and the files of own code are handed to them through Ray; on every other way to start a run, neither travels.
"""

import importlib
import importlib.util
import itertools
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsim.errors import UserError
from fedsim.results.folder import RunFolder
from nodes.client.options import ClientOptions
from nodes.display.run import Display
from nodes.launchers.base import Launcher, LaunchOptions
from protocol import keys

_EXIT_GRACE_SECONDS = 10.0


def assign(num_clients: int, machines: Sequence[Mapping[str, float]]) -> list[list[int]]:
    """A block of ids for each, in proportion to the machines' GPUs, or to their cores where none has a GPU."""
    kind = "GPU" if any(machine.get("GPU") for machine in machines) else "CPU"
    reached = list(itertools.accumulate(machine.get(kind, 0.0) for machine in machines))
    ends = [math.floor(num_clients * so_far / reached[-1] + 0.5) for so_far in reached]
    return [list(range(start, end)) for start, end in itertools.pairwise([0, *ends])]


def require_ray() -> None:
    """Before any folder or process exists; without importing it, which would start threads."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("Ray is not installed; run: pip install 'fedsim-htfl[ray]'")


def run_host(options: list[str], secrets: dict[str, bytes], code: dict[str, bytes]) -> int:
    """Runs on a node: the same program that a person would start there by hand."""
    with tempfile.TemporaryDirectory(prefix="fedsim-") as folder:
        for name, content in (secrets | code).items():
            path = Path(folder) / name
            path.touch(mode=0o600)
            path.write_bytes(content)
        here = ["--keys", folder, "--state-dir", f"{folder}/state"]
        here += [word for name in code for word in ("--code", f"{folder}/{name}")]
        return subprocess.run([sys.executable, "-m", "nodes.client", *options, *here], check=False).returncode


class RayLauncher(Launcher):
    """`ray_address` is that of a running cluster ("auto"); without one Ray starts a cluster on this machine."""

    def __init__(self, folder: RunFolder, display: Display, ray_address: str | None):
        super().__init__(folder, display, LaunchOptions(address="tcp://0.0.0.0:*", curve=True))
        self._ray_address = ray_address
        self._tasks: list[Any] = []
        self._ray: Any = None

    def start_clients(self, address: str) -> None:
        """Ray is imported here, after the server was forked: it starts threads, which no fork survives."""
        ray = self._ray = importlib.import_module("ray")
        affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        ray.init(address=self._ray_address, logging_level="warning", log_to_driver=False)
        nodes = [node for node in ray.nodes() if node["Alive"]]
        blocks = assign(self.experiment.run.clients, [node["Resources"] for node in nodes])
        reachable = address.replace("0.0.0.0", ray.util.get_node_ip_address())
        remote = ray.remote(max_retries=0)(run_host)
        for node, ids in zip(nodes, blocks, strict=True):
            if not ids:
                continue
            there = affinity(node["NodeID"], soft=False)
            # Our own slots keep a machine from doing too much at once, so Ray need not reserve cores.
            placed = remote.options(num_cpus=0, scheduling_strategy=there)
            installed = tuple(place for place in self.code if not place.endswith(".py"))
            options = ClientOptions.of(self.experiment.cluster, connect=reachable, ids=ids, code=installed)
            words = options.between_machines().words()
            files = {Path(place).name: Path(place).read_bytes() for place in self.code if place.endswith(".py")}
            self._tasks.append(placed.remote(words, self._secrets(ids), files))

    def finish_clients(self) -> None:
        self._ray.wait(self._tasks, num_returns=len(self._tasks), timeout=_EXIT_GRACE_SECONDS)

    def kill_clients(self) -> None:
        if self._ray is not None:
            self._ray.shutdown()
            self._ray = None

    def _secrets(self, ids: list[int]) -> dict[str, bytes]:
        assert self.keys_folder is not None
        names = [f"{keys.client_name(client)}.key_secret" for client in ids]
        return {name: (self.keys_folder / name).read_bytes() for name in [f"{keys.SERVER}.key", *names]}
