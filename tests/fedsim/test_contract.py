"""What a contract allows, letter by letter."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim import methods
from fedsim.config import build
from fedsim.contract import Contract, Field, Payload, check, class_ids
from fedsim.errors import ContractError
from protocol.ledger import UNCOUNTED

SIZES = {"C": 10, "K": 4, "M": 3, "ch": 1, "h": 8, "w": 8}
FIELDS = {
    "prototypes": Field(Payload.PROTOTYPES, "n K"),
    "class_ids": class_ids("n"),
    "scale": Field(Payload.MARGINS, ""),
}


def arrays(rows: int = 3, **changes: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "prototypes": np.ones((rows, 4), np.float32),
        "class_ids": np.arange(rows, dtype=np.int32),
        "scale": np.float32(2.0),
    } | changes


def reason(given_arrays, fields=FIELDS) -> str:
    with pytest.raises(ContractError) as error:
        check(given_arrays, fields, SIZES, "client 3, round 7, up")
    assert str(error.value).startswith("client 3, round 7, up: ")
    return str(error.value).removeprefix("client 3, round 7, up: ")


def passes(given_arrays, fields) -> bool:
    try:
        check(given_arrays, fields, SIZES, "here")
    except ContractError:
        return False
    return True


def test_what_was_declared_passes():
    assert passes(arrays(), FIELDS)
    assert passes(arrays(0), FIELDS)  # a client may hold no class
    assert passes({}, FIELDS)  # all arrays or none
    assert passes({}, {})
    assert not passes(arrays(), {})


def test_the_sizes_of_the_experiment_are_not_changed():
    sizes = dict(SIZES)
    check(arrays(), FIELDS, sizes, "here")
    assert sizes == SIZES  # n is free again in the next message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"weights": np.ones(3, np.float32)},
            "field 'weights' is not in the contract (declared: class_ids, prototypes, scale)",
        ),
        ({"prototypes": np.ones((3, 4))}, "field 'prototypes' has dtype float64, declared float32"),
        ({"class_ids": np.arange(3)}, "field 'class_ids' has dtype int64, declared int32"),
        (
            {"prototypes": np.ones((3, 5), np.float32)},
            "field 'prototypes' has shape (3, 5), declared (n K) with K = 4",
        ),
        (
            {"class_ids": np.arange(2, dtype=np.int32)},
            "field 'class_ids' has shape (2,), declared (n) with n = 3",
        ),
        (
            {"prototypes": np.ones(12, np.float32)},
            "field 'prototypes' has 1 dimensions, declared 2 (n K)",
        ),
        ({"scale": np.ones(1, np.float32)}, "field 'scale' has 1 dimensions, declared 0 ()"),
    ],
)
def test_anything_else_is_refused_by_name(change, expected):
    assert reason(arrays(**change)) == expected


def test_part_of_a_message_is_refused():
    some = arrays()
    del some["class_ids"]
    assert reason(some) == "field 'class_ids' is declared but missing"


def test_a_contract_without_fields_allows_nothing():
    assert reason({"x": np.ones(1)}, {}) == "field 'x' is not in the contract (declared: nothing)"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_must_be_finite(value):
    prototypes = np.ones((3, 4), np.float32)
    prototypes[0, 1] = prototypes[2, 3] = value
    assert reason(arrays(prototypes=prototypes)) == "field 'prototypes' holds 2 non-finite values of 12"


def test_big_endian_is_another_dtype():
    swapped = np.ones((3, 4), np.dtype("float32").newbyteorder())
    assert "has dtype >f4" in reason(arrays(prototypes=swapped))


def test_numbers_in_a_shape_are_themselves():
    fields = {"pixels": Field(Payload.IMAGES, "n 3 h w", "uint8")}
    check({"pixels": np.zeros((5, 3, 8, 8), np.uint8)}, fields, SIZES, "here")
    wrong = {"pixels": np.zeros((5, 1, 8, 8), np.uint8)}
    assert reason(wrong, fields) == "field 'pixels' has shape (5, 1, 8, 8), declared (n 3 h w)"


@given(shape=st.lists(st.integers(0, 4), max_size=4), words=st.lists(st.sampled_from("abCK2"), max_size=4))
def test_a_letter_means_one_number(shape, words):
    """Independent formulation: some assignment of numbers to free letters explains the shape."""
    field = Field(Payload.LOGITS, " ".join(words))
    fixed = {"C": 3, "K": 1, "2": 2}
    meanings = {word: {size for other, size in zip(words, shape, strict=False) if other == word} for word in words}
    fits = len(words) == len(shape) and all(
        sizes == ({fixed[word]} if word in fixed else sizes) and len(sizes) == 1
        for word, sizes in meanings.items()
    )
    letters = {"C": 3, "K": 1}
    wrong = field.bind(tuple(shape), letters)
    assert (wrong is None) == fits
    if fits:
        assert letters == {"C": 3, "K": 1} | {
            word: size for word, size in zip(words, shape, strict=True) if word in "ab"
        }


def test_indices_are_no_knowledge():
    """The ledger, which knows no methods, counts the same kinds as formulae do."""
    assert {kind for kind in Payload if not kind.is_knowledge} == UNCOUNTED & set(Payload) == {Payload.INDEX}


def test_a_contract_names_every_kind_that_may_travel():
    contract = Contract(
        up={"p": Field(Payload.PROTOTYPES, "n K"), "i": class_ids()},
        down={"l": Field(Payload.LOGITS, "C")},
        setup_up={"c": Field(Payload.COUNTS, "C", "int32")},
        setup_down={"z": Field(Payload.IMAGES, "n ch h w", "uint8")},
    )
    assert contract.payloads() == {
        Payload.PROTOTYPES,
        Payload.INDEX,
        Payload.LOGITS,
        Payload.COUNTS,
        Payload.IMAGES,
    }
    assert Contract().payloads() == set()


@pytest.mark.parametrize("name", methods.names())
def test_every_method_declares_types_that_exist_and_shapes_that_can_be_read(name):
    module = methods.load(name)
    contract = module.contract(build([{"method": {"name": name}}]).method_config())
    assert isinstance(contract, Contract)
    for fields in (contract.up, contract.down, contract.setup_up, contract.setup_down):
        for field in fields.values():
            assert np.dtype(field.dtype).name == field.dtype
            assert all(word.isdigit() or word.isidentifier() for word in field.shape.split())
