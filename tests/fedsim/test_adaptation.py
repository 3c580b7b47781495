"""Defaults that do not fit are replaced, with a word; what was asked for never is."""

import numpy as np
import pytest

from fedsim import adaptation, assembly, config, methods
from fedsim.errors import UserError


@pytest.mark.parametrize("dataset", ["digits", "spiral"])
@pytest.mark.parametrize("method", methods.names())
def test_every_method_fits_every_kind_of_data_as_it_is(method: str, dataset: str) -> None:
    experiment, _ = adaptation.build([{"method": {"name": method}, "data": {"dataset": dataset}}])
    if (method, dataset) == ("fedktl", "spiral"):
        with pytest.raises(UserError, match="fedktl needs images"):
            assembly.check(experiment)
    else:
        assembly.check(experiment)


def test_what_is_replaced_is_said_with_the_reason() -> None:
    experiment, notes = adaptation.build([{"method": {"name": "fedprotokd"}}])
    assert notes == [
        "data.public_samples = 299 instead of 2500: digits has 1,498 training samples.",
        "train.local_epochs = 5 instead of 1: clients must know something to agree on it.",
        "method.server_model = CNN2 instead of ResNet34: digits is small.",
    ]
    assert experiment.data.public_samples == 299 and experiment.method["server_model"] == "CNN2"
    _, notes = adaptation.build([{"method": {"name": "fedavg"}}])
    assert notes == ["model.group = CNN1 instead of HtCNN8: FedAvg averages models, so all clients have the same."]


def test_the_usual_defaults_stay() -> None:
    assert adaptation.build([]) == (config.build([]), [])


def test_what_was_asked_for_is_not_touched() -> None:
    asked = {"method": {"name": "fedprotokd", "server_model": "ResNet34"}, "data": {"public_samples": 2500}}
    asked["train"] = {"local_epochs": 1}
    experiment, notes = adaptation.build([asked])
    assert (experiment, notes) == (config.build([asked]), [])
    with pytest.raises(UserError, match="public_samples = 2500 leaves nothing"):
        assembly.check(experiment)
    same, notes = adaptation.build([{"method": {"name": "fedavg"}, "model": {"group": "HtCNN8"}}])
    assert same.model.group == "HtCNN8" and notes == [], "also where it is what the default would have been"


def test_what_was_adapted_is_complete_and_adapts_no_further() -> None:
    experiment, _ = adaptation.build([{"method": {"name": "fedpkd"}}])
    assert adaptation.build([config.to_layer(experiment)]) == (experiment, [])


def test_a_table_as_small_as_iris_is_enough_for_methods_with_public_samples(tmp_path) -> None:
    random = np.random.default_rng(1)
    rows = [f"{a:.3f},{b:.3f},{n % 3}" for n, (a, b) in enumerate(random.normal(size=(150, 2)))]
    (tmp_path / "iris.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    for method in ("fedprotokd", "fedpkd", "fed2pkd"):
        layer = {"method": {"name": method}, "data": {"dataset": str(tmp_path / "iris.csv")}}
        experiment, notes = adaptation.build([layer, {"run": {"clients": 3}}])
        assembly.check(experiment)
        assert experiment.data.public_samples == 25 and "data.public_samples = 25 instead of 2500" in notes[1]


def test_a_ready_made_partition_decides_the_number_of_clients(tmp_path) -> None:
    for part, number in (("train", 8), ("test", 3)):
        (tmp_path / "made" / part).mkdir(parents=True)
        for client in range(2):
            arrays = {"x": np.zeros((number, 4), np.float32), "y": np.arange(number) % 2}
            np.savez(tmp_path / "made" / part / f"{client}.npz", data=arrays)
    (tmp_path / "made" / "config.json").write_text('{"num_clients": 2, "num_classes": 2}')
    experiment, notes = adaptation.build([{"data": {"dataset": str(tmp_path / "made")}}])
    assert experiment.run.clients == 2
    assert notes[0] == "run.clients = 2 instead of 10: made is shared out among so many."


def test_data_that_nobody_finds_are_the_business_of_whoever_needs_them() -> None:
    experiment, notes = adaptation.build([{"data": {"dataset": "./nowhere.npz"}}])
    assert notes == [] and experiment.model.group == "HtCNN8"
