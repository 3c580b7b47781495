"""How server and clients of a job find each other: the server writes where it is, and clients wait for that.

In a job nobody knows beforehand on which node the server will run, or which port is free there. All nodes share a
folder, so the server leaves a small file in it once it listens, and takes it away when it ends.
"""

import ipaddress
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from fedsim.errors import UserError
from nodes.client.node import EXIT_NO_SERVER
from protocol.addresses import host_of, resolve
from protocol.diagnosis import nobody_listens
from protocol.errors import AddressUnusable

_LOOK_SECONDS = 0.5


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says."""

    address: str
    clients: int
    """How many the run has, so that tasks can share them."""
    machine: str
    """Of the server: an address such as 127.0.0.1 is of use there only."""


class NoServer(UserError):
    """None was there in time."""

    exit_code = EXIT_NO_SERVER


def require_folder(path: Path) -> None:
    """Before anything is started, and before anyone waits for what cannot come."""
    if not path.parent.is_dir():
        raise UserError(f"--address-file {path}: there is no folder {path.parent}; make it where all see it.")
    if path.is_dir():
        raise UserError(f"--address-file {path} is a folder; name a file in it.")


# ------------------------------------------------------------------------------------------ the server's part


class Announcement:
    """The file of one server; without a path, nothing."""

    def __init__(self, path: Path | None, num_clients: int):
        """What a server that was killed has left there is removed at once: it would lead clients astray."""
        self._path, self._num_clients, self._written = path, num_clients, b""
        if path is None:
            return
        require_folder(path)
        if (found := read(path)) and not nobody_listens(found.address):
            raise UserError(
                f"--address-file {path} is that of a server that runs at {found.address}; name another file, or "
                "remove it."
            )
        if not os.access(path.parent, os.W_OK):
            raise UserError(f"--address-file {path}: {path.parent} cannot be written to; name another folder.")
        path.unlink(missing_ok=True)

    def write(self, addresses: Sequence[str]) -> None:
        """All of it or nothing: whoever sees the file can read it."""
        if self._path is None:
            return
        here = socket.gethostname()
        found = Whereabouts(address=reachable(addresses), clients=self._num_clients, machine=here)
        self._written = msgspec.json.encode(found) + b"\n"
        temporary = self._path.with_name(f".{self._path.name}-{os.getpid()}")
        temporary.write_bytes(self._written)
        temporary.rename(self._path)

    def close(self) -> None:
        """Take it away, unless it is another server's by now."""
        with suppress(OSError):
            if self._path is not None and self._path.read_bytes() == self._written:
                self._path.unlink()


def reachable(addresses: Sequence[str]) -> str:
    """Of the addresses that a server listens on, one under which others find it."""
    of_others = [address for address in addresses if not _is_of_one_machine(address)]
    address = (of_others or addresses)[0]
    with suppress(ValueError):  # a name
        if ipaddress.ip_address(host_of(address, listens=True)).is_unspecified:
            return f"tcp://{socket.gethostname()}:{address.rpartition(':')[2]}"
    return address


def _is_of_one_machine(address: str) -> bool:
    host = host_of(address, listens=True)
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


# ----------------------------------------------------------------------------------------- the clients' part


def read(path: Path) -> Whereabouts | None:
    """None as long as there is none."""
    try:
        # A look at the folder itself: a network file system may believe for a minute that there is no such file.
        if path.name not in {entry.name for entry in path.parent.iterdir()}:
            return None
        return msgspec.json.decode(path.read_bytes(), type=Whereabouts)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise UserError(f"{path} is no file of `fedsim server --address-file` ({error}); remove it.") from None


def wait_for_server(path: Path, patience_seconds: float) -> Whereabouts:
    """The file of a server that listens; one that was left by a killed server is waited out."""
    require_folder(path)
    deadline = time.monotonic() + patience_seconds
    while True:
        found = read(path)
        if found is not None:
            _require_way(found)
            if not nobody_listens(found.address):
                return found
        if time.monotonic() > deadline:
            where = f"nothing listens at {found.address}, which {path} names" if found else f"there is no {path}"
            raise NoServer(
                f"{where}, after {patience_seconds:g} s; start `fedsim server --address-file {path}`, in a "
                "folder that all machines share, or wait longer with --patience."
            )
        time.sleep(_LOOK_SECONDS)


def _require_way(found: Whereabouts) -> None:
    """What no waiting would mend."""
    if _is_of_one_machine(found.address) and found.machine != socket.gethostname():
        raise UserError(
            f"the server listens at {found.address}, which only {found.machine} itself can reach; start it with "
            "--bind 'tcp://[::]:*' and --keys."
        )
    try:
        resolve(found.address)
    except AddressUnusable:
        raise UserError(
            f"the server is at {found.address}, and {socket.gethostname()} knows no machine of that name; start "
            "the server with an address of its machine: --bind 'tcp://10.0.0.1:*'."
        ) from None


def task_of(environment: Mapping[str, str]) -> tuple[int, int]:
    """Which task of Slurm this is, and of how many."""
    task, num_tasks = (environment.get(name, "") for name in ("SLURM_PROCID", "SLURM_NTASKS"))
    if not (task.isdecimal() and num_tasks.isdecimal() and int(task) < int(num_tasks)):
        raise UserError(
            "--ids auto takes its share from SLURM_PROCID and SLURM_NTASKS, and this is no task of Slurm; start "
            "it with srun, or name the clients: --ids 0-9."
        )
    return int(task), int(num_tasks)
