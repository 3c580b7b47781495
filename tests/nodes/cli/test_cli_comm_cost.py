"""`fedsim comm-cost`: what it refuses, before anything is started."""

import click
import pytest
from click.testing import CliRunner

from fedsim.errors import UserError
from nodes.cli.comm_cost import _layers, _parse_clients, _parse_methods, command


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--clients", "10,x"), "--clients wants a number, or several with commas such as 10,20,50, not '10,x'."),
        (("--clients", "0"), "--clients wants a number, or several with commas such as 10,20,50, not '0'."),
        (("--clients", ""), "--clients wants a number, or several with commas such as 10,20,50, not ''."),
        (("--link", "fast"), "--link wants the speed up and down in Mbit/s, such as 10/50, not 'fast'."),
        (("--methods", "fedtpg"), "there is no method 'fedtpg'; did you mean fedtgp?"),
        (("--set", "method.name=fedtgp"), "--set method.name has no place here; give --methods."),
        (("--set", "run.clients=50"), "--set run.clients has no place here; give --clients."),
        (("--set", "run.rounds=9"), "--set run.rounds has no place here; give --rounds."),
        (("--set", "data.dataset=mnist"), "--set data.dataset has no place here; give --dataset."),
        (("--set", "model.group=CNN"), "--set model.group has no place here; give --model-group."),
        *(
            (("--set", text), f"--set {text.partition('=')[0]} has no effect: it is fixed in a rehearsal")
            for text in ("run.participation=0.5", "run.evaluate_every=2", "cluster.quorum=0.5")
        ),
        (("--out", "/dev/null/cost"), "the folder /dev/null/cost cannot be made: /dev/null is no folder; choose"),
        (("--set", "seed=1"), "--set wants section.key=value, not 'seed=1'."),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        run(*arguments)
    assert str(caught.value).startswith(sentence[:-1])


@pytest.mark.parametrize("arguments", [("--rounds", "0"), ("--image-type", "jpeg"), ("--project", "0")])
def test_values_out_of_range_are_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(click.BadParameter):
        run(*arguments)


def test_numbers_of_clients_ascend() -> None:
    assert _parse_clients("50, 10,20,10") == [10, 20, 50]


def test_names_of_methods_are_spelled_as_people_do() -> None:
    assert _parse_methods("LG-FedAvg, fedtgp,FedTGP") == ["lg_fedavg", "fedtgp"]
    assert {"fedtgp", "local"} <= set(_parse_methods("all"))


def test_settings_of_methods_are_kept_apart() -> None:
    names = (
        "data_dir",
        "partition",
        "beta",
        "classes_per_client",
        "feature_dim",
        "batch_size",
        "seed",
    )
    options = {**dict.fromkeys(names), "beta": 0.5}
    layers, method_options = _layers(("method.tau=5", "data.min_samples=3", "method.name_=x"), options)
    assert method_options == {"tau": 5, "name_": "x"}
    assert {"data": {"beta": 0.5}} in layers and {"data": {"min_samples": 3}} in layers
