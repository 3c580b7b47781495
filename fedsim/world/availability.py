"""When clients are there: on and off as a trace says, or by turns of seeded lengths. Seconds of the virtual clock.

on=10min off=5min           both on average; each client draws its own
./phones.csv                columns client, from, to: when a client is there
"""

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from fedsim.errors import UserError
from fedsim.seeds import Streams
from fedsim.world.words import SECONDS, Grammar

_GRAMMAR = Grammar(
    what="availability",
    units={"on": SECONDS, "off": SECONDS},
    needed=("on", "off"),
    profiles={},
    example="write on=10min off=5min, or the path of a .csv file",
)
_COLUMNS = ["client", "from", "to"]


class Availability(Protocol):
    def next_from(self, client: int, time: float) -> float:
        """The first moment from then on at which the client is there; infinity where there is none."""


def of(text: str, num_clients: int, seed: int) -> Availability | None:
    """None where all are always there."""
    if not text:
        return None
    if text.endswith(".csv"):
        return Trace(Path(text).expanduser(), num_clients)
    said = _GRAMMAR.read(text)
    return Turns(said["on"], said["off"], seed)


class Turns:
    """On and off by turns, for times that are drawn from exponential distributions."""

    def __init__(self, on_seconds: float, off_seconds: float, seed: int):
        self._on, self._off, self._streams = on_seconds, off_seconds, Streams(seed)

    def next_from(self, client: int, time: float) -> float:
        for begins, ends in self._stretches(client):
            if ends > time:
                return max(begins, time)
        raise AssertionError("turns have no end")

    def _stretches(self, client: int) -> Iterator[tuple[float, float]]:
        """When it is there, from the beginning of time."""
        draw = self._streams.numpy("world/availability", client=client)
        now = 0.0 if draw.random() < self._on / (self._on + self._off) else draw.exponential(self._off)
        while True:
            ends = now + draw.exponential(self._on)
            yield now, ends
            now = ends + draw.exponential(self._off)


class Trace:
    """As a file says."""

    def __init__(self, path: Path, num_clients: int):
        self._stretches: dict[int, list[tuple[float, float]]] = {client: [] for client in range(num_clients)}
        try:
            with path.open(newline="") as file:
                rows = csv.DictReader(file)
                if rows.fieldnames != _COLUMNS:
                    raise UserError(f"{path} wants the columns {', '.join(_COLUMNS)}, and has {rows.fieldnames}.")
                for row in rows:
                    self._add(path, rows.line_num, row)
        except OSError as error:
            raise UserError(f"the trace {path} cannot be read: {error.strerror}.") from None
        self.path = path
        self.ends = max(
            (stretch[1] for of_client in self._stretches.values() for stretch in of_client), default=0.0
        )

    def next_from(self, client: int, time: float) -> float:
        return min(
            (max(begins, time) for begins, ends in self._stretches[client] if ends > time), default=math.inf
        )

    def _add(self, path: Path, line: int, row: dict[str, str]) -> None:
        try:
            client, begins, ends = int(row["client"]), float(row["from"]), float(row["to"])
            if client < 0 or not 0 <= begins < ends < math.inf:
                raise ValueError
        except (TypeError, ValueError):
            raise UserError(f"{path}, line {line}: write a client and two seconds, the later one last.") from None
        if client in self._stretches:  # a trace may be of more clients than this run has
            self._stretches[client].append((begins, ends))
