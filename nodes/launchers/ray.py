"""A cluster scheduled by Ray (extra `ray`): the server here, a host of clients on every node of the Ray cluster.

Ray only decides where hosts run, keeps cores or GPUs for them and tells when one has died; messages still go over
our own sockets, so they are measured like everywhere else. The nodes of a Ray cluster trust each other with code,
so the clients' secret keys and the files of own code go through Ray.
"""

import importlib
import importlib.util
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsim.errors import UserError
from fedsim.results.folder import RunFolder
from nodes.display.run import Display
from nodes.launchers.base import LaunchOptions
from nodes.launchers.host import Facts
from nodes.launchers.hosts import HostsLauncher, Line
from nodes.launchers.ray_actor import HostActor
from nodes.launchers.remote_commands import explain_python
from protocol.diagnosis import nobody_listens

_PATIENCE = {"RAY_NUM_REDIS_GET_RETRIES": "5", "RAY_gcs_server_request_timeout_seconds": "10"}
"""Ray would look for minutes for a cluster that is gone."""
_LOOK_SECONDS = 0.2
_RELEASE_SECONDS = 5.0  # until the cores of a run that has just ended are known to be free
_PROJECT = Path(__file__).parents[2]


def require_ray() -> None:
    """Before any folder or process exists; without importing it, which would start threads."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("Ray is not installed; run: pip install 'fedsim-htfl[ray]'")


def reserved(resources: Mapping[str, float], slots: int, device: str) -> dict[str, float]:
    """What the run will use of a node: its GPUs, or a core for each slot."""
    if device != "cpu" and resources.get("GPU"):
        return {"num_gpus": resources["GPU"], "num_cpus": 0}
    cores = math.floor(resources.get("CPU", 0))
    return {"num_cpus": min(slots or cores, cores)}


def lack(wanted: Mapping[str, float], free: Mapping[str, float]) -> str:
    """What a node has too few of now, in a clause; empty where there is enough."""
    for name, kind, word in (("num_cpus", "CPU", "cores"), ("num_gpus", "GPU", "GPUs")):
        needed, there = wanted.get(name, 0), free.get(kind, 0)
        if needed > there:
            return f"has {there:g} free {word} and this run would keep {needed:g}"
    return ""


class RayLauncher(HostsLauncher):
    """`ray_address` is that of a running cluster ("auto"); without one Ray starts a cluster on this machine."""

    def __init__(
        self,
        folder: RunFolder,
        display: Display,
        options: LaunchOptions,
        ray_address: str | None = None,
        server_name: str | None = None,
    ):
        super().__init__(folder, display, options, server_name)
        self._ray_address = ray_address
        self._ray: Any = None
        self._nodes: dict[str, Any] = {}

    def machines(self) -> list[str]:
        """Nodes that can compute, by the names of their machines, and two on one machine by their ids as well."""
        if self._ray is None:
            self._ray = _connected(self._ray_address)
        for node in self._ray.nodes():
            if node["NodeID"] not in {known["NodeID"] for known in self._nodes.values()}:
                name = node["NodeManagerHostname"]
                self._nodes[f"{name}-{node['NodeID'][:6]}" if name in self._nodes else name] = node
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        return [
            name
            for name, node in self._nodes.items()
            if node["NodeID"] in alive and (node["Resources"].get("CPU") or node["Resources"].get("GPU"))
        ]

    def call(self, machine: str, log: Path) -> Line:
        node = self._nodes[machine]
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        there = strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        actor = self._ray.remote(HostActor).options(scheduling_strategy=there, **self._reserved(machine))
        return ActorLine(self._ray, actor.remote(str(_PROJECT)), log)

    def _reserved(self, machine: str) -> dict[str, float]:
        cluster = self.experiment.cluster
        return reserved(self._nodes[machine]["Resources"], cluster.slots, cluster.device)

    def require_room(self, machines: list[str]) -> None:
        """Ray would let a host wait for cores that others have, for as long as they have them."""
        deadline = time.monotonic() + _RELEASE_SECONDS
        for machine in machines:
            while trouble := lack(self._reserved(machine), self._free(machine)):
                if time.monotonic() > deadline:
                    raise UserError(
                        f"host {machine} {trouble}; `ray status` tells what is taken, and --slots takes fewer."
                    )
                time.sleep(_LOOK_SECONDS)

    def _free(self, machine: str) -> dict[str, float]:
        """All of it, where this version of Ray does not tell: then a host that does not answer is waited for."""
        node = self._nodes[machine]
        ask = getattr(importlib.import_module("ray._private.state"), "available_resources_per_node", None)
        known: dict[str, dict[str, float]] = ask() if ask else {node["NodeID"]: node["Resources"]}
        return known.get(node["NodeID"], {})

    def default_server_name(self, facts: Facts) -> str:
        return str(self._ray.util.get_node_ip_address())

    def silence(self, machine: str) -> str:
        return "; others may have taken its cores or GPUs: `ray status` tells, and --slots takes fewer"

    def kill_clients(self) -> None:
        super().kill_clients()
        if self._ray is not None:
            self._ray.shutdown()
            self._ray = None


def _connected(address: str | None) -> Any:
    """Ray is imported here, after the server was forked: it starts threads, which no fork survives."""
    where = f"no Ray cluster answers at {address}" if address else "Ray does not start on this machine"
    remedy = "start one with `ray start --head`"
    if address and ":" in address and nobody_listens(f"tcp://{address.rpartition('/')[2]}"):
        raise UserError(f"{where}: nothing listens there; {remedy}, or name another with --ray-address.")
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    ray = importlib.import_module("ray")
    # What Ray's own processes have to say about a lost node is pages long, and we say it in a line.
    ray._private.worker._worker_logs_enabled = False
    try:
        ray.init(address=address, logging_level="error", log_to_driver=False)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise UserError(f"{where}: {reason}; {remedy}.") from None
    return ray


class ActorLine:
    """One question is under way at any time; its answer brings all that has happened since the one before."""

    def __init__(self, ray: Any, actor: Any, log: Path):
        self._ray, self._actor, self._log = ray, actor, log
        self._to_tell, self._said, self._last_words = b"", b"", ""
        self._hangs_up = False
        self._end: str | None = None
        self._question = actor.exchange.remote(b"", False)

    def tell(self, text: bytes) -> None:
        self._to_tell += text

    def listen(self) -> list[bytes]:
        self._exchange()
        *lines, self._said = self._said.split(b"\n")
        return lines

    def ended(self) -> str | None:
        self._exchange()
        return self._end

    def hang_up(self) -> None:
        self._hangs_up = True

    def cut(self) -> None:
        self._ray.kill(self._actor)

    def _exchange(self) -> None:
        if self._end is not None or not self._ray.wait([self._question], timeout=0)[0]:
            return
        try:
            said, printed, code = self._ray.get(self._question)
        except self._ray.exceptions.RayError as error:
            self._end = f"is gone ({str(error).strip().partition(chr(10))[0].rstrip('.')})"
            return
        self._said += said
        if printed:
            with self._log.open("ab") as file:
                file.write(printed)
            self._last_words = printed.decode(errors="replace").strip().rpartition("\n")[2]
        if code is not None:
            self._end = explain_python(code % 256 if code >= 0 else 128 - code, self._last_words)
            return
        self._question = self._actor.exchange.remote(self._to_tell, self._hangs_up)
        self._to_tell = b""
