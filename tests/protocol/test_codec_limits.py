"""Limits of what a peer may send, and nothing but DecodeError for headers that are not ours."""

import tracemalloc

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_samples import STOP, frames_of, parcel_of

from protocol import messages
from protocol.codec import Coded, Decoded, decode, encode, pack
from protocol.errors import DecodeError, EncodeError, LimitExceeded
from protocol.limits import MEBIBYTE, Limits
from protocol.messages import Stop


class TestLimits:
    """Each limit with the largest thing that passes and the smallest that does not."""

    def test_number_of_arrays(self):
        def message(count):
            specs = [[f"a{number}", "p", "u1", [1]] for number in range(count)]
            return frames_of({"arrays": specs}, *[b"x"] * count)

        assert len(decode(message(3), Limits(max_arrays=3)).arrays) == 3
        with pytest.raises(LimitExceeded, match="4 arrays"):
            decode(message(4), Limits(max_arrays=3))
        assert len(decode(message(32)).arrays) == 32
        with pytest.raises(LimitExceeded, match="at most 32"):
            decode(message(33))

    def test_header_bytes(self):
        frames = encode(STOP)
        assert decode(frames, Limits(max_header_bytes=len(frames[0])))
        with pytest.raises(LimitExceeded, match="header"):
            decode(frames, Limits(max_header_bytes=len(frames[0]) - 1))

    def test_message_bytes(self):
        frames = encode(STOP, parcel_of(a=np.zeros(10), b=np.zeros(10)))
        total = len(frames[0]) + 160
        assert decode(frames, Limits(max_message_bytes=total))
        with pytest.raises(LimitExceeded, match=f"{total} bytes"):
            decode(frames, Limits(max_message_bytes=total - 1))

    def test_frame_bytes(self):
        frames = encode(STOP, parcel_of(a=np.zeros((5, 2))))
        assert decode(frames, Limits(max_frame_bytes=80))
        with pytest.raises(LimitExceeded, match="'a'"):
            decode(frames, Limits(max_frame_bytes=79))

    def test_rank(self):
        def message(rank):
            return frames_of({"arrays": [["a", "p", "u1", [1] * rank]]}, b"x")

        assert decode(message(8)).arrays["a"].ndim == 8
        with pytest.raises(LimitExceeded, match="rank 9"):
            decode(message(9))

    def test_items(self):
        def message(count):
            metrics = {str(number): 0.0 for number in range(count)}
            result = {"kind": "result", "run": "r", "round": 0, "attempt": 0, "metrics": metrics, "seconds": {}}
            return [msgpack.packb({"v": messages.VERSION, **result})]

        assert len(decode(message(64)).message.metrics) == 64
        with pytest.raises(LimitExceeded, match="65 exceeds max_map_len"):
            decode(message(65))

    def test_text_bytes(self):
        """The longest text is legal in any alphabet."""
        widest = Stop(reason="\U0001f600" * 2000)
        assert decode(encode(widest)).message == widest
        with pytest.raises(LimitExceeded, match="8001 exceeds max_str_len"):
            decode(frames_of({"reason": "x" * 8001}))
        with pytest.raises(DecodeError, match="length <= 2000"):
            decode(frames_of({"reason": "x" * 2001}))

    @pytest.mark.parametrize(
        "shape",
        [
            [(1 << 31) - 1] * 8,
            [1 << 30],
            [0, (1 << 31) - 1, (1 << 31) - 1, (1 << 31) - 1],
            [(1 << 31) - 1, (1 << 31) - 1, 0],
            [(1 << 31) - 1, 0, 1 << 30, 2],
        ],
    )
    def test_claimed_shape_costs_nothing(self, shape):
        frames = frames_of({"arrays": [["a", "p", "f8", shape]]}, b"")
        tracemalloc.start()
        try:
            with pytest.raises(LimitExceeded):
                decode(frames)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < 100_000


class TestWhatLeaves:
    """What a receiver would refuse is not sent: nobody would learn of it there. The largest thing that passes is
    taken, the smallest that does not is refused by name."""

    @pytest.mark.parametrize(
        ("largest", "too_much", "complaint"),
        [
            (
                {f"a{number}": np.zeros(1) for number in range(32)},
                {f"a{number}": np.zeros(1) for number in range(33)},
                "33 arrays in one message; at most 32 may travel",
            ),
            ({"a": np.zeros((1,) * 8)}, {"a": np.zeros((1,) * 9)}, "array 'a' has 9 dimensions; at most 8"),
            ({"ä" * 64: np.zeros(1)}, {"ä" * 65: np.zeros(1)}, "'ä{65}' is too long, a name may have 64"),
            (
                {"a": Coded("e" * 64, np.dtype("<f4"), (1,), b"x")},
                {"a": Coded("e" * 65, np.dtype("<f4"), (1,), b"x")},
                "array 'a': 'e{65}' is too long",
            ),
            (
                {"a": Coded("e", np.dtype("u1"), ((1 << 31) - 1,), b"x")},
                {"a": Coded("e", np.dtype("u1"), (1 << 31,), b"x")},
                "array 'a' has shape .2147483648,.; no size may exceed 2147483647",
            ),
        ],
        ids=["arrays", "dimensions", "name", "encoding", "size"],
    )
    def test_arrays(self, largest, too_much, complaint):
        decoded = decode(encode(STOP, parcel_of(**largest)), Limits(max_frame_bytes=1 << 40))
        assert decoded.arrays.keys() == largest.keys()
        with pytest.raises(EncodeError, match=complaint):
            parcel_of(**too_much)

    def test_the_name_of_a_payload(self):
        assert decode(encode(STOP, pack({"a": np.zeros(1)}, {"a": "p" * 64})))
        with pytest.raises(EncodeError, match=r"array 'a': 'p{65}' is too long"):
            pack({"a": np.zeros(1)}, {"a": "p" * 65})

    @pytest.mark.parametrize("part", ["metrics", "seconds"])
    def test_items_of_a_message(self, part):
        def result(count):
            fields = {"metrics": {}, "seconds": {}} | {part: {str(number): 0.0 for number in range(count)}}
            return messages.Result(run="r", round=0, attempt=0, **fields)

        assert decode(encode(result(64))).message == result(64)
        with pytest.raises(EncodeError, match=f"65 {part} in a result; at most 64 may travel"):
            encode(result(65))


def test_where_larger_arrays_may_travel_larger_messages_may():
    """Two of the largest at least, however large; and with small ones as much as without a word of it."""
    assert Limits.of_frames(1024) == Limits()
    assert Limits.of_frames(1) == Limits(max_frame_bytes=MEBIBYTE)
    large = np.zeros(1500 * MEBIBYTE, np.uint8)  # never touched, so it takes no memory
    frames = encode(STOP, parcel_of(a=large, b=large))
    assert len(decode(frames, Limits.of_frames(1501)).arrays) == 2
    with pytest.raises(LimitExceeded, match="at most 2147483648"):
        decode(frames, Limits(max_frame_bytes=1501 * MEBIBYTE))


def nested(opening, depth, innermost=b"\xc0"):
    return opening * depth + innermost


HOSTILE = {
    "nothing": b"",
    "not a map": b"\x93\x01\x02\x03",
    "a bare version": b"\x01",
    "never used byte": b"\xc1",
    "trailing bytes": msgpack.packb({"v": messages.VERSION, "kind": "stop", "reason": ""}) + b"\x00",
    "two messages": msgpack.packb({"v": messages.VERSION, "kind": "stop", "reason": ""}) * 2,
    "truncated": msgpack.packb({"v": messages.VERSION, "kind": "stop", "reason": "abc"})[:-1],
    "array of 2^32-1": b"\xdd\xff\xff\xff\xff",
    "map of 2^32-1": b"\xdf\xff\xff\xff\xff",
    "text of 2^32-1": b"\x81\xa1v\xdb\xff\xff\xff\xff",
    "binary of 2^32-1": b"\x81\xa1v\xc6\xff\xff\xff\xff",
    "extension of 2^32-1": b"\x81\xa1v\xc9\xff\xff\xff\xff\x05",
    "nested arrays": nested(b"\x91", 60_000),
    "nested maps": nested(b"\x81\xa1a", 20_000),
    "nested arrays of 64": nested(b"\xdc\x00\x40", 1000),
    "integer key": b"\x81\x01\x01",
    "nil key": b"\x81\xc0\x01",
    "array key": b"\x81\x90\x01",
    "map key": b"\x81\x80\x01",
    "binary key": b"\x81\xc4\x00\x01",
    "surrogate": b"\x83\xa1v\x01\xa4kind\xa4stop\xa6reason\xa3\xed\xa0\x80",
    "not UTF-8": b"\x83\xa1v\x01\xa4kind\xa4stop\xa6reason\xa1\xff",
    "binary for text": b"\x83\xa1v\x01\xa4kind\xa4stop\xa6reason\xc4\x00",
    "empty extension": b"\x83\xa1v\x01\xa4kind\xa4stop\xa6reason\xc7\x00\x05",
    "extension": b"\x83\xa1v\x01\xa4kind\xa4stop\xa6reason\xd4\x05\x00",
    "empty extension for arrays": b"\x84\xa1v\x01\xa4kind\xa4stop\xa6reason\xa0\xa6arrays\xc7\x00\x05",
    "timestamp of 4 bytes": b"\x81\xa1v\xd6\xff" + b"\xff" * 4,
    "timestamp of 8 bytes": b"\x81\xa1v\xd7\xff" + b"\xff" * 8,
    "timestamp of 12 bytes": b"\x81\xa1v\xc7\x0c\xff" + b"\xff" * 12,
    "timestamp of no bytes": b"\x81\xa1v\xc7\x00\xff",
    "timestamp key": b"\x81\xd6\xff" + bytes(4) + b"\x01",
    "float kind": b"\x82\xa1v\x01\xa4kind\xcb" + b"\xff" * 8,
    **{f"version nested {depth}": b"\x81\xa1v" + nested(b"\x91", depth) for depth in (300, 900, 1000, 1022)},
    **{f"kind nested {depth}": b"\x82\xa1v\x01\xa4kind" + nested(b"\x91", depth) for depth in (900, 1021)},
    **{f"arrays nested {depth}": b"\x82\xa1v\x01\xa6arrays" + nested(b"\x91", depth) for depth in (900, 1021)},
    **{f"maps nested {depth}": b"\x81\xa1v" + nested(b"\x81\xa1a", depth) for depth in (900, 1000, 1022)},
}


class TestHostileHeaders:
    @pytest.mark.parametrize("header", HOSTILE.values(), ids=HOSTILE.keys())
    def test_only_decode_errors(self, header):
        tracemalloc.start()
        try:
            with pytest.raises(DecodeError) as caught:
                decode([header])
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(str(caught.value)) < 10_000
        assert peak_bytes < 2_000_000  # the largest header is 64 KiB

    @given(st.binary(max_size=300))
    def test_any_bytes(self, header):
        with pytest.raises(DecodeError):
            decode([header])

    @given(
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(1 << 63), (1 << 64) - 1)
            | st.floats()
            | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
            | st.binary(max_size=5),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc"), inner, max_size=4),
        ),
        st.sampled_from(["v", "kind", "reason", "arrays", "other"]),
    )
    def test_any_value_in_any_field(self, value, field):
        frames = frames_of({field: value})
        try:
            decoded = decode(frames)
        except DecodeError:
            return
        assert decoded == Decoded(Stop(reason=value if field == "reason" else ""))
