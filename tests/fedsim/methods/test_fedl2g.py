"""FedL2G: its second-order gradient against finite differences and a closed form; quiz, warm-up, server."""

import copy

import numpy as np
import pytest
import torch
from torch.func import functional_call, jvp
from torch.nn.functional import cross_entropy
from toys import FEATURE_DIM, NUM_CLASSES, toy_model

from fedsim import config, models
from fedsim.config import Model
from fedsim.data.inputs import InputShape
from fedsim.errors import UserError
from fedsim.learning.parameters import flatten
from fedsim.method import Setting, Task, Upload
from fedsim.methods import fedl2g
from fedsim.methods.fedl2g import guide_gradient

LR = 0.3


def quiz_loss_after_a_step(model, study, quiz, guides, guide):
    """Independently: a copy of the model really takes the step, by an optimizer, and is then tested."""
    stepped = copy.deepcopy(model)
    optimizer = torch.optim.SGD(stepped.parameters(), lr=LR)
    features = stepped.features(study[0])
    logits = stepped.head(features)
    compared = features if guide == "features" else logits
    targets = torch.stack([guides[label] for label in study[1].tolist()])
    loss = cross_entropy(logits, study[1]) + (compared - targets).square().mean()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        return float(cross_entropy(stepped(quiz[0]), quiz[1]))


def batches(inputs):
    labels = torch.tensor([0, 2, 2, 1, 0, 3])
    return (inputs, labels), (inputs.flip(0), torch.tensor([1, 1, 0, 2, 3, 0]))


def points():
    return torch.randn(6, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("guide", ["features", "logits"])
def test_the_gradient_is_that_of_finite_differences(guide):
    model = toy_model(5).double()
    study, quiz = batches(points())
    dim = FEATURE_DIM if guide == "features" else NUM_CLASSES
    guides = torch.randn(NUM_CLASSES, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    before = flatten(model)
    found, _, quiz_loss = guide_gradient(model, study, quiz, guides, LR, guide)
    assert float(quiz_loss) == pytest.approx(quiz_loss_after_a_step(model, study, quiz, guides, guide), rel=1e-9)
    expected, step = torch.zeros_like(guides), 1e-5
    for place in np.ndindex(*guides.shape):
        up, down = guides.clone(), guides.clone()
        up[place] += step
        down[place] -= step
        difference = [quiz_loss_after_a_step(model, study, quiz, own, guide) for own in (up, down)]
        expected[place] = (difference[0] - difference[1]) / (2 * step)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-9)
    assert expected.abs().max() > 1e-4, "it is no gradient of nothing"
    assert not found[4].any(), "class 4 was not studied"
    np.testing.assert_array_equal(flatten(model), before)


def test_the_gradient_is_that_of_a_closed_form():
    """∇_θ L depends on a vector only by −2/(BD) · feature · vector, so dQ/dG_c = 2η/(BD) Σ_{y=c} J v, with v
    the quiz's gradient after the step and J that of features: a directional derivative, and no second one."""
    model = toy_model(5).double()
    study, quiz = batches(points())
    guides = torch.randn(NUM_CLASSES, FEATURE_DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found, _, _ = guide_gradient(model, study, quiz, guides, LR, "features")
    weights = dict(model.named_parameters())
    features = model.features(study[0])
    loss = cross_entropy(model.head(features), study[1]) + (features - guides[study[1]]).square().mean()
    stepped = copy.deepcopy(model)
    with torch.no_grad():
        for weight, gradient in zip(
            stepped.parameters(), torch.autograd.grad(loss, weights.values()), strict=True
        ):
            weight -= LR * gradient
    direction = torch.autograd.grad(cross_entropy(stepped(quiz[0]), quiz[1]), list(stepped.parameters()))
    extractor = {
        name.removeprefix("extractor."): own for name, own in weights.items() if name.startswith("extractor")
    }
    along = dict(zip(weights, direction, strict=True))

    def outputs(own):
        return functional_call(model.extractor, own, study[0])

    moved = jvp(outputs, (extractor,), ({name: along[f"extractor.{name}"] for name in extractor},))[1]
    expected = torch.zeros_like(guides).index_add(0, study[1], moved * (2 * LR / moved.numel()))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["LSTM", "GRU", "BiLSTM", "Transformer-2x2", "fastText"])
def test_models_of_texts_have_a_second_derivative_too(name):
    torch.manual_seed(2)
    config_ = Model(group=name, feature_dim=4)
    model = models.build(config_, 0, InputShape((5,), "tokens", 12), NUM_CLASSES).double().eval()
    tokens = torch.randint(3, 12, (6, 5), generator=torch.Generator().manual_seed(0))
    tokens[2, 3:] = 0
    study, quiz = batches(tokens)
    guides = torch.randn(NUM_CLASSES, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found, _, _ = guide_gradient(model, study, quiz, guides, LR, "features")
    for place in ((0, 1), (2, 3), (3, 0)):
        up, down = guides.clone(), guides.clone()
        up[place] += 1e-4
        down[place] -= 1e-4
        difference = [quiz_loss_after_a_step(model, study, quiz, own, "features") for own in (up, down)]
        assert float(found[place]) == pytest.approx((difference[0] - difference[1]) / 2e-4, rel=1e-3, abs=1e-8)


def test_the_first_samples_are_the_quiz_and_never_trained_on(toy):
    client = toy("fedl2g", quiz_batches=2, warm_up_rounds=0).clients[0]
    own = client.data.train
    assert client.halves.quiz.indices.tolist() == own.indices[:12].tolist()
    seen = []
    original = client.loss
    client.loss = lambda batch: (seen.append(batch.inputs), original(batch))[1]
    client.train(0)
    trained = np.concatenate([batch.numpy() for batch in seen])
    np.testing.assert_array_equal(trained, own.dataset.inputs[own.indices[12:36]])


def test_in_the_warm_up_nobody_trains_but_vectors_are_learnt(toy):
    some = toy("fedl2g", warm_up_rounds=2)
    before = [flatten(client.model) for client in some.clients]
    some.play(2)
    for client, old in zip(some.clients, before, strict=True):
        np.testing.assert_array_equal(flatten(client.model), old)
    assert not np.array_equal(some.steps[0].down["guides"], some.steps[1].down["guides"])
    some.play(1)
    assert not np.array_equal(flatten(some.clients[0].model), before[0])


def test_the_server_takes_a_step_along_the_mean_of_the_rows_that_were_sent(toy):
    some = toy("fedl2g", guide="logits", server_lr=0.5, clip_norm=2.0)
    start = some.server.guides_CD.numpy().copy()
    rows = np.eye(NUM_CLASSES, dtype=np.float32)
    uploads = [
        Upload(0, 10, {"gradients": 4 * rows[[0, 1]], "class_ids": np.array([0, 1], np.int32)}),
        Upload(1, 99, {"gradients": 2 * rows[[1]], "class_ids": np.array([1], np.int32)}),
        Upload(2, 10, {}),
    ]
    mean = np.zeros((NUM_CLASSES, NUM_CLASSES))
    mean[0, 0], mean[1, 1] = 4, 3  # of norm 5, clipped to 2
    step = some.server.aggregate(0, uploads)
    np.testing.assert_allclose(step.down["guides"], start - 0.5 * mean * 2 / 5, rtol=1e-5)
    assert step.metrics["guide_gradient_norm"] == pytest.approx(5)


def test_rows_of_the_classes_studied_go_up_and_those_with_too_few_samples_send_none(toy):
    some = toy("fedl2g", num_samples={3: 11})
    some.play(1)
    arrays = some.clients[0].upload()
    assert set(arrays["class_ids"].tolist()) <= {0, 1, 2}
    assert arrays["gradients"].shape == (len(arrays["class_ids"]), FEATURE_DIM)
    assert some.clients[3].upload() == {}


def test_state_restored_into_new_halves_continues_with_the_same_bits(toy):
    whole, halted, resumed = (toy("fedl2g", dropout=0.2) for _ in range(3))
    history = whole.play(4)
    halted.play(2)
    resumed.take_over(halted)
    assert resumed.play(2) == history[2:]


def test_a_run_that_is_all_warm_up_is_refused():
    experiment = config.build([{"run": {"rounds": 20}, "method": {"name": "fedl2g", "warm_up_rounds": 50}}])
    setting = Setting(experiment, experiment.method_config(), Task(2, 3, 4, (1, 28, 28)), None)
    with pytest.raises(UserError, match=r"warm_up_rounds = 50 leaves nothing of run.rounds = 20 to train in"):
        fedl2g.check(setting)
    published = config.build([{"run": {"rounds": 1000}, "method": {"name": "fedl2g"}}])
    assert published.method_config().warm_up(published) == 50
