"""Limits of what a peer may send, and nothing but DecodeError for headers that are not ours."""

import tracemalloc

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_samples import STOP, frames_of, parcel_of

from protocol import messages
from protocol.codec import Decoded, decode, encode
from protocol.errors import DecodeError, LimitExceeded
from protocol.limits import Limits
from protocol.messages import Stop


class TestLimits:
    """Each limit with the largest thing that passes and the smallest that does not."""

    def test_number_of_arrays(self):
        def message(count):
            return encode(STOP, parcel_of(**{f"a{i}": np.zeros(1) for i in range(count)}))

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
        assert decode(encode(STOP, parcel_of(a=np.zeros((1,) * 8)))).arrays["a"].ndim == 8
        with pytest.raises(LimitExceeded, match="rank 9"):
            decode(encode(STOP, parcel_of(a=np.zeros((1,) * 9))))

    def test_items(self):
        def message(count):
            return encode(
                messages.Result(
                    run="r", round=0, attempt=0, metrics={str(i): 0.0 for i in range(count)}, seconds={}
                )
            )

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
