"""Rounds in which nobody's answer counts, as all who answered have dropped: every method goes on."""

import numpy as np
import pytest
from toys import Toy, assert_same

from fedsim import methods
from fedsim.method import Upload

NAMES = [name for name in methods.names() if name != "fedktl"]  # its toys are others: test_fedktl_server.py
OPTIONS = {
    "fedprotokd": {"server_model": "MLP", "server_epochs": 1, "prototype_epochs": 3},
    "fedpkd": {"server_model": "MLP", "server_epochs": 1},
    "fed2pkd": {"batch": 7, "server_model": "MLP", "server_epochs": 1},
    "fednh": {"scale": 10.0},
}
PUBLIC = ["fedmd", "fedprotokd", "fedpkd", "fed2pkd"]


@pytest.fixture
def played(toy, monkeypatch: pytest.MonkeyPatch):
    """`played("fedtgp")`: a federation after a round. It has more features than classes, for FedNH."""
    monkeypatch.setitem(toy.__globals__, "FEATURE_DIM", 6)

    def play(method: str) -> Toy:
        some = toy(method, **OPTIONS.get(method, {}))
        some.setup()
        some.play(1)
        return some

    return play


def nobody(some: Toy) -> list[Upload]:
    return [Upload(number, len(client.data.train), {}) for number, client in enumerate(some.clients)]


@pytest.mark.parametrize("method", NAMES)
def test_the_next_round_is_played_as_ever(played, method):
    some = played(method)
    step = some.server.aggregate(1, nobody(some))
    assert all(np.isfinite(array).all() for array in step.down.values())
    some.down = step.down
    some.steps.append(step)
    some.play(2)
    assert all(np.isfinite(array).all() for array in some.down.values())


@pytest.mark.parametrize("method", PUBLIC)
def test_nothing_is_learnt_of_public_samples(played, method):
    some = played(method)
    before = some.server.state()
    assert some.server.aggregate(1, nobody(some)).down == {}
    assert_same([some.server.state()], [before])


@pytest.mark.parametrize("method", ["fedmd", "fedprotokd"])
def test_no_accuracy_is_told_of_before_a_lesson_that_was_not_given(played, method):
    some = played(method)
    client = some.clients[0]
    client.receive(1, some.down)
    assert "trained_correct" in client.evaluate()
    client.receive(2, {})
    assert "trained_correct" not in client.evaluate()
