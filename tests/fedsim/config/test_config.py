"""The experiment config: layers, --set, names and values that are wrong, and round trips."""

import copy
import math
import tomllib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim import config, methods
from fedsim.config import Experiment, build, from_json, parse_setting, read_toml, to_json, to_toml
from fedsim.errors import UnknownName, UserError


def refusal(*layers) -> str:
    """The one sentence that a user gets."""
    with pytest.raises(UserError) as error:
        build(layers)
    assert "\n" not in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------------------------------------------- layers


def test_nothing_given_is_fedtgp_on_digits():
    experiment = build([])
    assert (experiment.method_name, experiment.data.dataset, experiment.run.clients) == ("fedtgp", "digits", 10)
    assert build([{}, {"run": {}}]) == experiment


def test_later_layers_win_key_by_key():
    preset = {"run": {"clients": 20, "rounds": 100, "seed": 3}, "method": {"name": "fedproto"}}
    file = {"run": {"rounds": 50}, "train": {"lr": 0.5}}
    command_line = [{"run": {"rounds": 2}}, {"train": {"batch_size": 4}}]
    experiment = build([preset, file, *command_line])
    assert (experiment.run.clients, experiment.run.rounds, experiment.run.seed) == (20, 2, 3)
    assert (experiment.train.lr, experiment.train.batch_size) == (0.5, 4)
    assert experiment.method_name == "fedproto"


def test_layers_are_not_changed():
    first, second = {"run": {"clients": 2}}, {"run": {"clients": 3}, "method": {"tau": 5.0}}
    build([first, second])
    assert first == {"run": {"clients": 2}} and second == {"run": {"clients": 3}, "method": {"tau": 5.0}}


def test_every_option_of_the_method_is_written_out():
    experiment = build([{"method": {"name": "FedTGP", "tau": 7}}])
    names = {field.name for field in msgspec.structs.fields(methods.load("fedtgp").Config)}
    assert set(experiment.method) == {"name", *names}
    assert experiment.method["name"] == "fedtgp"  # as modules are called, however it was typed
    assert experiment.method["tau"] == 7.0
    assert experiment.method_config().tau == 7.0


@pytest.mark.parametrize("name", methods.names())
def test_the_defaults_of_every_method_are_an_experiment(name):
    experiment = build([{"method": {"name": name}}])
    assert from_json(to_json(experiment)) == experiment == build([tomllib.loads(to_toml(experiment))])


# ----------------------------------------------------------------------------------------------------- --set


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("train.lr=0.05", 0.05),
        ("train.lr = 1e-3 ", 1e-3),
        ("run.clients=1_000", 1000),
        ("train.shuffle=true", True),
        ("data.dataset=fmnist", "fmnist"),
        ('data.dataset="fmnist"', "fmnist"),
        ("data.data_dir=/a path/with=sign", "/a path/with=sign"),
        ("data.data_dir=", ""),
        ("method.classes=[1, 2]", [1, 2]),
    ],
)
def test_a_setting_is_toml_or_plain_text(text, value):
    section, key = text.split("=")[0].strip().split(".")
    assert parse_setting(text) == {section: {key: value}}


@pytest.mark.parametrize("text", ["", "lr", "lr=1", "train.lr", "train.=1", ".lr=1", "a.b.c=1", "=1"])
def test_a_setting_without_section_or_key_is_refused(text):
    with pytest.raises(UserError, match=r"--set wants section\.key=value"):
        parse_setting(text)


# ------------------------------------------------------------------------------------- wrong names and values


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        ({"trian": {"lr": 1}}, "there is no option 'trian'; did you mean train?"),
        ({"zzz": 1}, "there is no option 'zzz'; known: cluster, data, method, model, run, train, wire, world."),
        ({"train": {"larning_rate": 1}}, "there is no option 'train.larning_rate'; known: train.batch_size, "),
        ({"run": {"client": 1}}, "did you mean run.clients"),
        ({"method": {"tua": 1}}, "there is no option 'method.tua'; did you mean method.tau?"),
        ({"method": {"tao": 1}}, "there is no option 'method.tao'; did you mean method.tau?"),
        ({"method": {"name": "fedtpg"}}, "there is no method 'fedtpg'; did you mean fedtgp?"),
        ({"method": {"name": "fedpro"}}, "there is no method 'fedpro'; did you mean fedprox or fedproto?"),
        ({"data": {"partition": "diriclet"}}, "there is no data.partition 'diriclet'; did you mean dirichlet?"),
        (
            {"data": {"partition": "x"}},
            "there is no data.partition 'x'; known: dirichlet, iid, natural, pathological.",
        ),
        ({"method": {"distance": "cosine"}}, "there is no method.distance 'cosine'; known: l2, mse."),
    ],
)
def test_an_unknown_name_comes_with_the_nearest_ones(layer, sentence):
    with pytest.raises(UnknownName):
        build([layer])
    assert sentence in refusal(layer)


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        ({"run": {"clients": 0}}, "run.clients = 0 is not valid: expected int >= 1."),
        ({"run": {"clients": 2.5}}, "run.clients = 2.5 is not valid: expected int, got float."),
        ({"run": {"participation": 1.5}}, "run.participation = 1.5 is not valid: expected float <= 1.0."),
        ({"run": {"participation": 0}}, "run.participation = 0 is not valid: expected float > 0.0."),
        ({"run": {"seed": -1}}, "run.seed = -1 is not valid: expected int >= 0."),
        ({"train": {"lr": "fast"}}, "train.lr = 'fast' is not valid: expected float, got str."),
        ({"train": {"momentum": 1.0}}, "train.momentum = 1.0 is not valid: expected float < 1.0."),
        ({"train": {"shuffle": "yes"}}, "train.shuffle = 'yes' is not valid: expected bool, got str."),
        ({"data": {"train_fraction": 1}}, "data.train_fraction = 1 is not valid: expected float < 1.0."),
        ({"method": {"tau": -2}}, "method.tau = -2 is not valid: expected float > 0.0."),
        ({"run": 3}, "run = 3 is not valid: expected object, got int."),
        ({"method": "fedtgp"}, "method = 'fedtgp' is not valid: write a section with its name"),
        ({"method": {"name": 3}}, "method = {'name': 3} is not valid: write a section with its name"),
    ],
)
def test_a_wrong_value_is_named_with_its_limit(layer, sentence):
    assert sentence in refusal(layer)


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize(
    "option", ["train.lr", "cluster.deadline_seconds", "cluster.rejoin_seconds", "method.tau"]
)
def test_numbers_are_finite(option, value):
    """An experiment travels to clients as JSON, which has no other numbers."""
    section, key = option.split(".")
    assert f"{option} = {value} is not valid" in refusal({section: {key: value}})


def test_whole_numbers_are_numbers():
    assert build([{"train": {"lr": 1}}]).train.lr == 1.0


# ------------------------------------------------------------------------------------------------ round trips


def options_of(section: type) -> st.SearchStrategy:
    """Any valid values for some of a section's options, found from its types alone."""
    return st.fixed_dictionaries(
        {},
        optional={
            field.name: st.from_type(field.type)
            for field in msgspec.structs.fields(section)
            if field.type in (bool, str)
        },
    )


@given(
    run=st.fixed_dictionaries(
        {},
        optional={
            "clients": st.integers(1, 10**6),
            "seed": st.integers(0, 2**63),
            "participation": st.floats(1e-9, 1),
        },
    ),
    data=options_of(config.Data),
    model=options_of(config.Model),
    train=st.fixed_dictionaries({}, optional={"lr": st.floats(5e-324, 1e300), "momentum": st.floats(0, 0.999)}),
    tau=st.floats(1e-12, 1e12),
)
def test_toml_and_json_give_the_same_experiment_back(run, data, model, train, tau):
    """Down to the last bit of every number: a run must be repeatable from its config.toml."""
    sections = {"run": run, "data": data, "model": model, "train": train}
    experiment = build([sections | {"method": {"name": "fedtgp", "tau": tau}}])
    for name, values in sections.items():
        for key, value in values.items():
            assert getattr(getattr(experiment, name), key) == value
    assert build([tomllib.loads(to_toml(experiment))]) == experiment
    assert from_json(to_json(experiment)) == experiment


def test_an_experiment_is_complete_on_disk(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(to_toml(build([{"run": {"clients": 3}}])))
    layer = read_toml(path)
    assert set(layer) == {field.name for field in msgspec.structs.fields(Experiment)} - {"wire", "world"}  # none
    for section in ("run", "data", "model", "train", "cluster"):
        kind = type(getattr(build([]), section))
        assert set(layer[section]) == {field.name for field in msgspec.structs.fields(kind)}


def test_a_config_file_that_is_not_there_or_not_toml_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"^there is no config file .*missing\.toml\.$"):
        read_toml(tmp_path / "missing.toml")
    with pytest.raises(UserError, match=r"^the config file .* cannot be read: Is a directory\.$"):
        read_toml(tmp_path)
    for content in (b"[run\nclients = 3", b"clients 3", b"\xff\xfe"):
        broken = tmp_path / "broken.toml"
        broken.write_bytes(content)
        with pytest.raises(UserError, match="is not valid TOML"):
            read_toml(broken)


@pytest.mark.parametrize("name", ["fedprotokd", "fedpkd", "fed2pkd"])
def test_a_method_states_what_it_needs_of_other_sections(name):
    data = build([{"method": {"name": name}}]).data
    assert (data.public_samples, data.global_test) == (2500, True)
    assert (build([]).data.public_samples, build([]).data.global_test) == (0, False)


def test_whatever_the_user_says_lies_above_the_defaults_of_a_method():
    stated = copy.deepcopy(methods.load("fedprotokd").DEFAULTS)
    layers = [{"data": {"public_samples": 7, "beta": 0.5}}, {"method": {"name": "FedProtoKD"}}]
    data = build(layers).data
    assert (data.public_samples, data.global_test, data.beta) == (7, True, 0.5)
    assert stated == methods.load("fedprotokd").DEFAULTS
    # A complete file of another method says 0 public samples, and that is what is meant.
    file = tomllib.loads(to_toml(build([{"method": {"name": "fedtgp"}}])))
    assert build([file, {"method": {"name": "fedprotokd"}}]).data.public_samples == 0


def test_another_method_on_top_of_a_file_drops_the_options_of_the_first():
    file = {"method": {"name": "fedtgp", "tau": 7.0}}
    assert config.build([file, {"method": {"name": "local"}}]).method == {"name": "local"}
    assert config.build([file, {"method": {"name": "fedtgp"}}]).method["tau"] == 7.0


def test_rounds_that_are_evaluated():
    run = config.Run(rounds=7, evaluate_every=4)
    assert [round for round in range(8) if run.is_evaluated(round)] == [0, 4, 7]
