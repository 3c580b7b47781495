"""Who has joined: which route leads to which client, where it runs, whether it is here."""

from dataclasses import dataclass, replace

from fedsim.version import __version__
from nodes.server.rounds import Place
from protocol.client_socket import process_of
from protocol.messages import Hello, Ready
from protocol.transport import Arrived


@dataclass
class Member:
    """One client as the server knows it."""

    client: int
    route: bytes
    place: Place
    ready: Ready | None = None
    saved_round: int = -1
    """The round of the newest state that the client has saved in time."""
    named_round: int = -1
    """The round of its state that the last checkpoint names."""
    num_train: int = 0
    """Training samples; known from its first Ready on, also while it is being started again."""
    answered_round: int = -1
    """The last round that may have changed its model; -1 for none since it joined or was restored."""
    lost_since: float | None = None
    train_seconds: float | None = None
    """How long its last training took; what the next one is expected to take."""

    @property
    def is_ready(self) -> bool:
        return self.ready is not None and self.lost_since is None


@dataclass(frozen=True)
class Taken:
    """Another process is connected under this id; or it was, and its end has not been noticed yet."""

    reason: str


class Members:
    """All clients that have joined, by id and by route."""

    def __init__(self, num_clients: int):
        self.num_clients = num_clients
        self.by_id: dict[int, Member] = {}
        self._by_route: dict[bytes, Member] = {}

    def admit(self, hello: Hello, arrived: Arrived, old_is_open: bool) -> Member | Taken | str:
        """A new member, the known one that has reconnected, or the reason for a refusal."""
        client = hello.client
        if client >= self.num_clients:
            return f"there is no client {client} in this run; ids go from 0 to {self.num_clients - 1}."
        if hello.version and hello.version != __version__:
            versions = f"fedsim {hello.version}, and the server {__version__}"
            return f"client {client} has {versions}; install the same version on both machines."
        if arrived.key_owner is not None and arrived.key_owner != client:
            return f"the key belongs to client {arrived.key_owner}, not to client {client}."
        known = self.by_id.get(client)
        if known is not None and process_of(known.route) == process_of(arrived.route):  # it connected again
            self._by_route.pop(known.route, None)
            self._by_route[arrived.route] = known
            known.route, known.lost_since = arrived.route, None
            return known
        if known is not None and known.lost_since is None and old_is_open:
            return Taken(f"client {client} has joined already from {known.place.name}.")
        member = Member(client, arrived.route, Place(hello.place, hello.slots))
        if known is not None:  # its process is another one, what it has done stays
            self._by_route.pop(known.route, None)
            member = replace(known, route=member.route, place=member.place, ready=None, lost_since=None)
        self.by_id[client] = self._by_route[arrived.route] = member
        return member

    def of_route(self, route: bytes) -> Member | None:
        return self._by_route.get(route)

    def missing(self) -> list[int]:
        """Clients that are not ready."""
        return [c for c in range(self.num_clients) if c not in self.by_id or not self.by_id[c].is_ready]

    def ready_by_place(self) -> dict[str, list[int]]:
        """Who is here, and where."""
        found: dict[str, list[int]] = {}
        for member in self.by_id.values():
            if member.is_ready:
                found.setdefault(member.place.name, []).append(member.client)
        return {place: sorted(clients) for place, clients in sorted(found.items())}

    def num_train(self) -> dict[int, int]:
        return {client: member.num_train for client, member in self.by_id.items()}

    def places(self) -> dict[int, Place]:
        return {client: member.place for client, member in self.by_id.items()}

    def lost_since(self, now: float) -> dict[int, float]:
        """Clients that cannot be asked now, and since when."""
        return {
            client: now if member.lost_since is None else member.lost_since
            for client, member in self.by_id.items()
            if not member.is_ready
        }

    def expected_seconds(self) -> dict[int, float]:
        """What each client's work is expected to take: as long as last time, or in proportion to its size."""
        measured = {c: m.train_seconds for c, m in self.by_id.items() if m.train_seconds is not None}
        if len(measured) == len(self.by_id):
            return measured
        return {
            client: float(member.ready.num_train * member.ready.num_parameters)
            for client, member in self.by_id.items()
            if member.ready is not None
        }
