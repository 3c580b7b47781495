"""Formulae follow from contracts and print as in a paper; their letters are counted on a partition by hand."""

import numpy as np
import pytest

from fedsim import assembly, config
from fedsim.contract import Contract, Field, Payload, class_ids
from fedsim.costs import formula as costs


def contract(way: str, *shapes: str, index: str = "n") -> Contract:
    fields = {str(place): Field(Payload.PROTOTYPES, shape) for place, shape in enumerate(shapes)}
    return Contract(**{way: {**fields, "ids": class_ids(index)}})


@pytest.mark.parametrize(
    ("way", "shapes", "expected"),
    [
        ("up", [], "0"),
        ("up", [""], "M"),
        ("up", ["K"], "M*K"),
        ("up", ["n K"], "K*ΣC"),
        ("up", ["n K", "n", "n"], "(K+2)*ΣC"),
        ("up", ["n K", "n K"], "2*K*ΣC"),
        ("up", ["n K", "head", "n"], "M*head+(K+1)*ΣC"),
        ("up", ["n 500", "7 2"], "M*7*2+500*ΣC"),
        ("up", ["K", "K", "C K"], "M*K*(2+C)"),
        ("setup_up", ["n"], "ΣC"),
        ("down", ["n K"], "M*K*U"),
        ("down", ["n C", "C"], "M*C*(U+1)"),
        ("down", ["C ch h w", "C H"], "M*C*(ch*h*w+H)"),
        ("down", ["a K", "a C", "b C"], "M*(a*(K+C)+b*C)"),
        ("setup_down", ["n K", "f", "f"], "M*(K*U+2*f)"),
    ],
)
def test_a_contract_comes_to_a_formula(way, shapes, expected):
    """Indices cost nothing, rows of classes are counted where they are held, the rest is for each client."""
    found = costs.formulae(contract(way, *shapes))
    assert str(found.pop(way)) == expected
    assert {str(formula) for formula in found.values()} == {"0"}


def test_a_formula_is_arithmetic_over_its_letters():
    formula = costs.formulae(contract("up", "n K", "n", "head 2", ""))["up"]
    assert str(formula) == "M*(head*2+1)+(K+1)*ΣC"
    assert formula.letters == ["K", "ΣC", "M", "head"]
    assert formula.evaluate({"M": 2, "K": 3, "ΣC": 5, "head": 7}) == 2 * (7 * 2 + 1) + (3 + 1) * 5


def test_it_prints_as_in_a_paper():
    assert costs.pretty("M*C*(ch*h*w+H)") == "M·C·(ch·h·w + H)"
    assert costs.pretty("K*ΣC") == "K·ΣCᵢ"


def setting(**train):
    experiment = config.build(
        [
            {
                "run": {"clients": 4},
                "data": {"dataset": "digits", "partition": "pathological", "classes_per_client": 2},
                "train": {"batch_size": 10, **train},
            }
        ]
    )
    return assembly.setting_of(experiment, assembly.check(experiment))


def test_letters_count_the_classes_of_the_training_parts():
    held = [np.unique(setting().federation.client(client).train.labels) for client in range(4)]
    letters = costs.letters_of(setting(drop_last=False))
    assert letters["ΣC"] == sum(len(classes) for classes in held)
    assert letters["U"] == len(np.unique(np.concatenate(held)))
    assert (letters["M"], letters["C"], letters["K"]) == (4, 10, 512)


def test_a_class_that_only_the_dropped_batch_holds_is_not_counted():
    """A client that cannot fill one batch trains on nothing, so it holds no class."""
    client_sizes = [len(setting().federation.client(client).train) for client in range(4)]
    letters = costs.letters_of(setting(batch_size=max(client_sizes) + 1))
    assert letters["ΣC"] == letters["U"] == 0


def test_bytes_follow_from_shapes_and_encodings():
    """K = 8: a row of prototypes is eight numbers, what they are scaled by, and the number of the class."""
    layer = {
        "run": {"clients": 2},
        "data": {"dataset": "digits", "partition": "iid", "samples_per_class": 20},
        "model": {"feature_dim": 8},
    }
    experiment = config.build([layer, {"method": {"name": "fedproto"}, "wire": {"prototypes": "int8"}}])
    setting = assembly.setting_of(experiment, assembly.check(experiment))
    held = [len(costs.classes_covered(setting, client)) for client in range(2)]
    anyone = costs.letters_of(setting)["U"]
    own = assembly.contract_of(experiment)
    found = costs.payload_bytes(setting, own, assembly.encodings_of(experiment))
    row = 8 + 4 + 4
    assert found == {"up": sum(held) * row, "down": 2 * anyone * row, "setup_up": 0, "setup_down": 0}
    plain = config.build([layer, {"method": {"name": "fedproto"}}])
    assert costs.payload_bytes(setting, own, assembly.encodings_of(plain))["up"] == sum(held) * (4 * 8 + 4)
