"""Named random streams: the same name gives the same numbers anywhere, another name other ones."""

import itertools

import numpy as np
import pytest
import torch

from fedsim.seeds import Streams

NAMES = list(itertools.product(["train", "train-order", "a/1"], [None, 0, 1, 11], [None, 0, 1, 11]))


def test_a_seed_is_the_hash_of_its_name():
    """Worked out with sha256sum: the first eight bytes of SHA-256 of `1/cohort/None/3`, lowest first, halved."""
    digest = bytes.fromhex("c0f4ceb53ead020d")
    assert Streams(1).seed("cohort", round=3) == int.from_bytes(digest, "little") // 2


def test_every_name_has_a_seed_of_its_own():
    seeds = {
        Streams(root).seed(purpose, client=client, round=round)
        for root in (0, 1, 2, 10)
        for purpose, client, round in NAMES
    }
    assert len(seeds) == 4 * len(NAMES)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_streams_are_equal_for_equal_names_and_need_no_memory():
    first = Streams(7).numpy("x", client=1, round=2).random(5)
    Streams(7).numpy("y").random(1000)
    np.testing.assert_array_equal(Streams(7).numpy("x", client=1, round=2).random(5), first)
    assert not np.array_equal(Streams(8).numpy("x", client=1, round=2).random(5), first)


def test_torch_generators_are_on_the_cpu_and_leave_the_global_one_alone():
    before = torch.random.get_rng_state()
    generator = Streams(1).torch("x")
    assert generator.device == torch.device("cpu")
    drawn = torch.rand(4, generator=generator)
    assert torch.equal(drawn, torch.rand(4, generator=Streams(1).torch("x")))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_seeded_draws_are_repeatable_and_invisible_outside():
    streams = Streams(5)
    torch.manual_seed(99)
    expected_outside = torch.rand(6)
    torch.manual_seed(99)
    outside = [torch.rand(2)]
    with streams.seeded("init", client=3):
        inside = torch.rand(3)
    outside.append(torch.rand(2))
    with streams.seeded("init", client=3):
        assert torch.equal(torch.rand(3), inside)
        with streams.seeded("dropout"):  # one inside the other
            torch.rand(7)
        continued = torch.rand(1)
    outside.append(torch.rand(2))
    assert torch.equal(torch.cat(outside), expected_outside)
    with streams.seeded("init", client=3):
        assert torch.equal(torch.rand(3), inside) and torch.equal(torch.rand(1), continued)


def test_seeded_gives_the_generator_back_after_an_error():
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    with pytest.raises(ZeroDivisionError), Streams(1).seeded("x"):
        torch.rand(10)
        raise ZeroDivisionError
    assert torch.equal(torch.rand(1), expected)
