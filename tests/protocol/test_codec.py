"""Frames and back: every message, every array, no copy; what does not fit together is refused."""

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from wire_samples import STOP, frames_of, parcel_of

from protocol import messages
from protocol.codec import Coded, Decoded, Parcel, decode, encode, pack
from protocol.errors import DecodeError, EncodeError, LimitExceeded, VersionMismatch
from protocol.limits import DTYPES

numbers = st.integers(0, (1 << 31) - 1)
unbounded = st.integers(0, (1 << 64) - 1)
flags = st.booleans()
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=64)
runs = st.text(st.characters(exclude_categories=["Cs"]), max_size=32)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=2000)
amounts = st.floats(min_value=0, allow_nan=False)
figures = st.dictionaries(names, st.floats(allow_nan=False), max_size=64)

MESSAGES = {
    "hello": st.builds(messages.Hello, client=st.integers(0, 999_999), place=names, slots=st.integers(1, 4096)),
    "welcome": st.builds(
        messages.Welcome,
        run=runs,
        states=st.text("0123456789abcdef", max_size=16),
        restore=st.integers(-1, (1 << 31) - 1),
    ),
    "refusal": st.builds(messages.Refusal, reason=texts),
    "ready": st.builds(
        messages.Ready,
        run=runs,
        num_train=numbers,
        num_test=numbers,
        num_parameters=unbounded,
        start_seconds=amounts,
        pss_bytes=unbounded,
    ),
    "setup": st.builds(messages.Setup, run=runs),
    "work": st.builds(
        messages.Work,
        run=runs,
        round=numbers,
        attempt=numbers,
        slot=numbers,
        train=flags,
        evaluate=flags,
        save=flags,
        keep=st.integers(-1, 2**31 - 1),
    ),
    "result": st.builds(
        messages.Result, run=runs, round=numbers, attempt=numbers, metrics=figures, seconds=figures
    ),
    "failure": st.builds(messages.Failure, run=runs, round=numbers, error=texts),
    "stop": st.builds(messages.Stop, reason=texts),
}

arrays_of_any_shape = st.sampled_from(sorted(DTYPES.values())).flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=8, min_side=0, max_side=3))
)


def same_bits(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


class TestRoundTrip:
    @pytest.mark.parametrize("kind", sorted(MESSAGES))
    @given(data=st.data())
    def test_every_message(self, kind, data):
        message = data.draw(MESSAGES[kind])
        frames = encode(message)
        assert decode(frames) == Decoded(message)
        assert messages.kind_of(message) == kind
        assert encode(decode(frames).message) == frames  # one message, one sequence of bytes

    @given(st.dictionaries(names, arrays_of_any_shape, max_size=32), st.data())
    def test_every_array(self, arrays, data):
        payloads = {name: data.draw(names) for name in arrays}
        decoded = decode(encode(STOP, pack(arrays, payloads)))
        assert decoded.message == STOP
        assert list(decoded.arrays) == list(arrays)
        assert {spec.name: spec.payload for spec in decoded.specs} == payloads
        for name, array in arrays.items():
            assert same_bits(decoded.arrays[name], array)

    @pytest.mark.parametrize("wire_name", sorted(DTYPES))
    @pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 5), (3, 0, 2), (2, 3), (1,) * 8])
    def test_every_dtype_and_shape(self, wire_name, shape):
        array = np.arange(np.prod(shape, dtype=int)).astype(DTYPES[wire_name]).reshape(shape)
        decoded = decode(encode(STOP, parcel_of(a=array)))
        assert decoded.specs[0].dtype == wire_name
        assert same_bits(decoded.arrays["a"], array)

    @pytest.mark.parametrize(
        "view",
        [
            np.arange(12.0).reshape(3, 4).T,
            np.arange(12.0).reshape(3, 4)[:, ::2],
            np.arange(12.0)[::-1],
            np.asfortranarray(np.arange(24, dtype=np.int32).reshape(2, 3, 4)),
            np.broadcast_to(np.float32(3), (2, 2)),
        ],
        ids=["transposed", "strided", "reversed", "fortran", "broadcast"],
    )
    def test_arrays_that_are_not_contiguous(self, view):
        assert same_bits(decode(encode(STOP, parcel_of(a=view))).arrays["a"], np.ascontiguousarray(view))

    @pytest.mark.parametrize("bits", [0x7FC00001, 0x7F800000, 0xFF800000, 0x80000000, 1])
    def test_special_floats_keep_their_bits(self, bits):
        array = np.array([bits], dtype="<u4").view("<f4")
        assert same_bits(decode(encode(STOP, parcel_of(a=array))).arrays["a"], array)

    def test_frames_may_be_memoryviews(self):
        frames = [memoryview(frame) for frame in encode(STOP, parcel_of(a=np.arange(3)))]
        assert same_bits(decode(frames).arrays["a"], np.arange(3))


class TestNoCopy:
    def test_frames_share_the_memory_of_the_arrays(self):
        array = np.zeros((100, 512), np.float32)
        _, frame = encode(STOP, parcel_of(a=array))
        assert np.shares_memory(np.frombuffer(frame, np.uint8), array)

    def test_decoded_arrays_share_the_memory_of_the_frames(self):
        header, frame = encode(STOP, parcel_of(a=np.ones((4, 5))))
        received = bytearray(frame)  # what the transport hands over is writable memory
        decoded = decode([header, memoryview(received)]).arrays["a"]
        assert np.shares_memory(decoded, np.frombuffer(received, np.uint8))

    def test_a_broadcast_shares_its_frames(self):
        parcel = parcel_of(a=np.ones(1000), b=np.zeros(3, np.uint8))
        first, second = encode(STOP, parcel), encode(messages.Setup(run="r"), parcel)
        assert all(one is other for one, other in zip(first[1:], second[1:], strict=True))
        assert all(frame is own for frame, own in zip(first[1:], parcel.frames, strict=True))

    @pytest.mark.parametrize("buffer", [bytes, bytearray])
    @pytest.mark.parametrize("array", [np.ones((2, 2)), np.ones(()), np.ones((0, 2))])
    def test_decoded_arrays_are_read_only(self, buffer, array):
        header, frame = encode(STOP, parcel_of(a=array))
        decoded = decode([header, memoryview(buffer(frame))]).arrays["a"]
        assert not decoded.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            decoded[...] = 2


class TestHeader:
    def test_parcel_is_empty_by_default(self):
        assert Parcel() == pack({}, {})

    def test_an_encoding_is_a_fifth_item_and_only_where_there_is_one(self):
        coded = Coded("int8", np.dtype("<f4"), (100, 512), b"shorter")
        parcel = pack({"a": coded, "b": np.zeros(2, np.float32)}, {"a": "prototypes", "b": "margins"})
        frames = encode(STOP, parcel)
        assert msgpack.unpackb(frames[0])["arrays"] == [
            ["a", "prototypes", "f4", [100, 512], "int8"],
            ["b", "margins", "f4", [2]],
        ]
        assert decode(frames).arrays["a"] == coded

    def test_an_announced_size_beyond_the_limit_is_refused_whatever_the_frame_holds(self):
        bomb = Coded("zstd", np.dtype("<f4"), (1 << 20, 1 << 10), b"tiny")
        with pytest.raises(LimitExceeded, match=r"shape \(1048576, 1024\)"):
            decode(encode(STOP, pack({"a": bomb}, {"a": "prototypes"})))

    def test_without_arrays_the_header_does_not_speak_of_them(self):
        (header,) = encode(STOP)
        assert msgpack.unpackb(header) == {"v": messages.VERSION, "kind": "stop", "reason": "done"}

    def test_with_arrays(self):
        parcel = parcel_of(p=np.zeros((2, 3), np.float16))
        assert msgpack.unpackb(encode(STOP, parcel)[0])["arrays"] == [["p", "prototypes", "f2", [2, 3]]]

    @pytest.mark.parametrize(
        "dtype", ["bool", "i1", "i2", "u2", "u4", "u8", "c8", "S3", "M8[s]", "O", ">f4", ">i8"]
    )
    def test_other_dtypes_may_not_leave(self, dtype):
        with pytest.raises(EncodeError, match="'a'"):
            parcel_of(a=np.zeros(2, dtype))

    @pytest.mark.parametrize("dtype", ["b1", "i1", "u2", ">f4", "<f4", "float32", "O", "", "f16", "V8"])
    def test_other_dtypes_may_not_enter(self, dtype):
        with pytest.raises(DecodeError, match="dtype"):
            decode(frames_of({"arrays": [["a", "p", dtype, [1]]]}, bytes(8)))

    @pytest.mark.parametrize("version", [0, 1, -1, 1 << 63, None, "2", 2.0, True, [2], {}])
    def test_other_versions(self, version):
        with pytest.raises(VersionMismatch, match=r"^versions differ: .*, this one 2"):
            decode(frames_of({"v": version}))

    def test_no_version(self):
        with pytest.raises(VersionMismatch):
            decode([msgpack.packb({"kind": "stop", "reason": ""})])

    @pytest.mark.parametrize("header", [{"extra": 1}, {"": 0}, {"Reason": ""}, {"client": 1}])
    def test_unknown_field(self, header):
        with pytest.raises(DecodeError, match="unknown field"):
            decode(frames_of(header))

    @pytest.mark.parametrize("kind", ["", "STOP", "pickle", 3, None, ["stop"]])
    def test_unknown_kind(self, kind):
        with pytest.raises(DecodeError, match="kind"):
            decode(frames_of({"kind": kind}))

    @pytest.mark.parametrize(
        "arrays",
        [
            None,
            {},
            "a",
            [1],
            [[]],
            [["a", "p", "f4"]],
            [["a", "p", "f4", [1], 0]],
            [["a", "p", "f4", [1], "int8", ""]],
            [["a", "p", "f4", [1], "e" * 65]],
            [["a", "p", "f4", 1]],
            [["a", "p", "f4", [-1]]],
            [["a", "p", "f4", [1 << 31]]],
            [["a", "p", "f4", [True]]],
            [["a", "p", "f4", [1.0]]],
            [["a", "p", "f4", ["1"]]],
            [["a", "p", "f4", [[1]]]],
            [[1, "p", "f4", [1]]],
            [["a" * 65, "p", "f4", [1]]],
            [["a", "p" * 65, "f4", [1]]],
            [{"name": "a", "payload": "p", "dtype": "f4", "shape": [1]}],
        ],
    )
    def test_malformed_array_descriptions(self, arrays):
        with pytest.raises(DecodeError):
            decode(frames_of({"arrays": arrays}, bytes(4)))


class TestCounts:
    def test_no_frames(self):
        with pytest.raises(DecodeError, match="no frames"):
            decode([])

    @pytest.mark.parametrize("num_frames", [0, 1, 3])
    def test_wrong_number_of_frames(self, num_frames):
        specs = [["a", "p", "f4", [1]], ["b", "p", "f4", [1]]]
        with pytest.raises(DecodeError, match="announces 2 arrays"):
            decode(frames_of({"arrays": specs}, *[bytes(4)] * num_frames))

    def test_frames_that_nobody_announced(self):
        with pytest.raises(DecodeError, match="announces 0 arrays"):
            decode([*encode(STOP), b""])

    @pytest.mark.parametrize("num_bytes", [0, 1, 23, 25, 48])
    def test_wrong_number_of_bytes(self, num_bytes):
        with pytest.raises(DecodeError, match="needs 24 bytes"):
            decode(frames_of({"arrays": [["a", "p", "f4", [2, 3]]]}, bytes(num_bytes)))

    def test_two_arrays_of_one_name(self):
        with pytest.raises(DecodeError, match="same name"):
            decode(frames_of({"arrays": [["a", "p", "u1", [1]]] * 2}, b"x", b"y"))

    @pytest.mark.parametrize(
        "header",
        [
            b"\x84\xa1v\x02\xa4kind\xa4stop\xa6reason\xa1a\xa6reason\xa1b",
            b"\x84\xa1v\x03\xa1v\x02\xa4kind\xa4stop\xa6reason\xa1a",
            b"\x86\xa1v\x02\xa4kind\xa6result\xa3run\xa0\xa5round\x00\xa7attempt\x00\xa7metrics"
            b"\x82\xa1m\xcb" + bytes(8) + b"\xa1m\xcb" + bytes(8),
        ],
        ids=["field", "version", "metric"],
    )
    def test_key_that_appears_twice(self, header):
        """A second value must not silently win: two readers could take two different ones."""
        with pytest.raises(DecodeError, match="twice"):
            decode([header])
