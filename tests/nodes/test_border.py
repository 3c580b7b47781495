"""Nothing passes the border that the contract does not declare; what passes is copied on the way in only."""

import dataclasses
import importlib.util

import numpy as np
import pytest

from fedsim import encodings
from fedsim.contract import Contract, Field, Payload, class_ids
from fedsim.errors import ContractError, UserError
from nodes.border import Border, Passage, require_frames_fit
from protocol.codec import Coded, decode, encode, pack, unpack
from protocol.errors import DecodeError
from protocol.limits import MEBIBYTE, Limits
from protocol.messages import Setup

needs_zstd = pytest.mark.skipif(
    importlib.util.find_spec("zstandard") is None, reason="the extra zstd is not installed"
)

UP = {"prototypes": Field(Payload.PROTOTYPES, "n K"), "class_ids": class_ids("n")}
DOWN = {"prototypes": Field(Payload.PROTOTYPES, "C K")}
UP_OUT = UP_IN = Passage("up", client=0, round=0)
DOWN_OUT, DOWN_IN = Passage("down", round=0), Passage("down", client=0, round=0)


@pytest.fixture
def border() -> Border:
    return Border(Contract(up=UP, down=DOWN), {"C": 5, "K": 3})


def upload(rows: int = 2) -> dict[str, np.ndarray]:
    values = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    return {"prototypes": values, "class_ids": np.arange(rows, dtype=np.int32)}


def test_what_goes_out_comes_in_with_the_same_bits(border):
    parcel = border.outgoing(upload(), UP_OUT)
    decoded = decode(encode(Setup(run="r"), parcel))
    assert [(spec.name, spec.payload, spec.dtype, spec.shape) for spec in decoded.specs] == [
        ("prototypes", "prototypes", "f4", (2, 3)),
        ("class_ids", "index", "i4", (2,)),
    ]
    arrays = border.incoming(decoded.arrays, UP_IN)
    for name, array in upload().items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def test_arrays_travel_in_the_contract_s_order(border):
    shuffled = dict(reversed(upload().items()))
    assert [spec.name for spec in border.outgoing(shuffled, UP_OUT).specs] == ["prototypes", "class_ids"]


def test_outgoing_shares_memory_and_incoming_copies(border):
    arrays = upload()
    parcel = border.outgoing(arrays, UP_OUT)
    assert np.shares_memory(np.frombuffer(parcel.frames[0], np.float32), arrays["prototypes"])
    views = decode(encode(Setup(run="r"), parcel)).arrays
    assert not views["prototypes"].flags.writeable
    kept = border.incoming(views, UP_IN)
    kept["prototypes"][:] = -1.0  # a method may change what it is given
    np.testing.assert_array_equal(arrays["prototypes"], upload()["prototypes"])


def test_incoming_copies_in_process_too(border):
    """Without a wire between them the server's array must not become the client's."""
    down = {"prototypes": np.zeros((5, 3), np.float32)}
    first, second = (border.incoming(down, DOWN_IN)["prototypes"] for _ in range(2))
    first[0] = 1.0
    assert not down["prototypes"].any() and not second.any()


def test_nothing_may_travel_before_the_first_aggregation(border):
    parcel = border.outgoing({}, DOWN_OUT)
    assert parcel.specs == () and parcel.frames == ()
    assert border.incoming({}, DOWN_IN) == {}


@pytest.mark.parametrize("direction", ["outgoing", "incoming"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weights": np.zeros(3, np.float32)}, "field 'weights' is not in the contract"),
        ({"class_ids": np.zeros(2, np.int64)}, "field 'class_ids' has dtype int64, declared int32"),
        ({"class_ids": np.zeros(1, np.int32)}, "field 'class_ids' has shape (1,), declared (n) with n = 2"),
        ({"prototypes": np.zeros((2, 4), np.float32)}, "has shape (2, 4), declared (n K) with K = 3"),
        ({"prototypes": np.full((2, 3), np.nan, np.float32)}, "holds 6 non-finite values of 6"),
    ],
)
def test_both_sides_refuse_both_directions(border, direction, change, reason):
    with pytest.raises(ContractError) as refusal:
        getattr(border, direction)(upload() | change, Passage("up", 7, 12))
    assert str(refusal.value).startswith("client 7, round 12, up: ")
    assert reason in str(refusal.value)


def test_a_field_of_the_other_direction_is_refused(border):
    with pytest.raises(ContractError, match="field 'class_ids' is not in the contract \\(declared: prototypes\\)"):
        border.incoming(upload(5), DOWN_IN)


# ------------------------------------------------------------------------------------------------ encodings


def coded_border(wire: str = "int8", contract: Contract | None = None, seed: int = 1, **options) -> Border:
    contract = contract or Contract(up=UP, down=DOWN)
    return Border(contract, {"C": 5, "K": 3}, {"prototypes": wire, **options}, seed)


def arrived(border: Border, arrays: dict[str, np.ndarray], passage: Passage) -> dict[str, np.ndarray]:
    return border.incoming(unpack(border.outgoing(arrays, passage)), passage)


def some(seed: int = 0, rows: int = 2) -> dict[str, np.ndarray]:
    values = np.random.default_rng(seed).standard_normal((rows, 3)).astype(np.float32)
    return {"prototypes": values, "class_ids": np.arange(rows, dtype=np.int32)}


@pytest.mark.parametrize("wire", ["float16", "bfloat16", "int8", "topk:2"])
def test_a_method_has_decoded_values_and_the_wire_the_encoded_ones(wire):
    border = coded_border(wire)
    parcel = border.outgoing(some(), UP_OUT)
    assert [(spec.dtype, spec.shape, spec.encoding) for spec in parcel.specs] == [
        ("f4", (2, 3), wire),
        ("i4", (2,), ""),
    ]
    decoded_ = border.incoming(decode(encode(Setup(run="r"), parcel)).arrays, UP_IN)
    assert decoded_["prototypes"].dtype == np.float32 and decoded_["prototypes"].flags.writeable
    assert not np.array_equal(decoded_["prototypes"], some()["prototypes"])
    np.testing.assert_array_equal(decoded_["class_ids"], some()["class_ids"])


def test_what_is_rounded_at_random_depends_on_the_message_and_on_nothing_else():
    def frame(passage, seed=1, border=None):
        return bytes((border or coded_border(seed=seed)).outgoing(some(rows=5), passage).frames[0])

    border = coded_border()
    same = {frame(UP_OUT), frame(UP_OUT), frame(UP_OUT, border=border), frame(UP_OUT, border=border)}
    others = {
        frame(passage)
        for passage in (Passage("up", 1, 0), Passage("up", 0, 1), Passage("up", 0, 2), Passage("up", 2, 2))
    }
    assert len(same) == 1 and len(others) == 4 and not same & others
    assert frame(UP_OUT, seed=2) not in same


def announced(border, passage, **changes):
    """A message whose announcement of prototypes is changed."""
    items = unpack(border.outgoing(some(), passage))
    return items | {"prototypes": dataclasses.replace(items["prototypes"], **changes)}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"encoding": "float16"}, "comes as float16, agreed was int8"),
        ({"encoding": "nonsense"}, "comes as nonsense, agreed was int8"),
        ({"dtype": np.dtype("f8")}, "has dtype float64, declared float32"),
        ({"shape": (2, 4)}, "has shape (2, 4), declared (n K) with K = 3"),
        ({"shape": (1 << 27, 3)}, "field 'class_ids' has shape (2,), declared (n) with n = 134217728"),
        ({"frame": b""}, "needs 14 bytes of int8 for its shape, but 0 came"),
        ({"frame": np.array([np.nan, np.inf], "<f4").tobytes() + bytes(6)}, "holds 6 non-finite values of 6"),
    ],
)
def test_what_is_announced_must_be_what_was_agreed(changes, reason):
    border = coded_border()
    with pytest.raises(ContractError) as refusal:
        border.incoming(announced(border, UP_IN, **changes), UP_IN)
    assert str(refusal.value).startswith("client 0, round 0, up: field ") and reason in str(refusal.value)


def test_neither_side_may_leave_out_the_encoding_or_add_one():
    plain, coded = Border(Contract(up=UP, down=DOWN), {"C": 5, "K": 3}), coded_border()
    with pytest.raises(ContractError, match="comes as plain, agreed was int8"):
        coded.incoming(unpack(plain.outgoing(some(), UP_OUT)), UP_IN)
    with pytest.raises(ContractError, match="comes as int8, agreed was plain"):
        plain.incoming(unpack(coded.outgoing(some(), UP_OUT)), UP_IN)


@needs_zstd
@pytest.mark.parametrize(
    ("letter", "rows", "reason"),
    [
        ("n", 6, "announces 6 rows of classes, but there are 5"),
        ("open", 1 << 23, "announces 100,663,296 bytes in a compressed frame of"),
    ],
)
def test_a_bomb_is_refused_by_its_shape(letter, rows, reason):
    """Its frame is all that it announces, and so small that nobody would mind it."""
    border = coded_border("zstd", Contract(up={"prototypes": Field(Payload.PROTOTYPES, f"{letter} K")}))
    frame = encodings.make("zstd").encode(np.zeros((rows, 3), np.float32), lambda: None)
    bomb = {"prototypes": Coded("zstd", np.dtype("f4"), (rows, 3), frame)}
    with pytest.raises(ContractError, match=reason):
        border.incoming(bomb, UP_IN)


def test_values_that_an_encoding_cannot_hold_are_named():
    arrays = some() | {"prototypes": np.array([[1, 2, 3], [1, 2, 1e6]], np.float32)}
    with pytest.raises(
        ContractError, match="client 0, round 0, up: field 'prototypes' holds 1 of 6 values beyond"
    ):
        coded_border("float16").outgoing(arrays, UP_OUT)


def test_what_was_lost_is_added_to_the_next_upload():
    """So the sum of what arrives stays within one step of the sum of what was to be sent."""
    border = coded_border("topk:1", ways="up", error_feedback=True)
    wanted, got = np.zeros((2, 3)), np.zeros((2, 3))
    for round in range(30):
        wanted += some(round)["prototypes"]
        got += arrived(border, some(round), Passage("up", 0, round))["prototypes"]
    owed = border.state()["prototypes"]
    np.testing.assert_allclose(got + owed, wanted, atol=1e-4)
    plain = coded_border("topk:1", ways="up")
    lost = sum(arrived(plain, some(r), Passage("up", 0, r))["prototypes"] for r in range(30)) - wanted
    assert np.abs(lost).max() > np.abs(got - wanted).max()


def test_a_class_keeps_what_it_is_owed_while_it_is_not_sent():
    border = coded_border("topk:1", ways="up", error_feedback=True)

    def sent(round, classes, values):
        arrays = {"prototypes": np.array(values, np.float32), "class_ids": np.array(classes, np.int32)}
        return arrived(border, arrays, Passage("up", 0, round))["prototypes"].tolist()

    assert sent(0, [1, 4], [[9, 1, 0], [0, 2, 7]]) == [[9, 0, 0], [0, 0, 7]]
    assert sent(1, [2], [[5, 0, 0]]) == [[5, 0, 0]]
    assert sent(2, [4, 2], [[0, 1, 0], [0, 6, 0]]) == [[0, 3, 0], [0, 6, 0]], "2 and then 1 for class 4"


def test_what_is_owed_survives_in_the_state_of_the_client():
    first, second = (coded_border("int8", ways="up", error_feedback=True) for _ in range(2))
    arrived(first, some(), UP_IN)
    second.load_state(first.state())
    later = Passage("up", 0, 1)
    np.testing.assert_array_equal(
        arrived(first, some(1), later)["prototypes"], arrived(second, some(1), later)["prototypes"]
    )
    assert coded_border().state() == {} and not coded_border().has_memory


def test_an_upload_that_is_made_again_is_the_same_and_owes_the_same():
    """A client that is asked again makes its message again; what it lost must not be added twice."""
    border, undisturbed = (coded_border("topk:1", ways="up", error_feedback=True) for _ in range(2))
    for round in range(4):
        passage = Passage("up", 0, round)
        first, again = (bytes(border.outgoing(some(round), passage).frames[0]) for _ in range(2))
        assert first == again == bytes(undisturbed.outgoing(some(round), passage).frames[0])
    np.testing.assert_array_equal(border.state()["prototypes"], undisturbed.state()["prototypes"])


def test_an_array_that_no_frame_may_hold_is_refused_before_it_is_sent() -> None:
    parcel = pack(
        {"small": np.zeros(4, np.float32), "weights": np.zeros(1_200_000, np.uint8)},
        {"small": "p", "weights": "p"},
    )
    require_frames_fit(parcel, 2)
    with pytest.raises(
        UserError, match=r"the array weights has 2 MiB, more than cluster.max_frame_mib = 1; give 2"
    ):
        require_frames_fit(parcel, 1)


def test_an_array_that_is_decoded_to_more_than_a_frame_may_hold_is_refused_as_well() -> None:
    """The other side holds what is announced to the limit, however short the frame is."""
    parcel = pack({"weights": Coded("zstd", np.dtype("<f4"), (300_000,), b"short")}, {"weights": "p"})
    with pytest.raises(DecodeError, match="array 'weights': shape"):
        decode(encode(Setup(run="r"), parcel), Limits.of_frames(1))
    with pytest.raises(UserError, match=r"the array weights has 2 MiB, more than cluster.max_frame_mib = 1"):
        require_frames_fit(parcel, 1)
    require_frames_fit(parcel, 2)


def test_arrays_that_fit_one_by_one_must_fit_together() -> None:
    array = np.zeros(1000 * MEBIBYTE, np.uint8)  # never touched, so it takes no memory
    parcel = pack(dict.fromkeys("abc", array), dict.fromkeys("abc", "p"))
    said = "the 3 arrays of one message have 3001 MiB, more than 2048; give cluster.max_frame_mib = 1501 or more"
    with pytest.raises(UserError, match=said):
        require_frames_fit(parcel, 1024)
    require_frames_fit(parcel, 1501)
    assert len(decode(encode(Setup(run="r"), parcel), Limits.of_frames(1501)).arrays) == 3


@pytest.mark.parametrize(
    ("field", "array", "reason"),
    [
        (Field(Payload.PROTOTYPES, "n", "bool"), np.zeros(3, bool), "array 'x' has dtype bool; only f4, f8,"),
        (Field(Payload.PROTOTYPES, "1 1 1 1 1 1 1 1 1"), np.zeros((1,) * 9, np.float32), "array 'x' has 9 dimen"),
    ],
)
@pytest.mark.parametrize("passage", [UP_OUT, DOWN_OUT])
def test_what_a_contract_declares_and_the_wire_cannot_carry_is_named(passage, field, array, reason) -> None:
    border = Border(Contract(up={"x": field}, down={"x": field}), {})
    with pytest.raises(ContractError) as refusal:
        border.outgoing({"x": array}, passage)
    assert str(refusal.value).startswith(f"{passage}: {reason}")


def test_a_contract_of_more_arrays_than_a_message_may_have_is_named() -> None:
    names = [f"x{number}" for number in range(33)]
    border = Border(Contract(up=dict.fromkeys(names, Field(Payload.PARAMETERS, "n"))), {})
    with pytest.raises(ContractError, match=r"^client 0, round 0, up: 33 arrays in one message; at most 32"):
        border.outgoing(dict.fromkeys(names, np.zeros(2, np.float32)), UP_OUT)
