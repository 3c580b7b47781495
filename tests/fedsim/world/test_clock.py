"""The virtual clock: bytes over rates, delays, computing; the same on every machine."""

from typing import Any

import pytest

from fedsim import assembly, config
from fedsim.data import Federation
from fedsim.errors import UserError
from fedsim.models.flops import forward_flops
from fedsim.world import devices, work
from fedsim.world.clock import Air, Part, finish, on_own_devices
from fedsim.world.links import parse

SLOW = parse("up=1mbit down=8mbit delay=50ms")


def test_an_answer_is_there_after_the_way_down_the_work_and_the_way_up() -> None:
    air = Air([SLOW, None], seed=1)
    assert finish(Part(0, 1_000_000, 2.0, 125_000), air, 0) == pytest.approx(1.05 + 2.0 + 1.05)
    assert finish(Part(1, 1_000_000, 2.0, 125_000), air, 0) == 2.0, "without a link only the work takes time"


def test_a_round_is_as_long_as_its_slowest_client_and_the_servers_step() -> None:
    parts = {
        0: [Part(0, 0, 1.0, 125_000), Part(1, 0, 1.5, 0)],
        1: [Part(0, 1_000_000, 0.0, 0), Part(1, 2_000_000, 0.0, 0)],
    }
    first, second = on_own_devices(parts, {0: 0.5}, Air([SLOW, SLOW], seed=1))

    assert (first.begins, first.arrives) == (0, pytest.approx(0.05))
    assert first.seconds == pytest.approx(0.05 + 1.0 + 1.05 + 0.5)
    assert second.begins == first.ends and second.arrives == pytest.approx(first.ends + 2.05)


def test_jitter_is_drawn_by_the_seed_for_each_message() -> None:
    link = parse("up=1mbit down=1mbit delay=50ms jitter=20ms")
    seconds = {
        round: Air([link], seed=1).seconds(0, way, 0, round) for round in range(50) for way in ("up", "down")
    }
    assert all(0.03 <= found <= 0.07 for found in seconds.values()) and len(set(seconds.values())) == 50
    assert (
        seconds[7] == Air([link], seed=1).seconds(0, "down", 0, 7) != Air([link], seed=2).seconds(0, "down", 0, 7)
    )


def test_work_is_counted_with_all_that_a_method_does() -> None:
    layer = {"data": {"dataset": "digits"}, "run": {"clients": 3}, "model": {"group": "CNN2"}}
    flops = {}
    for method in ("local", "fedtgp", "fml"):
        experiment = config.build([layer, {"method": {"name": method}}])
        flops[method] = work.training_flops(experiment, Federation(experiment))
    sizes = [len(Federation(experiment).client(client).train) // 10 for client in range(3)]

    assert flops["local"][0] / sizes[0] == pytest.approx(flops["local"][1] / sizes[1])
    for plain, with_prototypes, with_second_model in zip(*flops.values(), strict=True):
        assert 1.2 * plain < with_prototypes < 1.5 * plain, "a forward pass more, beside one and its backward pass"
        assert with_second_model > 1.3 * plain


def flops_of(method: str, options: dict[str, Any] | None = None, **sections: Any) -> list[float]:
    """A round of three clients with digits and one small model for all."""
    layer = {"data": {"dataset": "digits"}, "run": {"clients": 3}, "model": {"group": "CNN2"}}
    experiment = config.build([layer, {"method": {"name": method, **(options or {})}}, sections])
    return work.training_flops(experiment, Federation(experiment))


@pytest.mark.parametrize("source", ["known", "sent"])
def test_each_public_sample_is_passed_once_a_round_however_many_own_ones_there_are(source: str) -> None:
    data = {"public_samples": 250, "global_test": True}  # so that both methods share the same samples out
    experiment = config.build([{"data": {"dataset": "digits", **data}, "model": {"group": "CNN2"}}])
    setting = assembly.setting_of(experiment, Federation(experiment))
    pass_of_all = 250 * forward_flops(setting.model(0), setting.task.input_shape)

    alone, agreeing = flops_of("local", data=data), flops_of("fedmd", {"public_data": source}, data=data)
    assert len(set(alone)) == 3, "clients of different sizes"
    assert agreeing == [own + pass_of_all for own in alone]


def test_clients_with_less_than_a_batch_work_where_they_train() -> None:
    """In batches of 1000, nobody has a whole one."""
    whole = flops_of("fedtgp", train={"batch_size": 1, "drop_last": False})
    assert flops_of("fedtgp", train={"batch_size": 1000, "drop_last": False}) == pytest.approx(whole)
    assert flops_of("fedtgp", train={"batch_size": 1000}) == [0.0] * 3


def test_rounds_of_a_warm_up_without_training_do_not_stand_for_all() -> None:
    """FedL2G's clients train on all but their quiz, and study one batch, a derivative of a derivative."""
    train = {"batch_size": 5}
    alone, guided = flops_of("local", train=train), flops_of("fedl2g", {"warm_up_rounds": 2}, train=train)
    study = {with_study - plain for plain, with_study in zip(alone, guided, strict=True)}
    assert len(study) == 1 and 0 < study.pop() < min(alone)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("phnoe", "there is no device 'phnoe'; did you mean phone"),
        ("gflops=0", "'gflops=0' in the device 'gflops=0' is nothing at all"),
        ("gflops=1gb", "'gflops=1gb' in the device 'gflops=1gb' is not understood: gflops is in a number alone."),
        ("memory=1gb", "the device 'memory=1gb' does not say gflops"),
    ],
)
def test_what_is_no_device_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        devices.parse(text)
    assert str(caught.value).startswith(sentence)


def test_a_device_is_written_in_words() -> None:
    assert devices.parse("gflops=2.5 memory=512mb") == devices.Device(2.5e9, 512e6)
    assert devices.parse("phone").flops_per_second == 10e9
