"""What FML and FedKD share: which auxiliary model, the distillation loss by hand, whom it trains, resuming."""

import numpy as np
import pytest
import torch
from toys import assert_same

from fedsim import config, methods
from fedsim.errors import UnknownName, UserError
from fedsim.families.auxiliary_model import (
    auxiliary_name,
    auxiliary_shapes,
    check,
    new_auxiliary,
)
from fedsim.learning.parameters import flatten, num_parameters
from fedsim.learning.training import Batch
from fedsim.method import Setting, Task, Upload

METHODS = {"fml": {}, "fedkd": {"energy_start": 0.6, "energy_end": 0.9}}
STUDENT = np.array([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]])
TEACHER = np.array([[0.0, 1.0, 1.0], [-1.0, 2.0, 0.5]])


def softmax(rows: np.ndarray) -> np.ndarray:
    return np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)


def setting(group: str, *, shape: tuple[int, ...] = (3, 32, 32), num_classes: int = 100, **options) -> Setting:
    experiment = config.build(
        [{"run": {"clients": 20}, "model": {"group": group}, "method": {"name": "fml", **options}}]
    )
    return Setting(experiment, experiment.method_config(), Task(20, num_classes, 512, shape), None)


# ------------------------------------------------------------------------------------------------ auxiliary model


@pytest.mark.parametrize(
    ("group", "name"),
    [
        *(
            (group, "CNN")
            for group in ("HtFE2", "HtFE4", "HtFE8", "HtM10", "HtFE8-HtC4", "Res34-HtC4", "ResNet18")
        ),
        ("HtFE3", "ResNet10"),
        ("HtFE9", "ResNet4"),
        ("HtCNN8", "CNN1"),
        ("MLP", "MLP"),
        ("ResNet34:128,GoogLeNet", "ResNet34"),
    ],
)
def test_the_published_auxiliary_model_of_each_group(group, name):
    assert auxiliary_name(setting(group)) == name


def test_data_that_are_not_images_have_an_mlp():
    assert auxiliary_name(setting("HtCNN8", shape=(6,))) == "MLP"


def test_another_auxiliary_model_may_be_named_in_any_spelling():
    assert auxiliary_name(setting("HtCNN8", auxiliary="cnn2")) == "CNN2"
    assert auxiliary_name(setting("HtFE8", auxiliary="ResNet8:256")) == "ResNet8:256"


@pytest.mark.parametrize(("auxiliary", "size"), [("published", 2_365_770), ("CNN2", 582_026)])
def test_sizes_of_auxiliary_models_for_small_images(auxiliary, size):
    some = setting("HtCNN8", shape=(1, 28, 28), num_classes=10, auxiliary=auxiliary)
    assert num_parameters(auxiliary_shapes(some)) == size


def test_what_cannot_be_an_auxiliary_model_is_refused_in_one_sentence():
    with pytest.raises(UserError, match=r"^method\.auxiliary = 'HtFE8' is more than one model.*single model.*\.$"):
        check(setting("HtFE8", auxiliary="HtFE8"))
    with pytest.raises(UnknownName, match="CNM"):
        check(setting("HtFE8", auxiliary="CNM"))
    with pytest.raises(UserError, match=r"^method\.auxiliary cannot be CNN: .*16x16.*; name another model\.$"):
        check(setting("HtFE8", shape=(1, 8, 8)))
    check(setting("HtFE8", shape=(1, 8, 8), auxiliary="CNN1"))


def test_the_first_auxiliary_model_is_a_function_of_the_seed_alone():
    some = setting("HtCNN8", shape=(1, 28, 28), num_classes=10, auxiliary="CNN2")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = flatten(new_auxiliary(some))
        torch.manual_seed(2)
        np.testing.assert_array_equal(flatten(new_auxiliary(some)), first)


# ------------------------------------------------------------------------------------------------ losses


def test_divergence_by_hand(toy):
    student, teacher = softmax(STUDENT), softmax(TEACHER)
    rows = (teacher * np.log(teacher / student)).sum(axis=1)
    logits = torch.from_numpy(STUDENT), torch.from_numpy(TEACHER)
    assert toy("fml").clients[0].kl(*logits).item() == pytest.approx(rows.mean())
    assert toy("fedkd", kl_mean="element").clients[0].kl(*logits).item() == pytest.approx(rows.sum() / 6)


@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_both_models_have_both_losses_and_the_other_one_for_a_teacher(toy, alpha, beta):
    """Each weight takes one of the two losses of its model away, so that all four show."""
    own, auxiliary, labels = softmax(STUDENT), softmax(TEACHER), [2, 0]
    client = toy("fml", task_weight=alpha, auxiliary_task_weight=beta).clients[0]
    client.model = lambda inputs: torch.from_numpy(STUDENT)
    client.auxiliary = lambda inputs: torch.from_numpy(TEACHER)
    loss = client.loss(Batch(torch.zeros(2, 6), torch.tensor(labels), np.arange(2)))
    task, auxiliary_task = (-np.log(rows[[0, 1], labels]).mean() for rows in (own, auxiliary))
    distillation = (auxiliary * np.log(auxiliary / own)).sum(axis=1).mean()
    auxiliary_distillation = (own * np.log(own / auxiliary)).sum(axis=1).mean()
    expected = (task if alpha else distillation) + (auxiliary_task if beta else auxiliary_distillation)
    np.testing.assert_allclose(loss.item(), expected)


def test_a_teacher_learns_from_its_student_only_on_request(toy):
    student, teacher = softmax(STUDENT), softmax(TEACHER)
    logs = np.log(teacher / student)
    for detached in (True, False):
        logits = [torch.from_numpy(rows).requires_grad_() for rows in (STUDENT, TEACHER)]
        toy("fml", detach_teacher=detached).clients[0].kl(*logits).backward()
        np.testing.assert_allclose(logits[0].grad, (student - teacher) / 2, atol=1e-12)
        if detached:
            assert logits[1].grad is None
        else:
            own = teacher * (logs - (teacher * logs).sum(axis=1, keepdims=True)) / 2
            np.testing.assert_allclose(logits[1].grad, own, atol=1e-12)


# ------------------------------------------------------------------------------------------------ rounds


@pytest.mark.parametrize("method", METHODS)
def test_all_clients_start_with_the_same_auxiliary_model_which_nothing_needs_to_bring(toy, method):
    some = toy(method)
    first = flatten(some.clients[0].auxiliary)
    for client in some.clients:
        client.receive(0, {})
        np.testing.assert_array_equal(flatten(client.auxiliary), first)


@pytest.mark.parametrize("method", METHODS)
def test_two_runs_give_the_same_bits(toy, method):
    runs = [toy(method, dropout=0.2, **METHODS[method]) for _ in range(2)]
    histories = [run.play(3) for run in runs]
    assert histories[0] == histories[1]
    assert_same(*(run.states() for run in runs))


@pytest.mark.parametrize("method", METHODS)
def test_state_restored_into_new_halves_continues_with_the_same_bits(toy, method):
    whole, halted, resumed = (toy(method, dropout=0.2, **METHODS[method]) for _ in range(3))
    history = whole.play(4)
    halted.play(2)
    saved = resumed.take_over(halted)
    assert_same(resumed.states(), saved)
    halted.play(1)  # going on with the old halves must not touch what was restored
    assert_same(resumed.states(), saved)
    assert resumed.play(2) == history[2:]
    assert_same(resumed.states(), whole.states())
    assert whole.down.keys() == resumed.down.keys()
    for name, array in whole.down.items():
        np.testing.assert_array_equal(resumed.down[name], array)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("published", [False, True])
def test_training_lowers_the_loss_and_learns(toy, method, published):
    options = {"detach_teacher": False, "kl_mean": "element"} if published else {}
    some = toy(method, train={"lr": 0.2}, **METHODS[method], **options)
    history = some.play(12)
    first, last = ([client["loss"] for client in history[round]] for round in (0, -1))
    assert sum(last) < sum(first)
    tested = sum(client["tested"] for client in history[-1])
    assert tested == sum(len(client.data.test) for client in some.clients)
    assert sum(client["correct"] for client in history[-1]) / tested > 0.6  # chance is about a quarter


@pytest.mark.parametrize("method", METHODS)
def test_a_client_with_fewer_samples_than_a_batch_sends_back_what_it_got(toy, method):
    some = toy(method, num_samples={1: 5}, **METHODS[method])
    before = flatten(some.clients[1].model)
    history = some.play(2)
    assert history[1][1]["loss"] is None
    np.testing.assert_array_equal(flatten(some.clients[1].model), before)


@pytest.mark.parametrize("method", METHODS)
def test_uploads_without_arrays_are_passed_over(toy, method):
    some = toy(method)
    uploads = [Upload(client, 0, {}) for client in range(3)]
    assert some.server.aggregate(0, uploads).down == {}
    alone = some.clients[3].upload()
    step = some.server.aggregate(0, [*uploads, Upload(3, 12, alone)])
    for name, array in alone.items():
        np.testing.assert_array_equal(step.down[name], array)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("option", "value"),
    [("auxiliary_lr", 0), ("aggregation", "median"), ("kl_mean", "sum"), ("clip_norm", -1), ("detach_teacher", 2)],
)
def test_options_out_of_range_are_refused_in_one_sentence(method, option, value):
    with pytest.raises(UserError, match=rf"method\.{option}") as error:
        config.build([{"method": {"name": method, option: value}}])
    assert str(error.value).count("\n") == 0
    assert methods.load(method).Config()
