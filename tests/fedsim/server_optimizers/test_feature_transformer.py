"""FedKTL's server step: MMD as loops, F as matrices, the fit against plain autograd, centroids."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss

from fedsim.server_optimizers.feature_transformer import FeatureTransformer, _add_mmd_gradient, squared_mmd

NUM_CLASSES, PROTOTYPE_DIM, LATENT_DIM = 4, 3, 6


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def transformer(seed: int = 0, **options) -> FeatureTransformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FeatureTransformer(PROTOTYPE_DIM, torch.randn(NUM_CLASSES, LATENT_DIM), **options)


def uploads(num: int = 12, classes: int = 3, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Clusters of prototypes; the last class is nobody's."""
    draw = generator(seed)
    labels = torch.arange(num) % classes
    centres = torch.randn(classes, PROTOTYPE_DIM, generator=draw)
    return centres[labels] + 0.3 * torch.randn(num, PROTOTYPE_DIM, generator=draw), labels


def fit(model: FeatureTransformer, prototypes, labels, *, order_seed: int = 5, valid_seed: int = 6, **options):
    draw = generator(valid_seed)
    settings = {"epochs": 3, "batch_size": 100, "lr": 0.01, **options}
    return model.fit(
        prototypes,
        labels,
        draw_valid=lambda num: 2 * torch.randn(num, LATENT_DIM, generator=draw),
        generator=generator(order_seed),
        **settings,
    )


# --------------------------------------------------------------------------------------------------- MMD


def mmd_by_loops(ours, valid) -> float:
    def kappa(a, b) -> float:
        square = sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
        return sum(math.exp(-square / (2 * variance)) for variance in (10, 15, 20, 50))

    def mean(first, second) -> float:
        return sum(kappa(a, b) for a in first for b in second) / (len(first) * len(second))

    return mean(ours, ours) + mean(valid, valid) - 2 * mean(ours, valid)


@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_mmd_is_equation_3_with_four_gaussian_kernels(spread):
    draw = np.random.default_rng(0)
    ours, valid = spread * draw.normal(size=(7, 5)), 1 + draw.normal(size=(7, 5))
    expected = mmd_by_loops(ours, valid)
    assert squared_mmd(torch.from_numpy(ours), torch.from_numpy(valid)).item() == pytest.approx(expected, rel=1e-9)
    single = squared_mmd(torch.from_numpy(ours).float(), torch.from_numpy(valid).float())
    assert single.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_mmd_of_a_sample_with_itself_is_zero_and_its_largest_value_is_that_of_far_points():
    sample = torch.randn(6, 4, generator=generator())
    assert squared_mmd(sample, sample).item() == pytest.approx(0, abs=1e-6)
    # All of one sample in one point, and the other far away: κ is 4 within and 0 between.
    near, far = torch.zeros(6, 4), torch.full((6, 4), 100.0)
    assert squared_mmd(near, far).item() == pytest.approx(8.0)


def test_gradient_of_mmd():
    draw = generator()
    ours = torch.randn(4, 3, generator=draw, dtype=torch.float64, requires_grad=True)
    valid = torch.randn(4, 3, generator=draw, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: squared_mmd(x, valid), ours)


@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0])
def test_gradient_of_mmd_by_hand(spread):
    draw = generator()
    ours = (spread * torch.randn(7, 3, generator=draw, dtype=torch.float64)).requires_grad_()
    valid = torch.randn(7, 3, generator=draw, dtype=torch.float64)
    (2.5 * squared_mmd(ours, valid)).backward()
    with torch.no_grad():
        by_hand = torch.ones_like(ours)
        _add_mmd_gradient(by_hand, ours, valid, 2.5)
    torch.testing.assert_close(by_hand - 1, ours.grad, rtol=1e-9, atol=1e-12)


# ----------------------------------------------------------------------------------------------------- F


def test_f_is_two_layers_with_normalisation_and_relu_between():
    model = transformer().eval()
    with torch.no_grad():
        model.norm.running_mean.copy_(torch.tensor([0.1, -0.2, 0.3]))
        model.norm.running_var.copy_(torch.tensor([0.5, 2.0, 1.0]))
    prototypes, _ = uploads()
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    hidden = prototypes.numpy() @ state["hidden.weight"].T
    hidden = (hidden - state["norm.running_mean"]) / np.sqrt(state["norm.running_var"] + 1e-5)
    hidden = np.maximum(hidden * state["norm.weight"] + state["norm.bias"], 0)
    expected = hidden @ state["output.weight"].T + state["output.bias"]
    np.testing.assert_allclose(model(prototypes).detach().numpy(), expected, rtol=1e-4, atol=1e-6)
    assert expected.shape == (12, LATENT_DIM)


def plain_fit(model, prototypes, labels, epochs: int, **weights) -> list[tuple[float, float]]:
    """The same with a centroid that is differentiated too, all in one batch; the losses of every epoch."""
    order, valid_draw = generator(5), generator(6)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model.train()
    losses = []
    for _ in range(epochs):
        rows = torch.randperm(len(labels), generator=order)
        valid = 2 * torch.randn(len(labels), LATENT_DIM, generator=valid_draw)
        latents = model(prototypes[rows])
        if model.trainable_centroids:
            targets = model.centroids_CH
        else:
            targets = torch.stack(
                [
                    latents[labels[rows] == c].mean(dim=0) if (labels == c).any() else torch.zeros(LATENT_DIM)
                    for c in range(NUM_CLASSES)
                ]
            )
        mmd, mse = squared_mmd(latents, valid), mse_loss(latents, targets[labels[rows]])
        optimizer.zero_grad()
        (weights.get("mmd_weight", 1.0) * mmd + weights.get("mse_weight", 1.0) * mse).backward()
        optimizer.step()
        losses.append((mmd.item(), mse.item()))
    return losses


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("weights", [{}, {"mse_weight": 0.1}, {"mmd_weight": 0.0}, {"mse_weight": 0.0}])
def test_fit_equals_autograd_and_adam(trainable, weights):
    prototypes, labels = uploads()
    ours, theirs = (transformer(trainable_centroids=trainable) for _ in range(2))
    losses = plain_fit(theirs, prototypes, labels, 4, **weights)
    result = fit(ours, prototypes, labels, epochs=4, **weights)
    assert (result.mmd_first, result.mse_first) == pytest.approx(losses[0], rel=1e-4)
    assert result.mse == pytest.approx(losses[-1][1], rel=1e-4)
    if trainable or "mmd_weight" not in weights:
        # Without MMD nothing holds the bias of F: its gradient is rounding alone, which Adam makes large.
        assert result.mmd == pytest.approx(losses[-1][0], rel=1e-4)
        latents = [model.eval()(prototypes).detach().numpy() for model in (ours, theirs)]
        np.testing.assert_allclose(*latents, rtol=1e-3, atol=1e-4)
    if trainable:
        np.testing.assert_allclose(ours.centroids_CH.detach(), theirs.centroids_CH.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("trainable", [False, True])
def test_fit_is_adam_on_the_loss_as_printed(trainable):
    """In mini-batches, while centroids are means over all prototypes."""
    prototypes, labels = uploads()
    weights = {"mmd_weight": 0.7, "mse_weight": 0.4}
    ours, theirs = (transformer(trainable_centroids=trainable) for _ in range(2))
    fit(ours, prototypes, labels, epochs=3, batch_size=5, **weights)
    order, valid_draw = generator(5), generator(6)
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.01)
    theirs.train()
    for _ in range(3):
        rows, valid = torch.randperm(12, generator=order), 2 * torch.randn(12, LATENT_DIM, generator=valid_draw)
        for batch in zip(rows.split(5), valid.split(5), strict=True):
            optimizer.zero_grad()
            theirs.loss_as_printed(prototypes, labels, *batch, **weights).backward()
            optimizer.step()
    for (name, weight), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(weight, other, rtol=1e-3, atol=1e-5, msg=name)
    torch.testing.assert_close(ours.norm.running_var, theirs.norm.running_var)


def test_a_batch_of_one_is_left_out_and_only_batches_leave_a_trace_in_the_statistics():
    prototypes, labels = uploads(9)
    model = transformer()
    fit(model, prototypes, labels, epochs=5, batch_size=4)  # 4, 4 and a single one
    assert model.norm.num_batches_tracked.item() == 10


def test_each_epoch_has_its_own_order_and_valid_latents_for_all():
    prototypes, labels = uploads(9)
    asked = []

    def draw(num: int) -> torch.Tensor:
        asked.append(num)
        return torch.zeros(num, LATENT_DIM)

    def final(order_seed: int) -> np.ndarray:
        model = transformer()
        model.fit(
            prototypes, labels, draw_valid=draw, epochs=3, batch_size=4, lr=0.01, generator=generator(order_seed)
        )
        return model.output.weight.detach().numpy()

    assert not np.array_equal(final(1), final(2))
    assert asked == [9] * 6


def test_gradients_are_clipped():
    prototypes, labels = uploads()
    for clip_norm, trainable in ((1e-3, False), (1e-3, True)):
        model = transformer(trainable_centroids=trainable)
        fit(model, prototypes, labels, clip_norm=clip_norm)
        grads = [w.grad for name, w in model.named_parameters() if name != "centroids_CH"]
        assert math.sqrt(sum(g.square().sum().item() for g in grads)) == pytest.approx(clip_norm, rel=1e-2)
        if trainable:
            assert model.centroids_CH.grad.norm().item() == pytest.approx(clip_norm, rel=1e-2)


# --------------------------------------------------------------------------------------------- centroids


def test_centroids_are_the_means_of_f_over_each_class_and_absent_ones_stay():
    prototypes, labels = uploads()
    model = transformer()
    before = model.centroids_CH.clone()
    fit(model, prototypes, labels)
    latents = model.eval()(prototypes).detach()
    for label in range(3):
        torch.testing.assert_close(model.centroids_CH[label], latents[labels == label].mean(dim=0))
    torch.testing.assert_close(model.centroids_CH[3], before[3], rtol=0, atol=0)
    assert not model.centroids_CH.requires_grad


def test_trainable_centroids_of_absent_classes_stay_too():
    prototypes, labels = uploads()
    model = transformer(trainable_centroids=True)
    before = model.centroids_CH.detach().clone()
    fit(model, prototypes, labels)
    torch.testing.assert_close(model.centroids_CH[3].detach(), before[3], rtol=0, atol=0)
    assert (model.centroids_CH[:3] - before[:3]).abs().min().item() > 0.01  # three steps of Adam with lr 0.01


def test_without_prototypes_nothing_changes():
    model = transformer()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = fit(model, torch.zeros(0, PROTOTYPE_DIM), torch.zeros(0, dtype=torch.int64))
    assert (result.mmd, result.mse, result.mmd_first, result.mse_first) == (0, 0, 0, 0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_single_prototype_trains_nothing_but_has_its_centroid():
    prototypes, _ = uploads(1)
    model = transformer()
    weight = model.hidden.weight.detach().clone()
    fit(model, prototypes, torch.tensor([2]))
    torch.testing.assert_close(model.hidden.weight.detach(), weight, rtol=0, atol=0)
    torch.testing.assert_close(model.centroids_CH[2], model(prototypes)[0].detach())


# ------------------------------------------------------------------------------------ what the losses do


def test_each_loss_does_its_work():
    prototypes, labels = uploads(30)
    settings = {"epochs": 200, "lr": 0.02}
    both = fit(transformer(), prototypes, labels, **settings)
    no_mmd = fit(transformer(), prototypes, labels, mmd_weight=0.0, **settings)
    no_mse = fit(transformer(), prototypes, labels, mse_weight=0.0, **settings)
    assert both.mmd < 0.7 * both.mmd_first
    assert no_mmd.mse < 0.1 * no_mmd.mse_first and no_mmd.mmd > 1.5 * both.mmd
    assert no_mse.mmd < both.mmd and no_mse.mse > 2 * both.mse


@pytest.mark.parametrize("trainable", [False, True])
def test_state_restored_into_a_new_transformer_goes_on_with_the_same_bits(trainable):
    prototypes, labels = uploads()
    ours, resumed = transformer(trainable_centroids=trainable), transformer(7, trainable_centroids=trainable)
    fit(ours, prototypes, labels, batch_size=5)
    resumed.load_state_dict(ours.state_dict())
    results = [fit(model, prototypes, labels, batch_size=5, order_seed=8) for model in (ours, resumed)]
    assert results[0] == results[1]
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_small_steps_take_one_thread_and_leave_the_setting_as_it_was():
    prototypes, labels = uploads()
    before, seen = torch.get_num_threads(), []
    try:
        torch.set_num_threads(2)
        transformer().fit(
            prototypes,
            labels,
            draw_valid=lambda num: seen.append(torch.get_num_threads()) or torch.zeros(num, LATENT_DIM),
            epochs=2,
            batch_size=4,
            lr=0.01,
            generator=generator(),
        )
        assert seen == [1, 1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_latents_in_mini_batches_stay_as_large_as_valid_ones():
    """Normalised by its batch, F of a class's only prototype differs from the centroid; were that held fixed in a
    step, F would grow until the difference counted for nothing."""
    draw = generator()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = FeatureTransformer(40, torch.randn(40, LATENT_DIM))
    result = fit(model, torch.randn(40, 40, generator=draw), torch.arange(40), epochs=100, batch_size=10)
    assert model.centroids_CH.square().mean() < 8  # of valid ones: 4
    assert result.mse < 1
