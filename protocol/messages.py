"""The closed table of messages. Everything that travels is one of these, with its arrays beside it.

    client                         server
      │  Hello ───────────────────►  │   who I am, where I run
      │  ◄─────────────── Welcome    │   the experiment; which checkpoint to restore   (or Refusal)
      │  Ready ───────────────────►  │   data and model are loaded; set-up arrays      (or Refusal)
      │  ◄───────────────── Setup    │   set-up arrays, when the method has any
      │  ◄────────────────── Work    │   what came down; evaluate? train? save?
      │  Delivered ───────────────►  │   large work has arrived; now wait for a turn
      │  ◄────────────────── Turn    │   begin, in this slot
      │  Done ────────────────────►  │   computed; a large result follows
      │  Result ──────────────────►  │   metrics; what goes up                         (or Failure)
      │  ◄────────────────── Stop    │   the run is over, or why it ended early

Fields are short because they are paid for in every round; `docs/wire.md` describes them to the byte.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

VERSION = 2
"""Of 1 were nodes that sent heartbeats through the stream and kept one routing id for all connections."""

ClientId = Annotated[int, Meta(ge=0, lt=1_000_000)]
RoundNumber = Annotated[int, Meta(ge=0, lt=1 << 31)]
StatesId = Annotated[str, Meta(pattern="^[0-9a-f]{0,16}$")]  # becomes part of a path
SavedRound = Annotated[int, Meta(ge=-1, lt=1 << 31)]
MAX_NAME_CHARS = 64
Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
RunId = Annotated[str, Meta(max_length=32)]
Text = Annotated[str, Meta(max_length=2000)]
MAX_SIZE = (1 << 31) - 1
Size = Annotated[int, Meta(ge=0, le=MAX_SIZE)]
Amount = Annotated[float, Meta(ge=0)]


class ArraySpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the frame behind the header holds: `["prototypes", "prototypes", "f4", [100, 512]]`, and a fifth item,
    the name of an encoding, where the frame is not the array's own bytes."""

    name: Name
    payload: Name
    dtype: Name
    shape: tuple[Size, ...]
    encoding: Name = ""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the table."""


class Hello(Message, tag="hello", frozen=True, kw_only=True, omit_defaults=True):
    client: ClientId
    place: Name
    """Host, and GPU where there is one: clients of one place share its training slots."""
    slots: Annotated[int, Meta(ge=1, le=4096)]
    version: Name = ""
    """Of the program."""


class Welcome(Message, tag="welcome", frozen=True, kw_only=True):
    """Carries the experiment as an array of JSON text, and a second one with the hashes of own code it names."""

    run: RunId
    states: StatesId
    """Under which name clients keep the states of this run, also after it was resumed."""
    restore: SavedRound
    """The round whose saved state the client takes up; -1 for a fresh start."""


class Refusal(Message, tag="refusal", frozen=True, kw_only=True):
    """Of the server: this client may not join, or not stay. Of a client: it cannot take part."""

    reason: Text


class Ready(Message, tag="ready", frozen=True, kw_only=True, omit_defaults=True):
    run: RunId
    num_train: Size
    num_test: Size
    num_parameters: Annotated[int, Meta(ge=0)]
    start_seconds: Amount
    pss_bytes: Annotated[int, Meta(ge=0)]
    facts: Annotated[dict[Name, Name], Meta(max_length=16)] = {}
    """By which machines are compared: fingerprints, versions."""


class Setup(Message, tag="setup", frozen=True, kw_only=True):
    run: RunId


class Work(Message, tag="work", frozen=True, kw_only=True):
    run: RunId
    round: RoundNumber
    attempt: Size
    slot: Annotated[int, Meta(ge=-1, lt=1 << 31)]
    """Which of the place's slots is ours for this work; on a CPU, which core. -1: a Turn will say."""
    train: bool
    evaluate: bool
    save: bool
    keep: SavedRound
    """The client's saved state that the last checkpoint names, which must outlive this one; -1 for none."""


class Delivered(Message, tag="delivered", frozen=True, kw_only=True):
    """Large work has arrived: the client could begin."""

    run: RunId
    round: RoundNumber
    attempt: Size


class Turn(Message, tag="turn", frozen=True, kw_only=True):
    """Begin the work that was delivered."""

    run: RunId
    round: RoundNumber
    attempt: Size
    slot: Size


class Done(Message, tag="done", frozen=True, kw_only=True):
    """The client has computed; its large result is on the way, and another client may have its slot."""

    run: RunId
    round: RoundNumber
    attempt: Size


class Result(Message, tag="result", frozen=True, kw_only=True):
    run: RunId
    round: RoundNumber
    attempt: Size
    metrics: dict[Name, float]
    seconds: dict[Name, float]


class Failure(Message, tag="failure", frozen=True, kw_only=True):
    """The client's own code failed; the run cannot be trusted any more."""

    run: RunId
    round: RoundNumber
    error: Text


class Stop(Message, tag="stop", frozen=True, kw_only=True):
    reason: Text


AnyMessage = Hello | Welcome | Refusal | Ready | Setup | Work | Delivered | Turn | Done | Result | Failure | Stop


def kind_of(message: Message) -> str:
    """The message's name in headers and in the ledger."""
    return str(message.__struct_config__.tag)
