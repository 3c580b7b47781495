"""Nothing passes the border that the contract does not declare; what passes is copied on the way in only."""

import numpy as np
import pytest

from fedsim.contract import Contract, Field, Payload, class_ids
from fedsim.errors import ContractError
from nodes.border import Border, where
from protocol.codec import decode, encode
from protocol.messages import Setup

UP = {"prototypes": Field(Payload.PROTOTYPES, "n K"), "class_ids": class_ids("n")}
DOWN = {"prototypes": Field(Payload.PROTOTYPES, "C K")}


@pytest.fixture
def border() -> Border:
    return Border(Contract(up=UP, down=DOWN), {"C": 5, "K": 3})


def upload(rows: int = 2) -> dict[str, np.ndarray]:
    values = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    return {"prototypes": values, "class_ids": np.arange(rows, dtype=np.int32)}


def test_what_goes_out_comes_in_with_the_same_bits(border):
    parcel = border.outgoing(upload(), UP, "out")
    decoded = decode(encode(Setup(run="r"), parcel))
    assert [(spec.name, spec.payload, spec.dtype, spec.shape) for spec in decoded.specs] == [
        ("prototypes", "prototypes", "f4", (2, 3)),
        ("class_ids", "index", "i4", (2,)),
    ]
    arrays = border.incoming(decoded.arrays, UP, "in")
    for name, array in upload().items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def test_arrays_travel_in_the_contract_s_order(border):
    shuffled = dict(reversed(upload().items()))
    assert [spec.name for spec in border.outgoing(shuffled, UP, "out").specs] == ["prototypes", "class_ids"]


def test_outgoing_shares_memory_and_incoming_copies(border):
    arrays = upload()
    parcel = border.outgoing(arrays, UP, "out")
    assert np.shares_memory(np.frombuffer(parcel.frames[0], np.float32), arrays["prototypes"])
    views = decode(encode(Setup(run="r"), parcel)).arrays
    assert not views["prototypes"].flags.writeable
    kept = border.incoming(views, UP, "in")
    kept["prototypes"][:] = -1.0  # a method may change what it is given
    np.testing.assert_array_equal(arrays["prototypes"], upload()["prototypes"])


def test_incoming_copies_in_process_too(border):
    """Without a wire between them the server's array must not become the client's."""
    down = {"prototypes": np.zeros((5, 3), np.float32)}
    first, second = (border.incoming(down, DOWN, "in")["prototypes"] for _ in range(2))
    first[0] = 1.0
    assert not down["prototypes"].any() and not second.any()


def test_nothing_may_travel_before_the_first_aggregation(border):
    parcel = border.outgoing({}, DOWN, "out")
    assert parcel.specs == () and parcel.frames == ()
    assert border.incoming({}, DOWN, "in") == {}


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
        getattr(border, direction)(upload() | change, UP, where(7, 12, "up"))
    assert str(refusal.value).startswith("client 7, round 12, up: ")
    assert reason in str(refusal.value)


def test_a_field_of_the_other_direction_is_refused(border):
    with pytest.raises(ContractError, match="field 'class_ids' is not in the contract \\(declared: prototypes\\)"):
        border.incoming(upload(5), DOWN, "client 0")
