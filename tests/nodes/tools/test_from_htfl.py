"""HtFLlib's command lines: every algorithm becomes an experiment that can be built, and nothing is left unsaid."""

import shlex

import pytest
from click.testing import CliRunner

from fedsim.config import Experiment
from fedsim.errors import FedsimError
from nodes.cli import fedsim
from nodes.cli._experiment import build_experiment
from nodes.cli.from_htfl import command
from nodes.cli.sweep import SEED_OPTIONS
from nodes.cli.sweep import command as sweep
from nodes.tools.batch import refuse_seed_setting
from nodes.tools.from_htfl import ALGORITHMS, EVERYWHERE, FAMILIES, FLAGS, INSTEAD, SETTINGS, translate


def experiment_of(text: str) -> Experiment:
    """What `fedsim run` would make of the translated command."""
    words = translate(text).command[2:]
    pairs = list(zip(words[::2], words[1::2], strict=True))
    settings = tuple(value for name, value in pairs if name == "--set")
    short = {name[2:].replace("-", "_"): value for name, value in pairs if name != "--set"}
    numbers = {
        name: float(value) if "." in value else int(value) for name, value in short.items() if value[0].isdigit()
    }
    return build_experiment(settings=settings, **(short | numbers))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_becomes_an_experiment(algorithm: str) -> None:
    made = experiment_of(f"-algo {algorithm} -m HtFE-img-2 -data Cifar10 -nc 20 -gr 100")

    assert made.method_name == ALGORITHMS[algorithm].method
    assert (made.data.dataset, made.model.group) == ("cifar10", "HtFE2")
    assert (made.run.clients, made.run.rounds, made.train.batch_size) == (20, 100, 10)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_of_models_is_one_of_ours(family: str) -> None:
    assert experiment_of(f"-algo Local -m {family}").model.group == FAMILIES[family]


def test_values_that_were_not_given_are_those_of_the_other_library() -> None:
    assert experiment_of("-algo FedProto -m HtFE-img-2").method["prototype_weight"] == 1.0
    assert experiment_of("-algo FedProto -m HtFE-img-2 -lam 10").method["prototype_weight"] == 10.0


def test_several_times_are_a_sweep_over_seeds_of_one_partition() -> None:
    words = shlex.split(str(translate("-algo FD -m HtFE-img-2 -t 3")))

    assert words[:2] == ["fedsim", "sweep"]
    given = sweep.make_context("sweep", words[2:]).params
    assert (given["method"], given["seeds"], given["data_seeds"]) == ("feddistill", "1,2,3", "1")
    refuse_seed_setting(given["settings"], SEED_OPTIONS)


def test_what_has_no_counterpart_is_named_with_what_to_do() -> None:
    notes = translate("python main.py -algo FedTGP -m HtFE-img-2 -ab True -did 1 -mu 50").notes

    assert any(note.startswith("-ab True has no counterpart: a run plays all its rounds") for note in notes)
    assert any("CUDA_VISIBLE_DEVICES=1" in note for note in notes)
    assert any(note.startswith("-mu 50") and "does not read it" in note for note in notes)


def test_every_flag_is_used_or_explained() -> None:
    used = {*EVERYWHERE, *SETTINGS, *INSTEAD, "algorithm", "dataset", "model_family", "times", "goal", "device"}
    used |= {"device_id", *(name for algorithm in ALGORITHMS.values() for name in algorithm.options)}

    assert {flag.long for flag in FLAGS} == used


def test_settings_are_written_where_they_say_something() -> None:
    made = experiment_of("-algo FedProto -m HtFE-img-2 -fs 3 -cdr 0.2 -eg 5")

    assert (made.data.few_shot, made.run.drop_rate, made.run.evaluate_every) == (3, 0.2, 5)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("-algo FedFoo", "FedFoo"),
        ("-algo FedTGP -m Nets", "Nets"),
        ("-algo FedTGP -data Sogou", "Sogou"),
        ("-xyz 3", "has no flag '-xyz'"),
        ("-algo FedTGP -nc", "-nc has no value"),
        ("-algo FedTGP -t many", "'many' is not a whole number"),
    ],
)
def test_bad_input_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(FedsimError, match=sentence):
        translate(text)


def test_an_h_in_a_quoted_command_line_does_not_ask_for_help() -> None:
    result = CliRunner().invoke(fedsim, ["from-htfl", "-algo FedTGP -m HtFE-img-2 -data FashionMNIST"])
    assert result.stdout.startswith("fedsim run --method fedtgp") and "--dataset fmnist" in result.stdout


def test_the_command_alone_is_on_standard_output() -> None:
    result = CliRunner().invoke(command, ["-algo", "FedTGP", "-m", "HtFE-img-2"])

    assert result.stdout.count("\n") == 1 and result.stdout.startswith("fedsim run --method fedtgp")
    assert "before training" in result.stderr
