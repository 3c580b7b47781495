"""A rehearsal sends arrays of the shapes that the contract names, and builds no model."""

import numpy as np
import pytest

from fedsim import assembly, config, contract, models
from fedsim.contract import Contract, Field, Payload, class_ids
from fedsim.costs import rehearsal
from fedsim.errors import UserError
from fedsim.methods import fedtgp


def make(method="fedtgp", **options):
    return config.build(
        [
            {
                "run": {"clients": 3, "rehearsal": True},
                "data": {
                    "dataset": "digits",
                    "samples_per_class": 12,
                    "partition": "pathological",
                    "classes_per_client": 2,
                },
                "model": {"group": "HtCNN8", "feature_dim": 16},
                "train": {"batch_size": 4},
                "method": {"name": method, **options},
            }
        ]
    )


def held(experiment, client):
    """With drop_last an epoch covers whole batches only."""
    labels = rehearsal.federation_of(experiment).client(client).train.labels
    return sorted(set(labels[: len(labels) // 4 * 4].tolist()))


@pytest.fixture
def no_models(monkeypatch):
    """Building a model is an error from here on."""

    def build(*_):
        raise AssertionError("a rehearsal needs no models")

    monkeypatch.setattr(models, "build", build)


def test_a_client_sends_a_row_for_each_class_it_holds(no_models):
    experiment = make("fedtgp")
    for client in range(3):
        half = assembly.make_client(experiment, None, client)
        arrays = half.upload()
        classes = held(experiment, client)
        assert 1 <= len(classes) < 10
        assert arrays["prototypes"].shape == (len(classes), 16) and arrays["prototypes"].dtype == np.float32
        assert arrays["class_ids"].tolist() == classes and arrays["class_ids"].dtype == np.int32
        assert half.train(0) == {"loss": 0.0} and half.evaluate() == {"correct": 0, "tested": 0}
        assert half.setup() == {} and half.state() == {}


def test_a_server_sends_what_all_clients_together_hold(no_models):
    union = sorted({label for client in range(3) for label in held(make(), client)})
    assert len(union) < 10
    down = assembly.make_server(make("fedproto"), None).aggregate(0, []).down
    assert down["class_ids"].tolist() == union
    assert down["prototypes"].shape == (len(union), 16)
    down = assembly.make_server(make("fedtgp"), None).aggregate(0, []).down
    assert down["prototypes"].shape == (10, 16)


def test_what_it_sends_passes_the_border():
    experiment = make("fedproto", aggregation="weighted", report_margins=True)
    declared = assembly.contract_of(experiment)
    setting = assembly.setting_of(experiment, rehearsal.federation_of(experiment))
    up = assembly.make_client(experiment, None, 1).upload()
    contract.check(up, declared.up, setting.dimensions, "up")
    contract.check(assembly.make_server(experiment, None).aggregate(0, []).down, declared.down, {}, "down")
    assert set(up) == {"prototypes", "class_ids", "counts", "margins"}


def test_sizes_of_a_method_numbers_and_set_up_are_known(monkeypatch):
    """Letters of `sizes` and `rehearsal_sizes`, literal numbers, rows that are no classes, and the set-up."""
    fields = {
        "weights": Field(Payload.PARAMETERS, "head"),
        "factors": Field(Payload.PARAMETERS, "f 2", "float64"),
        "rows": Field(Payload.INDEX, "f", "int64"),
        "labels": class_ids(),
    }
    monkeypatch.setattr(fedtgp, "contract", lambda _: Contract(up=fields, setup_up=fields, setup_down=fields))
    monkeypatch.setattr(fedtgp, "sizes", lambda _: {"head": 7}, raising=False)
    monkeypatch.setattr(fedtgp, "rehearsal_sizes", lambda _: {"f": 3}, raising=False)
    experiment = make("fedtgp", tau=99.0)
    client = assembly.make_client(experiment, None, 0)
    for arrays in (client.setup(), client.upload(), assembly.make_server(experiment, None).setup([])):
        assert arrays["weights"].shape == (7,)
        assert arrays["factors"].shape == (3, 2) and arrays["factors"].dtype == np.float64
        assert arrays["rows"].tolist() == [0, 1, 2] and arrays["rows"].dtype == np.int64
    assert client.setup()["labels"].tolist() == held(experiment, 0)


def test_a_size_that_nobody_knows_is_named(monkeypatch):
    fields = {"pairs": Field(Payload.LATENTS, "n H")}
    monkeypatch.setattr(fedtgp, "contract", lambda _: Contract(up=fields))
    with pytest.raises(
        UserError, match=r"size 'H' of its field 'pairs' is not known; give it in `rehearsal_sizes`"
    ):
        assembly.make_client(make("fedtgp", tau=98.0), None, 0).upload()


def test_methods_on_the_same_data_share_one_partition():
    assert rehearsal.federation_of(make("fedtgp")) is rehearsal.federation_of(make("local"))
    other = config.build([{"run": {"clients": 4, "rehearsal": True}}])
    assert rehearsal.federation_of(make("fedtgp")) is not rehearsal.federation_of(other)
