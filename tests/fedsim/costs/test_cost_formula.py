"""Formulae are read as a paper prints them; what the letters stand for is counted on a partition by hand."""

import numpy as np
import pytest

from fedsim import assembly, config
from fedsim.costs import formula as costs


@pytest.mark.parametrize(
    ("formula", "expected"),
    [("0", 0), ("K*ΣC", 12), ("M*(K*C+C)", 2 * (3 * 5 + 5)), ("M*K-1", 5), ("M*C*(ch*h*w+2)", 2 * 5 * (48 + 2))],
)
def test_a_formula_is_arithmetic_over_letters(formula, expected):
    letters = {"M": 2, "C": 5, "K": 3, "ΣC": 4, "ch": 3, "h": 4, "w": 4}
    assert costs.evaluate(formula, letters) == expected


@pytest.mark.parametrize("formula", ["M/2", "f(M)", "M**2", "1.5*M", "[M]"])
def test_anything_else_is_no_formula(formula):
    with pytest.raises((ValueError, KeyError)):
        costs.evaluate(formula, {"M": 2})


def test_it_prints_as_in_a_paper():
    assert costs.pretty("M*C*(ch*h*w + H)") == "M·C·(ch·h·w + H)"
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
