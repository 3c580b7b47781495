"""Public samples on both sides of the wire, and what is refused before a run."""

import numpy as np
import pytest
import torch
from toys import toy_commons

from fedsim import assembly, config
from fedsim.contract import check as check_contract
from fedsim.data import Dataset, Federation, Subset
from fedsim.errors import UnknownName, UserError
from fedsim.families import public_samples
from fedsim.method import Task

IMAGES = np.random.default_rng(0).integers(0, 256, (9, 5, 4, 3), dtype=np.uint8)  # height 5, width 4, 3 channels
PICTURES = Subset(Dataset("images", IMAGES, np.arange(9), 10, 9), np.array([8, 1, 4]), labelled=False)
TASK = Task(num_clients=2, num_classes=10, feature_dim=4, input_shape=(3, 5, 4))


def inputs_of(subset: Subset) -> torch.Tensor:
    return torch.cat([inputs for inputs, _ in subset.batches(2)])


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_sent_samples_are_the_known_ones_to_the_bit(dtype):
    fields = public_samples.setup_fields("sent", dtype)
    arrays = public_samples.setup_arrays("sent", dtype, PICTURES)
    check_contract(arrays, fields, {"Np": 3, "inputs": 60}, "server")
    arrived = public_samples.received(arrays["public"], TASK)
    assert torch.equal(inputs_of(arrived), inputs_of(PICTURES))
    assert arrived.labels.tolist() == [-1, -1, -1]


def test_points_in_a_plane_can_be_sent_too():
    public = toy_commons().public
    arrays = public_samples.setup_arrays("sent", "float32", public)
    arrived = public_samples.received(arrays["public"], Task(4, 5, 4, (6,)))
    assert torch.equal(inputs_of(arrived), inputs_of(public))


def test_nothing_travels_for_samples_that_clients_know():
    assert public_samples.setup_fields("known", "float32") == {}
    assert public_samples.setup_arrays("known", "float32", PICTURES) == {}


# ------------------------------------------------------------------------------------------- what is refused


def experiment(**sections):
    base = {
        "data": {"public_samples": 100},
        "model": {"group": "MLP", "feature_dim": 16},
        "run": {"clients": 2},
        "method": {"name": "fedprotokd", "server_model": "MLP"},
    }
    return config.build([base, sections])


def refusal(**sections) -> str:
    with pytest.raises(UserError) as error:
        assembly.check(experiment(**sections))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("method", ["fedprotokd", "fedpkd", "fed2pkd"])
def test_no_public_samples_at_all(method):
    sentence = refusal(method={"name": method}, data={"public_samples": 0})
    assert sentence == (
        f"{method} needs public samples, and data.public_samples = 0; set it, to 2500 as published."
    )


def test_more_public_samples_than_there_are():
    sentence = refusal(data={"public_samples": 2500})  # the default, which the digits do not have
    assert sentence == (
        "data.public_samples = 2500 leaves nothing of the 1498 training samples of digits; ask for fewer, as in "
        "--set data.public_samples=299."
    )


def test_features_of_other_sizes_need_a_projection():
    group = {"group": "ResNet4,ResNet6", "feature_dim": 64}  # 64 and 128 features
    data = {"dataset": "digits", "public_samples": 100}
    assert refusal(model=group, data=data) == (
        "ResNet6 has 128 features and fedprotokd compares 64; set model.feature_mapping = project, or "
        "model.feature_dim to the size that all models have."
    )
    assembly.check(experiment(model=group | {"feature_mapping": "project"}, data=data))
    assembly.check(experiment(model={"group": "ResNet4", "feature_dim": 64}, data=data))


def test_the_server_s_model_needs_a_projection_too():
    sections = {
        "model": {"group": "ResNet4", "feature_dim": 64, "feature_mapping": "pool"},
        "method": {"server_model": "ResNet6"},
    }
    assert refusal(**sections).startswith("ResNet6 has 128 features and fedprotokd compares 64; set")


def test_the_server_has_one_model():
    assert refusal(method={"server_model": "ResNet4,ResNet6"}) == (
        "method.server_model = ResNet4,ResNet6 is 2 models; give one, as in ResNet34."
    )


@pytest.mark.parametrize(
    ("num_public", "method"), [(1, {"name": "fedprotokd"}), (2, {"name": "fedpkd", "theta": 0.5})]
)
def test_one_sample_alone_teaches_nothing(num_public, method):
    assert refusal(data={"public_samples": num_public}, method=method) == (
        f"{method['name']} would learn from 1 public sample; raise data.public_samples to 2 or more."
    )


def test_public_samples_that_leave_a_client_nothing_are_named():
    sentence = refusal(data={"public_samples": 1497})
    assert sentence.startswith("client 0 gets 0 of 1 samples that 1497 public ones leave, too few for a training")
    assert "lower data.public_samples" in sentence


def test_a_server_model_that_does_not_exist():
    with pytest.raises(UnknownName, match="there is no model group 'ResNet35'; did you mean ResNet"):
        assembly.check(experiment(method={"server_model": "ResNet35"}))


def test_bytes_are_for_images_only():
    spiral = {"dataset": "spiral", "public_samples": 20}
    options = {"public_data": "sent", "public_dtype": "uint8"}
    assert refusal(data=spiral, method=options) == (
        "method.public_dtype = uint8 does not fit samples of spiral, which are 2 numbers; use float32."
    )


def test_a_batch_of_fed2pkd_larger_than_the_public_set():
    sentence = refusal(method={"name": "fed2pkd", "batch": 101})
    assert sentence == "method.batch = 101 is more than data.public_samples = 100; lower it."


def test_sizes_are_those_of_the_experiment():
    chosen = experiment()
    setting = assembly.setting_of(chosen, Federation(chosen))
    assert public_samples.sizes(setting) == {"Np": 100, "inputs": 28 * 28}
