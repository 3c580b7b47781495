"""The letters that contracts may use for what every node of an experiment agrees on."""

import pytest

from fedsim.method import Task


@pytest.mark.parametrize(
    ("input_shape", "letters"),
    [
        ((3, 32, 28), {"ch": 3, "h": 32, "w": 28}),
        ((9, 128), {"ch": 9, "length": 128}),
        ((2,), {"dim": 2}),
        ((2, 3, 4, 5), {}),
    ],
)
def test_the_letters_of_an_input_are_those_of_an_image_a_signal_or_a_vector(input_shape, letters):
    assert Task(20, 10, 512, input_shape).dimensions == {"C": 10, "K": 512, "M": 20, **letters}
