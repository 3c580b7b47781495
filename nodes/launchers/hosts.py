"""A run over several machines: a host process on each (`host.py`), and one line of talk with every host.

How a host comes to life is a launcher's own: it names machines and calls them. The rest is here: clients are
shared out by cores or GPUs, each host is told its part, what it prints comes home as logs/host-<machine>.log, and
when one dies its clients start again there or on another machine. They go on from their last checkpoint; without
checkpoints they are lost, as anywhere.
"""

import re
import secrets
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from fedsim.errors import UserError
from fedsim.results.folder import RunFolder
from fedsim.results.wording import counted
from fedsim.version import __version__
from nodes.client.options import ClientOptions, id_range
from nodes.display.run import Display
from nodes.launchers.base import MAX_RESTARTS, Launcher, LaunchOptions
from nodes.launchers.bundle import Bundle, share
from nodes.launchers.host import AnySaid, Begun, Crashed, Ended, Facts, Trouble

_ANSWER_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_EXIT_GRACE_SECONDS = 10.0


class Line(Protocol):
    """What connects us with one host."""

    def tell(self, text: bytes) -> None: ...
    def listen(self) -> list[bytes]:
        """The lines that have come since the last time; does not wait."""

    def ended(self) -> str | None:
        """None as long as the host runs; then how it ended, and what can be done about it, in a clause."""

    def hang_up(self) -> None:
        """The host ends by itself when it notices."""

    def cut(self) -> None:
        """It had its time."""


@dataclass(eq=False)
class Host:
    """One host process, from the call to its end."""

    machine: str
    line: Line
    ids: list[int] = field(default_factory=list)
    facts: Facts | None = None
    has_begun: bool = False
    has_ended: bool = False
    """Its clients ended by themselves, or it would crash again: there is nothing left to do."""

    @property
    def weight(self) -> tuple[int, int]:
        assert self.facts is not None
        return self.facts.gpus, self.facts.cores


class HostLost(Exception):
    """A host is gone, or cannot begin; the message says why."""


class HostsLauncher(Launcher):
    """The server here, clients on other machines. Always with keys."""

    def __init__(self, folder: RunFolder, display: Display, options: LaunchOptions, server_name: str | None):
        """`server_name` is how hosts find this machine, where the launcher does not know better."""
        super().__init__(folder, display, options)
        self._server_name = server_name
        self._port = ""
        self._hosts: list[Host] = []
        self._deaths: Counter[str] = Counter()
        self._unusable: set[str] = set()
        self._proof: Path | None = None

    @abstractmethod
    def machines(self) -> list[str]:
        """Those that can be called now, by name."""

    @abstractmethod
    def call(self, machine: str, log: Path) -> Line:
        """Start a host process on a machine; does not wait for it."""

    @abstractmethod
    def default_server_name(self, facts: Facts) -> str:
        """How the host with these facts finds this machine."""

    def require_room(self, machines: list[str]) -> None:
        """Refuse at once what a machine would be asked for in vain, where that can be known."""

    def silence(self, machine: str) -> str:
        """What may be the reason when a machine does not answer, and what can be done."""
        return ""

    # ------------------------------------------------------------------------------------- the start

    def start_clients(self, address: str) -> None:
        self._port = address.rpartition(":")[2]
        if self.experiment.cluster.checkpoint_every:
            self.folder.checkpoints.mkdir(exist_ok=True)
            self._proof = self.folder.checkpoints / f".seen-{secrets.token_hex(8)}"
            self._proof.touch()
        if not (machines := self.machines()):
            raise UserError("there is no machine with a core or a GPU for clients; add one, and start again.")
        self.require_room(machines)
        self._hosts = [self._called(machine, []) for machine in machines]
        try:
            self._wait_for(lambda host: host.facts is not None)
            self._share_out()
            self._wait_for(lambda host: host.has_begun or not host.ids)
        except HostLost as error:
            raise UserError(f"{error}.") from None
        self._hosts = [host for host in self._hosts if host.ids]
        shares = ", ".join(f"{host.machine} {id_range(host.ids)}" for host in self._hosts)
        self._note(f"{counted(len(self._hosts), 'host')} with clients: {shares}")

    def _called(self, machine: str, ids: list[int]) -> Host:
        return Host(machine, self.call(machine, self._log(machine)), ids)

    def _log(self, machine: str) -> Path:
        return self.folder.logs / f"host-{file_name(machine)}.log"

    def _share_out(self) -> None:
        """By GPUs where any host has one that is to be used, else by cores."""
        uses_gpus = self.experiment.cluster.device != "cpu" and any(host.weight[0] for host in self._hosts)
        kind = 0 if uses_gpus else 1
        blocks = share(self.experiment.run.clients, [host.weight[kind] for host in self._hosts])
        for host, ids in zip(self._hosts, blocks, strict=True):
            host.ids = ids
            if ids:
                self._brief(host)
            else:
                self._note(f"host {host.machine} has nothing to do: there are too few clients for it")
                host.line.hang_up()

    def _wait_for(self, reached: Callable[[Host], bool]) -> None:
        deadline = time.monotonic() + _ANSWER_SECONDS
        while waiting := [host for host in self._hosts if not reached(host)]:
            for host in waiting:
                self._hear(host)
                if not reached(host) and time.monotonic() > deadline:
                    silence = f"has not answered within {_ANSWER_SECONDS:g} s{self.silence(host.machine)}"
                    raise HostLost(f"host {host.machine} {silence}")
            time.sleep(_LOOK_SECONDS)

    def _brief(self, host: Host) -> None:
        """Tell a host which clients are its own."""
        assert host.facts is not None and self.keys_folder is not None
        name = self._server_name or self.default_server_name(host.facts)
        options = ClientOptions.of(
            self.experiment.cluster,
            connect=f"tcp://{f'[{name}]' if ':' in name else name}:{self._port}",
            ids=host.ids,
            place=host.machine,
            restarts=MAX_RESTARTS,
            code=tuple(place for place in self.code if not place.endswith(".py")),
            **({"state_dir": self.folder.checkpoints.resolve()} if self._proof else {}),
        )
        files = [place for place in self.code if place.endswith(".py")]
        proof = str(self._proof.resolve()) if self._proof else ""
        host.line.tell(msgspec.json.encode(Bundle.of(options, self.keys_folder, files, proof)) + b"\n")

    def _hear(self, host: Host) -> None:
        """What a host has said since, or HostLost."""
        how = host.line.ended()  # before listening: what it said at last has come by then
        for line in host.line.listen():
            try:
                said = msgspec.json.decode(line, type=AnySaid)
            except msgspec.MsgspecError:
                continue  # some logins greet everyone
            match said:
                case Facts():
                    self._require_same_version(host, said)
                    host.facts = said
                    if host.ids:
                        self._brief(host)
                case Begun():
                    host.has_begun = True
                case Trouble(reason=reason):
                    raise HostLost(f"host {host.machine}: {reason}")
                case Ended():
                    host.has_ended = True
                case Crashed(reason=reason):
                    host.has_ended = True
                    if not self.interrupted:
                        story = f"host {host.machine} has crashed, and all its clients have died with it"
                        self._note(f"{story}: {reason.rstrip('.')}; see {self._log(host.machine)}")
        if how is not None and not host.has_ended:
            raise HostLost(f"host {host.machine} {how}")

    def _require_same_version(self, host: Host, facts: Facts) -> None:
        if facts.version != __version__:
            raise HostLost(
                f"host {host.machine} has fedsim {facts.version} and this machine {__version__}; install the same "
                "version on both"
            )

    # ---------------------------------------------------------------------------------- while it runs

    def watch_clients(self) -> None:
        for host in list(self._hosts):
            try:
                self._hear(host)
            except HostLost as error:
                self._hosts.remove(host)
                host.line.hang_up()
                if not self.interrupted:
                    self._replace(host, str(error))
            else:
                if host.has_ended:
                    self._hosts.remove(host)

    def _replace(self, dead: Host, why: str) -> None:
        """On the same machine, unless it has died too often or did not begin; else where there is least to do."""
        self._deaths[dead.machine] += 1
        if not dead.has_begun or self._deaths[dead.machine] > MAX_RESTARTS:
            self._unusable.add(dead.machine)
        load = Counter({host.machine: len(host.ids) for host in self._hosts})
        usable = [machine for machine in self.machines() if machine not in self._unusable]
        new = min(usable, key=lambda machine: (machine != dead.machine, load[machine]), default=None)
        who = f"clients {id_range(dead.ids)}" if len(dead.ids) > 1 else f"client {dead.ids[0]}"
        if new is None:
            self._note(f"{why}; no other host is left for {who}")
            return
        self._note(f"{why}; {who} {'start' if len(dead.ids) > 1 else 'starts'} again on {new}")
        self._hosts.append(self._called(new, dead.ids))

    def finish_clients(self) -> None:
        """They were told to stop; a host ends after its last client."""
        self._wait_until_ended(_EXIT_GRACE_SECONDS)

    def kill_clients(self) -> None:
        for host in self._hosts:
            host.line.hang_up()
        self._wait_until_ended(_EXIT_GRACE_SECONDS)
        for host in self._hosts:
            host.line.cut()
        self._hosts = []
        if self._proof is not None:
            with suppress(OSError):
                self._proof.unlink(missing_ok=True)

    def _wait_until_ended(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while any(host.line.ended() is None for host in self._hosts) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

    def _note(self, text: str) -> None:
        self._display.on_event({"event": "note", "text": text})


def file_name(machine: str) -> str:
    return re.sub(r"[^\w.@-]", "_", machine)
