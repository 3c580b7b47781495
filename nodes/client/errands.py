"""What clients ask of the executors of their host, and what they hear: small notes over a socket of this machine.

    client ──Errand──► pool ──Errand──► executor        files travel beside a note, as open descriptors
    client ◄──Done, Trouble── pool ◄──Done, Trouble──

Notes are JSON, one to a packet; no note tells anybody what to run beside the experiment and the code that the user
named to the host.
"""

import socket
from collections.abc import Sequence
from typing import Literal

import msgspec

from nodes.client.nameless import Nameless
from nodes.work import Order

FILES = ("welcome", "agreed", "state", "down")
_MAX_NOTE_BYTES = 1 << 17
_MAX_FILES = 8
MAX_TRACEBACK_CHARS = 20_000


class Errand(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Work as this client. `files` says which of `FILES` come with it: the experiment, what was agreed at set-up,
    the client's state, what came down; those that there are not yet are left out."""

    client: int
    place: str
    order: Order | None
    """None: only build the half, and say what it is."""
    files: tuple[str, ...]

    @property
    def name(self) -> str:
        """For people."""
        return f"client {self.client}, " + (f"round {self.order.round}" if self.order else "on joining")


class FieldNote(msgspec.Struct, frozen=True):
    """A field of a contract."""

    payload: str
    shape: str
    dtype: str


class StartedNote(msgspec.Struct, frozen=True, kw_only=True):
    """All of `worker.Started` but its arrays."""

    contract: dict[str, dict[str, FieldNote]]
    dimensions: dict[str, int]
    num_train: int
    num_test: int
    num_parameters: int
    facts: dict[str, str]


class Done(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The errand is done; its files are what goes up and, after work, the client's new state."""

    metrics: dict[str, float] = {}
    seconds: dict[str, float] = {}
    started: StartedNote | None = None


class Trouble(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The errand was not done, and the client is what it was.

    refused: the code here is not the run's. failed: the method's code raised. short: memory, or the executor
    itself, gave out, which is nobody's fault in the run."""

    kind: Literal["refused", "failed", "short"]
    sentence: str
    traceback: str = ""


Note = Errand | Done | Trouble

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Note] = msgspec.json.Decoder(Note)


def send(end: socket.socket, note: Note, files: Sequence[Nameless] = ()) -> None:
    socket.send_fds(end, [_ENCODER.encode(note)], [file.descriptor for file in files])


def receive(end: socket.socket) -> tuple[Note, list[Nameless]] | None:
    """The next note; None when the other side has gone."""
    try:
        text, descriptors, flags, _ = socket.recv_fds(end, _MAX_NOTE_BYTES, _MAX_FILES)
    except ConnectionError:
        return None
    if not text:
        return None
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise OSError("a note was cut off: too many files are open; raise ulimit -n.")
    return _DECODER.decode(text), [Nameless(descriptor) for descriptor in descriptors]
