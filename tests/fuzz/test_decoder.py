"""The decoder under hundreds of thousands of hostile messages: one of ours or a DecodeError, nothing else."""

import math
import random
from collections import Counter

import msgpack
import msgspec
import numpy as np
import pytest

from protocol import messages
from protocol.codec import Coded, Decoded, decode, encode, pack
from protocol.errors import DecodeError
from protocol.limits import DEFAULT_LIMITS, DTYPES

SEED = 20_240_607

SEEDS_OF_MESSAGES = [
    messages.Hello(client=7, place="host/0", slots=2),
    messages.Welcome(run="run-1", states="0f3a", restore=-1),
    messages.Refusal(reason="the list is full"),
    messages.Ready(
        run="run-1", num_train=600, num_test=200, num_parameters=10**6, start_seconds=1.25, pss_bytes=2**33
    ),
    messages.Setup(run="run-1"),
    messages.Work(
        run="run-1", round=70_000, attempt=1, slot=0, train=True, evaluate=False, save=True, keep=69_999
    ),
    messages.Delivered(run="run-1", round=3, attempt=0),
    messages.Turn(run="run-1", round=3, attempt=0, slot=1),
    messages.Done(run="run-1", round=3, attempt=0),
    messages.Result(run="run-1", round=3, attempt=0, metrics={"accuracy": 0.5}, seconds={"train": 2.0}),
    messages.Failure(run="run-1", round=3, error="ValueError: é"),
    messages.Stop(reason="done"),
]
ARRAYS = {
    "prototypes": np.arange(40, dtype=np.float32).reshape(5, 8),
    "classes": np.arange(5),
    "empty": np.zeros((0, 8), np.float16),
    "scalar": np.array(1.0),
    "image": np.zeros((2, 3, 3), np.uint8),
    "coded": Coded("int8", np.dtype("<f4"), (5, 8), bytes(60)),
}
VALID = [
    [bytes(frame) for frame in encode(message, parcel)]
    for message in SEEDS_OF_MESSAGES
    for parcel in (pack({}, {}), pack(ARRAYS, dict.fromkeys(ARRAYS, "prototypes")))
]

# Beginnings of every msgpack type, with lengths at their ends: random bytes alone rarely build a structure.
TOKENS = [
    *(bytes([byte]) for byte in (0x00, 0x7F, 0x80, 0x81, 0x8F, 0x90, 0x91, 0x9F, 0xA0, 0xBF, 0xE0, 0xFF)),
    *(bytes([byte]) for byte in (0xC0, 0xC1, 0xC2, 0xC3)),
    *(bytes([byte, size]) for byte in (0xC4, 0xC7, 0xCC, 0xD0, 0xD9) for size in (0, 1, 255)),
    *(bytes([byte]) + size for byte in (0xC5, 0xC8, 0xDA, 0xDC, 0xDE) for size in (bytes(2), b"\xff\xff")),
    *(bytes([byte]) + size for byte in (0xC6, 0xC9, 0xDB, 0xDD, 0xDF) for size in (bytes(4), b"\xff" * 4)),
    *(bytes([byte]) + b"\xff" for byte in (0xD4, 0xD5, 0xD6, 0xD7, 0xD8)),
    b"\xca\x7f\xc0\x00\x00",
    b"\xcb\x7f\xf0" + bytes(6),
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + bytes(7),
    b"\xa1v\x01",
    b"\xa4kind",
    b"\xa4stop",
    b"\xa6arrays",
    b"\xa6reason",
    b"\xa5shape",
    b"\x91" * 300,
    b"\x81\xa1v" * 300,
]

VALUES = [
    *(None, True, False, 0, 1, -1, 2**31 - 1, 2**31, 2**63, 2**64 - 1, -(2**63), 0.0, -1.0),
    *(float("nan"), float("inf"), "", "stop", "f4", "x" * 64, "x" * 65, "x" * 2001, b"", b"x"),
    *(
        [],
        {},
        [[]],
        [1, 2],
        {"a": 1.0},
        {"a": {}},
        [["a", "p", "f4", [0]]],
        [["a", "p", "u1", [2**30, 0, 2**31 - 1]]],
    ),
    *(
        msgpack.ExtType(5, b""),
        msgpack.ExtType(5, b"x"),
        msgpack.Timestamp(1, 2),
        msgpack.Timestamp(2**40, 2),
    ),
]


def random_bytes(rng):
    return [rng.randbytes(rng.randrange(60)) for _ in range(rng.choice((1, 1, 1, 2, 5)))]


def random_tokens(rng):
    return [b"".join(rng.choices(TOKENS, k=rng.randrange(1, 12)))]


def flipped(rng):
    """A valid message with some bytes changed, put in or taken out."""
    frames = list(rng.choice(VALID))
    at = rng.choice((0, 0, rng.randrange(len(frames))))
    body = bytearray(frames[at])
    for _ in range(rng.choice((1, 1, 2, 5))):
        position = rng.randrange(len(body) + 1)
        change = rng.randrange(3)
        if change == 0:
            body[position:position] = rng.choice((rng.randbytes(1), rng.choice(TOKENS)))
        elif position < len(body):
            body[position : position + 1] = b"" if change == 1 else rng.randbytes(1)
    frames[at] = bytes(body)
    return frames


def truncated(rng):
    frames = list(rng.choice(VALID))
    at = rng.randrange(len(frames))
    frames[at] = frames[at][: rng.randrange(len(frames[at]) + 1)]
    return frames[: rng.randrange(1, len(frames) + 1)]


def spliced(rng):
    """Frames of several messages, in any order, and headers whose halves belong to different messages."""
    pool = rng.choice(VALID) + rng.choice(VALID)
    frames = rng.choices(pool, k=rng.randrange(45)) if rng.random() < 0.5 else rng.sample(pool, len(pool) // 2)
    if frames and rng.random() < 0.5:
        one, other = rng.choice(VALID)[0], rng.choice(VALID)[0]
        frames[0] = one[: rng.randrange(len(one))] + other[rng.randrange(len(other)) :]
    return frames


def edited(rng):
    """A header that is sound msgpack, with fields replaced, added, removed: past the parser, into the checks."""
    header, *rest = rng.choice(VALID)
    fields = msgpack.unpackb(header)
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice([*fields, "v", "kind", "arrays", "other"])
        if name == "arrays" and isinstance(specs := fields.get(name), list) and specs:
            spec = rng.choice(specs)
            if not isinstance(spec, list) or len(spec) not in (4, 5):
                continue
            if rng.random() < 0.5:
                spec[3] = [rng.choice((0, 1, 5, 8, 2**31 - 1, 2**31, -1)) for _ in range(rng.randrange(10))]
            else:
                spec[rng.randrange(len(spec))] = rng.choice(VALUES)
        elif rng.random() < 0.2:
            fields.pop(name, None)
        else:
            fields[name] = rng.choice(VALUES)
    return [msgpack.packb(fields), *rest]


NUMBERS = {
    random_bytes: 50_000,
    random_tokens: 50_000,
    flipped: 50_000,
    truncated: 20_000,
    spliced: 30_000,
    edited: 50_000,
}


def check_sound(decoded, frames):
    """What came out keeps every promise of the decoder: encoded again it is the same message."""
    assert isinstance(decoded, Decoded)
    assert msgspec.convert(msgspec.to_builtins(decoded.message), messages.AnyMessage) is not None
    assert len(decoded.arrays) == len(decoded.specs) == len(frames) - 1 <= DEFAULT_LIMITS.max_arrays
    for spec, frame in zip(decoded.specs, frames[1:], strict=True):
        array = decoded.arrays[spec.name]
        assert array.dtype.str == DTYPES[spec.dtype] and array.shape == spec.shape
        assert len(array.shape) <= DEFAULT_LIMITS.max_rank
        if isinstance(array, Coded):
            # Nothing was allocated for it, and nothing will be that is larger than a frame may be.
            assert array.encoding == spec.encoding != "" and array.frame is frame
            assert math.prod(array.shape) * array.dtype.itemsize <= DEFAULT_LIMITS.max_frame_bytes
        else:
            assert array.nbytes == len(frame) and not array.flags.writeable
    assert repr(decode([*encode(decoded.message)]).message) == repr(decoded.message)


def test_more_than_a_hundred_thousand_messages():
    assert sum(NUMBERS.values()) >= 100_000


@pytest.mark.parametrize("generate", NUMBERS, ids=lambda generate: generate.__name__)
def test_only_decode_errors_or_messages(generate):
    rng = random.Random(f"{SEED} {generate.__name__}")
    outcomes = Counter()
    for _ in range(NUMBERS[generate]):
        frames = generate(rng)
        try:
            decoded = decode(frames)
        except DecodeError as error:
            outcomes[type(error).__name__] += 1
            continue
        outcomes["message"] += 1
        check_sound(decoded, frames)
    # A generator that always fails at the first check would test nothing.
    assert outcomes["DecodeError"] > 0
    if generate in (flipped, truncated, spliced, edited):
        assert outcomes["message"] > 50, outcomes
        assert outcomes["DecodeError"] > NUMBERS[generate] / 4, outcomes


def test_seeds_are_valid():
    """Every message of the table is among the seeds, or mutations would never come near it."""
    assert {type(message) for message in SEEDS_OF_MESSAGES} == set(messages.AnyMessage.__args__)
    for frames in VALID:
        check_sound(decode(frames), frames)
