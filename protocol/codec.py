"""Message and arrays <-> frames: one msgpack header frame, then one raw little-endian frame per array.

An array that travels in an encoding is `Coded`: what it is, and the bytes that it has become. Nothing here knows
what encodings there are; the border encodes and decodes.

Arrays are not copied in either direction: frames share the arrays' memory on the way out, and decoded
arrays are read-only views of the received frames. Whoever keeps a decoded array copies it (the border does).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import msgspec
import numpy as np

from protocol.errors import DecodeError, EncodeError, LimitExceeded, VersionMismatch
from protocol.limits import DEFAULT_LIMITS, DTYPES, Limits
from protocol.messages import MAX_NAME_CHARS, MAX_SIZE, VERSION, AnyMessage, ArraySpec, Message, kind_of

Buffer = bytes | memoryview
Array = np.ndarray[Any, Any]

_PACKER = msgpack.Packer()  # kept: a new one would allocate a large buffer for every message
_NUMPY_TYPES = {name: np.dtype(numpy_name) for name, numpy_name in DTYPES.items()}
_WIRE_NAMES = {numpy_type: name for name, numpy_type in _NUMPY_TYPES.items()}


class _Header(msgspec.Struct, frozen=True):
    """What a header holds. msgspec prepares the types of a class once, those of a bare union for every message."""

    message: AnyMessage
    arrays: tuple[ArraySpec, ...]


@dataclass(frozen=True)
class Coded:
    """An array in an encoding: its type and shape as announced, and the frame that it travels in."""

    encoding: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    frame: Buffer


Item = Array | Coded


@dataclass(frozen=True)
class Parcel:
    """Arrays made ready to travel: encoded once, then shared by every message of a broadcast."""

    specs: tuple[ArraySpec, ...] = ()
    frames: tuple[Buffer, ...] = ()


@dataclass(frozen=True)
class Decoded:
    """A message, its arrays by name (read-only views, or still encoded), and what the header said of them."""

    message: AnyMessage
    arrays: dict[str, Item] = field(default_factory=dict)
    specs: tuple[ArraySpec, ...] = ()


def pack(arrays: Mapping[str, Item], payloads: Mapping[str, str]) -> Parcel:
    """Arrays with their payload kinds. The arrays must not be written to until they were sent.

    What no receiver would take is refused here: there it would be dropped, and waited for in vain.
    """
    if len(arrays) > DEFAULT_LIMITS.max_arrays:
        raise EncodeError(f"{len(arrays)} arrays in one message; at most {DEFAULT_LIMITS.max_arrays} may travel")
    specs, frames = [], []
    for name, array in arrays.items():
        specs.append(_spec(name, payloads[name], array))
        if isinstance(array, Coded):
            frames.append(array.frame)
            continue
        contiguous = np.ascontiguousarray(array)
        # An empty array has no memory to view.
        frames.append(contiguous.data.cast("B") if array.size else b"")
    return Parcel(tuple(specs), tuple(frames))


def _spec(name: str, payload: str, array: Item) -> ArraySpec:
    wire_name = _WIRE_NAMES.get(array.dtype)
    if wire_name is None:
        raise EncodeError(f"array {name!r} has dtype {array.dtype}; only {', '.join(DTYPES)} may travel")
    if (rank := len(array.shape)) > DEFAULT_LIMITS.max_rank:
        raise EncodeError(f"array {name!r} has {rank} dimensions; at most {DEFAULT_LIMITS.max_rank} may travel")
    if max(array.shape, default=0) > MAX_SIZE:
        raise EncodeError(f"array {name!r} has shape {array.shape}; no size may exceed {MAX_SIZE}")
    encoding = array.encoding if isinstance(array, Coded) else ""
    if long := [text for text in (name, payload, encoding) if len(text) > MAX_NAME_CHARS]:
        raise EncodeError(f"array {name!r}: {long[0]!r} is too long, a name may have {MAX_NAME_CHARS} characters")
    return ArraySpec(name, payload, wire_name, array.shape, encoding)


def unpack(parcel: Parcel, limits: Limits = DEFAULT_LIMITS) -> dict[str, Item]:
    """The arrays as whoever receives the parcel finds them."""
    return {s.name: _view(s, frame, limits) for s, frame in zip(parcel.specs, parcel.frames, strict=True)}


def encode(message: Message, parcel: Parcel = Parcel()) -> list[Buffer]:
    """The frames of one message; the array frames are the parcel's own, not copies."""
    header = {"v": VERSION, **msgspec.to_builtins(message)}
    for name, value in header.items():
        if isinstance(value, dict) and len(value) > DEFAULT_LIMITS.max_items:
            most = DEFAULT_LIMITS.max_items
            raise EncodeError(f"{len(value)} {name} in a {kind_of(message)}; at most {most} may travel")
    if parcel.specs:
        rows = msgspec.to_builtins(parcel.specs)
        header["arrays"] = [row if row[-1] else row[:-1] for row in rows]  # most are not encoded
    return [_PACKER.pack(header), *parcel.frames]


def decode(frames: Sequence[Buffer], limits: Limits = DEFAULT_LIMITS) -> Decoded:
    """The inverse. Raises DecodeError, and nothing else, for anything that is not a message of ours."""
    _check_lengths(frames, limits)
    fields = _unpack_header(frames[0], limits)
    version = fields.pop("v", None)
    if type(version) is not int or version != VERSION:  # True == 1 == 1.0
        # Only a number is repeated: the text of a hostile nest would exhaust the stack.
        theirs = version if type(version) is int else f"({type(version).__name__})"
        raise VersionMismatch(
            f"versions differ: the other side speaks protocol {theirs}, this one {VERSION}; install one fedsim"
        )
    try:
        header = msgspec.convert({"arrays": fields.pop("arrays", []), "message": fields}, _Header)
    except msgspec.ValidationError as error:
        where = str(error).replace("$.message", "$")  # the fields of a message are the header's own
        raise DecodeError(f"header: {where}") from None
    specs = header.arrays
    if len(specs) != len(frames) - 1:
        raise DecodeError(f"header announces {len(specs)} arrays, {len(frames) - 1} frames came")
    arrays = unpack(Parcel(specs, tuple(frames[1:])), limits)
    if len(arrays) != len(specs):
        raise DecodeError("two arrays of one message have the same name")
    return Decoded(header.message, arrays, specs)


def _check_lengths(frames: Sequence[Buffer], limits: Limits) -> None:
    if not frames:
        raise DecodeError("no frames")
    if len(frames) > 1 + limits.max_arrays:
        raise LimitExceeded(f"{len(frames) - 1} arrays in one message, at most {limits.max_arrays}")
    if len(frames[0]) > limits.max_header_bytes:
        raise LimitExceeded(f"header of {len(frames[0])} bytes, at most {limits.max_header_bytes}")
    if (total := sum(map(len, frames))) > limits.max_message_bytes:
        raise LimitExceeded(f"message of {total} bytes, at most {limits.max_message_bytes}")


def _unpack_header(header: Buffer, limits: Limits) -> dict[str, Any]:
    try:
        fields = msgpack.unpackb(
            header,
            raw=False,
            strict_map_key=True,
            object_pairs_hook=_unique,
            max_array_len=limits.max_items,
            max_map_len=limits.max_items,
            max_str_len=limits.max_text_bytes,
            max_bin_len=0,
            max_ext_len=0,
        )
    # OverflowError comes out of malformed timestamps, which msgpack decodes before it looks at max_ext_len.
    except (ValueError, OverflowError, RecursionError) as error:
        # Its limits have no class of their own: "65 exceeds max_map_len(64)".
        kind = LimitExceeded if "exceeds max_" in str(error) else DecodeError
        raise kind(f"header is not msgpack within limits: {type(error).__name__}: {error}") from None
    if not isinstance(fields, dict):
        raise DecodeError(f"header is a {type(fields).__name__}, not a map")
    return fields


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key appears twice in one map")
    return fields


def announced_bytes(spec: ArraySpec) -> int:
    """What an array takes, decoded, by which it is held to the limit of a frame. One without elements still has a
    shape, and numpy cannot hold every shape."""
    return math.prod(size or 1 for size in spec.shape) * _NUMPY_TYPES[spec.dtype].itemsize


def _view(spec: ArraySpec, frame: Buffer, limits: Limits) -> Item:
    dtype = _NUMPY_TYPES.get(spec.dtype)
    if dtype is None:
        raise DecodeError(f"array {spec.name!r}: dtype {spec.dtype!r} may not travel")
    if len(spec.shape) > limits.max_rank:
        raise LimitExceeded(f"array {spec.name!r}: rank {len(spec.shape)}, at most {limits.max_rank}")
    if announced_bytes(spec) > limits.max_frame_bytes:
        raise LimitExceeded(f"array {spec.name!r}: shape {spec.shape}, at most {limits.max_frame_bytes} B")
    if spec.encoding:
        return Coded(spec.encoding, dtype, spec.shape, frame)
    expected = math.prod(spec.shape) * dtype.itemsize
    if len(frame) != expected:
        raise DecodeError(f"array {spec.name!r}: shape needs {expected} bytes, the frame has {len(frame)}")
    array = np.frombuffer(frame, dtype).reshape(spec.shape)
    array.flags.writeable = False
    return array
