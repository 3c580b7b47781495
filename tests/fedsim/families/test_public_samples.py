"""Public samples on both sides of the wire, what is refused before a run, and the server's model."""

import numpy as np
import pytest
import torch
from toys import CPU, toy_commons

from fedsim import assembly, config
from fedsim.contract import check as check_contract
from fedsim.data import Dataset, Federation, Subset
from fedsim.errors import UnknownName, UserError
from fedsim.families import public_samples
from fedsim.families.public_samples import ServerModel, ServerTraining
from fedsim.method import ServerContext, Task
from fedsim.seeds import Streams

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
        "method.public_dtype = uint8 needs images, and samples of spiral are other numbers; use float32."
    )


def test_a_batch_of_fed2pkd_larger_than_the_public_set():
    sentence = refusal(method={"name": "fed2pkd", "batch": 101})
    assert sentence == "method.batch = 101 is more than data.public_samples = 100; lower it."


def test_sizes_are_those_of_the_experiment():
    chosen = experiment()
    setting = assembly.setting_of(chosen, Federation(chosen))
    assert public_samples.sizes(setting) == {"Np": 100, "inputs": 28 * 28}


# ---------------------------------------------------------------------------------------- the server's model


def server_model(optimizer="sgd", **run) -> ServerModel:
    chosen = experiment(run=run, model={"feature_dim": 4})
    context = ServerContext(chosen, chosen.method_config(), Task(4, 5, 4, (6,)), toy_commons(), Streams(1), CPU)
    return ServerModel(context, "MLP", ServerTraining(epochs=2, batch_size=8, lr=0.1, optimizer=optimizer))


def test_it_learns_from_the_chosen_rows_only():
    pupil, seen = server_model(), []
    before = pupil.features_and_logits()[1]

    def loss(logits_BC, features_BK, rows_B):
        assert features_BK.shape == (len(rows_B), 4)
        seen.append(rows_B)
        return logits_BC.square().mean()

    mean_loss = pupil.learn(0, loss, torch.tensor([1, 3, 4, 7, 9, 11, 12, 15, 18]))
    # Two epochs of nine samples in batches of eight: a trailing batch of one is left out.
    assert [len(rows) for rows in seen] == [8, 8]
    assert set(torch.cat(seen).tolist()) <= {1, 3, 4, 7, 9, 11, 12, 15, 18}
    assert mean_loss > 0 and not torch.equal(pupil.features_and_logits()[1], before)


def test_rows_belong_to_the_inputs_of_their_batch():
    """The row numbers that the loss is given are those of the samples whose logits it is given."""
    pupil = server_model()
    rows_k = torch.tensor([2, 3, 5, 8, 13, 19])
    for parameter in pupil.model.parameters():
        parameter.requires_grad_(True)
    expected = pupil.features()

    def loss(logits_BC, features_BK, rows_B):
        if len(checked) == 0:  # before the first step the model is as it was
            torch.testing.assert_close(features_BK, expected[rows_B])
        checked.append(rows_B)
        return logits_BC.square().mean()

    checked: list[torch.Tensor] = []
    pupil.learn(0, loss, rows_k)
    assert len(checked[0]) == 6


def test_it_is_tested_on_the_global_test_set_when_clients_are():
    pupil = server_model(evaluate_every=3, rounds=5)
    test = toy_commons().global_test
    right = pupil.model(inputs_of(test)).argmax(dim=1).numpy() == test.labels
    found = {round: pupil.accuracy(round) for round in range(5)}
    # Round 2's result is evaluated by clients in round 3, and that of the last round, 4, in round 5.
    assert [round for round, metrics in found.items() if metrics] == [2, 4]
    assert found[2] == {"server_accuracy": right.mean()}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_same_seed_gives_the_same_bits(optimizer):
    results = []
    for _ in range(2):
        pupil = server_model(optimizer)
        pupil.learn(0, lambda logits, features, rows: logits.square().mean(), torch.arange(20))
        results.append(pupil.features_and_logits()[1])
    assert torch.equal(*results)


def test_the_two_optimizers_differ():
    sgd, adam = server_model("sgd"), server_model("adam")
    assert torch.equal(sgd.features_and_logits()[1], adam.features_and_logits()[1])
    for pupil in (sgd, adam):
        pupil.learn(0, lambda logits, features, rows: logits.square().mean(), torch.arange(20))
    assert not torch.equal(sgd.features_and_logits()[1], adam.features_and_logits()[1])


def test_the_server_projects_unless_asked_otherwise():
    task = Task(2, 10, 512, (3, 32, 32))
    with torch.device("meta"):
        published = public_samples.build_server_model("ResNet10", config.build([{}]), task)
        pooled = public_samples.build_server_model(
            "ResNet10", config.build([{"model": {"feature_mapping": "pool"}}]), task
        )
    assert isinstance(published.extractor[1], torch.nn.Linear)
    assert isinstance(pooled.extractor[1], torch.nn.Identity)
