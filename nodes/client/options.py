"""The options of a client, described once: the command line, every launcher and the client itself read them here.

They are what a client cannot take from the server, because it needs them before it has found one.
"""

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import click

from fedsim.config import MAX_HEARTBEAT_SECONDS, Cluster
from fedsim.config.option_docs import docs_of
from fedsim.errors import UserError

MAX_SLOTS = 4096  # as many as a Hello may name
_CLUSTER = Cluster()


class IdRange(click.ParamType[list[int]]):
    """`7`, `0-49` or `0-9,20-29`."""

    name = "ids"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        if isinstance(value, list):
            return value
        ids: list[int] = []
        for part in str(value).split(","):
            first, _, last = part.strip().partition("-")
            if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
                self.fail(f"{value!r} is no range of client ids; write 7, 0-49 or 0-9,20-29.", param, ctx)
            ids += range(int(first), int(last or first) + 1)
        return sorted(set(ids))


def id_range(ids: Iterable[int]) -> str:
    """The inverse: ascending ids as one writes them."""
    ranges: list[list[int]] = []
    for client in ids:
        if ranges and client == ranges[-1][-1] + 1:
            ranges[-1][1:] = [client]
        else:
            ranges.append([client])
    return ",".join("-".join(map(str, ends)) for ends in ranges)


class Seconds(click.FloatRange):
    """A duration; click's own range lets `nan` through."""

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return seconds


def log_name(client: int) -> str:
    """A client's file in the folder of `--logs`."""
    return f"client-{client:05d}.log"


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Of the clients that one host runs: `patience` is `--patience`, and the text below it is its help."""

    connect: str
    """The server's address, tcp://host:port."""
    ids: Annotated[list[int], IdRange(), "--id"]
    """Which clients: 7, 0-49 or 0-9,20-29."""
    port_step: Annotated[int, click.IntRange(0)] = 0
    """Added to the port for each id: behind a relay every client has a port of its own."""
    keys: Annotated[Path | None, Path] = None
    """Folder with server.key and client-<id>.key_secret."""
    device: Annotated[str, click.Choice(["auto", "cpu"])] = _CLUSTER.device
    """auto: the GPUs of this host, where there are any."""
    slots: Annotated[int, click.IntRange(0, MAX_SLOTS)] = _CLUSTER.slots
    """Clients that train at once; 0: one per core or GPU."""
    compute: Annotated[str, click.Choice(["auto", "own", "shared"])] = _CLUSTER.compute
    """Whether clients compute in their own processes or share executors, one for each slot; auto: own where all
    fit."""
    place: Annotated[str | None, str] = None
    """Name of this host in the run; hosts of one name share their slots."""
    state_dir: Path = Path("fedsim-state")
    """Where clients save."""
    patience: Annotated[float, Seconds(0)] = _CLUSTER.patience_seconds
    """Seconds without a server."""
    heartbeat: Annotated[float, Seconds(1, MAX_HEARTBEAT_SECONDS)] = _CLUSTER.heartbeat_seconds
    """Seconds after which a silent server is asked for a sign of life; after six of these it is gone."""
    restarts: Annotated[int, click.IntRange(0)] = 3
    """How often a killed client is restarted."""
    max_frame_mib: Annotated[int, click.IntRange(1)] = _CLUSTER.max_frame_mib
    """Largest single array; the same as the server's cluster.max_frame_mib."""
    code: Annotated[tuple[str, ...], str, "--method"] = ()
    """Your copy of a Python file that the run names: its method, models or data. May be given several times."""
    logs: Annotated[Path | None, Path] = None
    """A folder for one log file a client; by default all print here."""

    def __post_init__(self) -> None:
        if self.patience < self.heartbeat:
            raise UserError(
                f"--patience {self.patience:g} is shorter than --heartbeat {self.heartbeat:g}, so clients would "
                "give up before they know; raise the patience, or lower the heartbeat."
            )

    @classmethod
    def of(cls, cluster: Cluster, **own: Any) -> "ClientOptions":
        """As an experiment decides, beside what is a launcher's own to say."""
        return cls(
            device=cluster.device,
            slots=cluster.slots,
            compute=cluster.compute,
            patience=cluster.patience_seconds,
            heartbeat=cluster.heartbeat_seconds,
            max_frame_mib=cluster.max_frame_mib,
            **own,
        )

    def address_of(self, client: int) -> str:
        """Where this client finds its server."""
        host, _, port = self.connect.rpartition(":")
        return f"{host}:{int(port) + self.port_step * client}"

    @classmethod
    def parse(cls, words: list[str]) -> "ClientOptions":
        """The inverse of `words`."""
        return cls(**click.Command("client", params=click_options()).make_context("client", list(words)).params)

    def words(self) -> list[str]:
        """As they are typed: all that is not as it would be anyway."""
        changed = {
            item.name: value for item in fields(self) if (value := getattr(self, item.name)) != item.default
        }
        return [
            word
            for name, given in changed.items()
            for value in (given if isinstance(given, tuple) else (given,))
            for word in (_flag(name), _typed(value))
        ]


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _typed(value: Any) -> str:
    if isinstance(value, list):
        return id_range(value)
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def click_options() -> list[click.Parameter]:
    """For the command that takes them."""
    docs, hints = docs_of(ClientOptions), get_type_hints(ClientOptions, include_extras=True)
    options: list[click.Parameter] = []
    for item in fields(ClientOptions):
        kind, *aliases = getattr(hints[item.name], "__metadata__", [hints[item.name]])
        known = {"required": True} if item.default is dataclasses.MISSING else {"default": item.default}
        flags = [_flag(item.name), *aliases]
        several = isinstance(item.default, tuple)
        options.append(
            click.Option(flags, type=kind, multiple=several, help=docs[item.name], show_default=True, **known)
        )
    return options
