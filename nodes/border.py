"""The border between a method and the wire: nothing passes that the method's contract does not declare.

Both sides check both directions, so that a bug is caught before it travels and a peer is not trusted. This is
also the one place where arrays are copied: what comes off the wire are read-only views of the socket's
memory, and a method may keep and change what it is given. And it is the one place where payloads are encoded and
decoded, in every kind of node, so the method has decoded values on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np

from fedsim import config, contract, encodings
from fedsim.config import Experiment
from fedsim.contract import CLASSES_HELD, Arrays, Contract, Field, Fields
from fedsim.encodings.base import Encoding, decoded
from fedsim.encodings.error_feedback import ErrorFeedback
from fedsim.errors import CodingError, ContractError, UserError
from fedsim.metrics import check_metrics as check_metrics  # scalars pass the border with the arrays
from fedsim.own import files, loading
from fedsim.seeds import Streams
from protocol.codec import Coded, Item, Parcel, announced_bytes, pack
from protocol.errors import EncodeError
from protocol.limits import MEBIBYTE, Limits

Items = Mapping[str, Item]
"""Arrays as they come off the wire, some of them still encoded."""

NO_SETTINGS: Mapping[str, Any] = {}
"""All payloads travel as they are."""

_TRUSTED_BYTES, _TRUSTED_RATIO = 1 << 26, 1000
"""What may come out of a compressed frame where the contract leaves the size of the array open."""


@dataclass(frozen=True)
class Passage:
    """Which message: the direction as contracts name it, the client (None where the server speaks to everyone) and
    the round (None at set-up). Random rounding draws from a stream of this name, so a message that is made again,
    after a resume or a loss, is the same message."""

    direction: str
    client: int | None = None
    round: int | None = None

    def __str__(self) -> str:
        """How the border names it to people."""
        who = "server" if self.client is None else f"client {self.client}"
        when = "set-up" if self.round is None else f"round {self.round}"
        return f"{who}, {when}, {self.direction.removeprefix('setup_')}"


def travelled_bytes(items: Items) -> int:
    """Of all arrays, encoded or not, as their frames have them."""
    return sum(len(item.frame) if isinstance(item, Coded) else item.nbytes for item in items.values())


class Border:
    """One method's contract with the sizes and the encodings of one experiment. A client has one of its own."""

    def __init__(
        self,
        contract: Contract,
        dimensions: dict[str, int],
        wire: Mapping[str, Any] = NO_SETTINGS,
        seed: int = 0,
    ):
        """`wire` are the experiment's settings of that name, `seed` is its root seed."""
        self.contract = contract
        self.dimensions = dimensions
        settings = config.wire_of(wire)
        self._chosen = encodings.choose(contract, settings, "the method")
        self._streams = Streams(seed)
        lossy = [name for name, encoding in self._chosen["up"].items() if not encoding.is_lossless]
        self._feedback = ErrorFeedback(contract.up, lossy) if settings.error_feedback else None

    def outgoing(self, arrays: Arrays, passage: Passage) -> Parcel:
        """What a method hands over, checked and made ready to travel. The same once more is the same message."""
        fields, chosen = self._fields(passage), self._chosen[passage.direction]
        contract.check(arrays, fields, self.dimensions, str(passage))
        items: dict[str, Item] = {name: arrays[name] for name in fields if name in arrays}
        if arrays and chosen:
            feedback = self._feedback if passage.direction == "up" else None
            wanted = arrays
            if feedback:
                feedback.begin(passage)
                wanted = feedback.added(arrays)
            for name, encoding in chosen.items():
                items[name] = coded = self._coded(name, wanted[name], encoding, passage)
                if feedback and not encoding.is_lossless:
                    arrived = decoded(encoding, coded.frame, coded.shape, coded.dtype)
                    feedback.remember(name, wanted[name], arrived, arrays)
        try:
            return pack(items, {name: str(field.payload) for name, field in fields.items()})
        except EncodeError as error:
            raise ContractError(f"{passage}: {error}") from None

    def incoming(self, items: Items, passage: Passage) -> Arrays:
        """What came off the wire, checked, decoded and copied. Nothing is allocated for what is not as agreed."""
        fields = self._fields(passage)
        contract.check_announced(items, fields, self.dimensions, str(passage))
        arrays = {name: self._decoded(name, item, fields[name], passage) for name, item in items.items()}
        contract.check_values(arrays, str(passage))
        return arrays

    @property
    def has_memory(self) -> bool:
        """Whether anything must be remembered between rounds: with error feedback, what was lost."""
        return self._feedback is not None

    def state(self) -> Arrays:
        """What a checkpoint of a client's border holds."""
        return self._feedback.state() if self._feedback else {}

    def load_state(self, state: Arrays) -> None:
        if self._feedback:
            self._feedback.load_state(state)

    def _fields(self, passage: Passage) -> Fields:
        fields: Fields = getattr(self.contract, passage.direction)
        return fields

    def _coded(self, name: str, array: np.ndarray, encoding: Encoding, passage: Passage) -> Coded:
        purpose = f"wire/{passage.direction}/{name}"
        draws = partial(self._streams.numpy, purpose, client=passage.client, round=passage.round)
        try:
            frame = encoding.encode(array, draws)
        except CodingError as error:
            raise ContractError(f"{passage}: field {name!r} {error}") from None
        return Coded(encoding.name, array.dtype, array.shape, frame)

    def _decoded(self, name: str, item: Item, field: Field, passage: Passage) -> np.ndarray:
        encoding = self._chosen[passage.direction].get(name)
        announced = item.encoding if isinstance(item, Coded) else ""
        if announced != (encoding.name if encoding else ""):
            agreed = encoding.name if encoding else "plain"
            raise ContractError(f"{passage}: field {name!r} comes as {announced or 'plain'}, agreed was {agreed}")
        if encoding is None or not isinstance(item, Coded):
            return np.array(item)
        try:
            self._refuse_bomb(item, encoding, field)
            array = decoded(encoding, item.frame, item.shape, item.dtype)
        except CodingError as error:
            raise ContractError(f"{passage}: field {name!r} {error}") from None
        return array if array.flags.owndata and array.flags.writeable else np.array(array)

    def _refuse_bomb(self, item: Coded, encoding: Encoding, field: Field) -> None:
        """A frame of a fixed size is as long as its shape says. A compressed one may be tiny, so sizes that the
        contract leaves open are held to what is possible before anything is decompressed."""
        if encoding.num_bytes(item.shape, item.dtype) is not None:
            return
        sizes = dict(zip(field.words, item.shape, strict=True))
        held, classes = sizes.get(CLASSES_HELD, 0), self.dimensions.get("C", 0)
        if CLASSES_HELD not in self.dimensions and held > classes:
            raise CodingError(f"announces {held:,} rows of classes, but there are {classes}")
        is_open = any(not word.isdigit() and word not in (*self.dimensions, CLASSES_HELD) for word in sizes)
        announced = int(np.prod(item.shape, dtype=np.int64)) * item.dtype.itemsize
        if is_open and announced > max(_TRUSTED_BYTES, _TRUSTED_RATIO * len(item.frame)):
            raise CodingError(f"announces {announced:,} bytes in a compressed frame of {len(item.frame):,}")


def pack_experiment(experiment: Experiment) -> Parcel:
    """As Welcome carries it: one array of JSON text, and a second one with the hashes of the own code that the
    experiment names, where it names any."""
    texts = {"experiment": config.to_json(experiment)}
    if hashes := files.hashes(config.to_layer(experiment)):
        texts["code"] = msgspec.json.encode(hashes)
    arrays = {name: np.frombuffer(text, np.uint8) for name, text in texts.items()}
    return pack(arrays, dict.fromkeys(arrays, "experiment"))


def unpack_experiment(arrays: Arrays, code: Sequence[str] = ()) -> Experiment:
    """`code` are the files and modules that may be run here: one for each that the experiment names, and equal."""
    hashes = msgspec.json.decode(arrays["code"].tobytes(), type=dict[str, str]) if "code" in arrays else {}
    loading.allow_only(None)  # what is named here may be looked at, also after another run
    loading.allow_only(files.matched(hashes, code))
    return config.from_json(arrays["experiment"].tobytes())


def plain(items: Items) -> Arrays:
    """Those that are not encoded: all that Welcome carries."""
    return {name: item for name, item in items.items() if not isinstance(item, Coded)}


def require_frames_fit(parcel: Parcel, max_frame_mib: int) -> None:
    """Whoever is sent a larger frame hangs up, and again when it is sent anew; a larger message is dropped."""
    for spec, frame in zip(parcel.specs, parcel.frames, strict=True):
        if (needed := math.ceil(max(len(frame), announced_bytes(spec)) / MEBIBYTE)) > max_frame_mib:
            raise UserError(
                f"the array {spec.name} has {needed} MiB, more than cluster.max_frame_mib = {max_frame_mib}; "
                f"give {needed} or more."
            )
    limits = Limits.of_frames(max_frame_mib)
    total = sum(map(len, parcel.frames)) + limits.max_header_bytes
    if total > limits.max_message_bytes:
        raise UserError(
            f"the {len(parcel.frames)} arrays of one message have {math.ceil(total / MEBIBYTE)} MiB, more than "
            f"{limits.max_message_bytes // MEBIBYTE}; give cluster.max_frame_mib = "
            f"{math.ceil(total / 2 / MEBIBYTE)} or more."
        )


def wire_settings(welcome: Arrays) -> tuple[Mapping[str, Any], int]:
    """Of the experiment that Welcome carries what a client's border needs, without building the rest: the settings
    of the wire, and the root seed."""
    experiment = msgspec.json.decode(welcome["experiment"].tobytes())
    return experiment.get("wire", NO_SETTINGS), int(experiment["run"]["seed"])
