"""FedTGP's server step: Eq. 6 to 10 as plain loops, and the hand-written gradients against autograd."""

import math

import numpy as np
import pytest
import torch

from fedsim.equations.class_vectors import ClassVectors
from fedsim.server_optimizers.tgp import TrainablePrototypes, adaptive_margin


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uploads(num: int, num_classes: int, dim: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    draw = generator(seed)
    labels = torch.randint(num_classes, (num,), generator=draw)
    return torch.randn(num, dim, generator=draw, dtype=torch.float64), labels


def loss_by_loops(prototypes, labels, global_prototypes, margin) -> float:
    """Eq. 10 (Eq. 7 for a fixed margin, Eq. 6 for 0), one uploaded prototype after the other."""
    total = 0.0
    for own, label in zip(prototypes, labels, strict=True):
        near = math.exp(-(math.dist(own, global_prototypes[label]) + margin))
        far = sum(math.exp(-math.dist(own, other)) for c, other in enumerate(global_prototypes) if c != label)
        total += -math.log(near / (near + far))
    return total / len(labels)


@pytest.mark.parametrize("margin", [0.0, 1.5, 20.0])
def test_loss_is_equation_10(margin):
    model = TrainablePrototypes(4, 3, generator=generator()).double()
    prototypes, labels = uploads(9, 4, 3)
    expected = loss_by_loops(prototypes.tolist(), labels.tolist(), model().tolist(), margin)
    loss = model.loss_as_printed(prototypes, labels, torch.full((4,), margin).double())
    assert loss.item() == pytest.approx(expected)


def test_the_transform_is_two_layers_with_relu_between():
    model = TrainablePrototypes(4, 3, generator=generator()).double()
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    hidden = np.maximum(state["vectors"] @ state["hidden.weight"].T + state["hidden.bias"], 0)
    expected = hidden @ state["output.weight"].T + state["output.bias"]
    np.testing.assert_allclose(model().detach().numpy(), expected, rtol=1e-12)
    bare = TrainablePrototypes(4, 3, generator=generator(), use_transform=False)
    np.testing.assert_array_equal(bare().detach().numpy(), bare.vectors.detach().numpy())
    assert set(bare.state_dict()) == {"vectors"}


def test_initial_values():
    model = TrainablePrototypes(200, 64, generator=generator())
    assert model.vectors.mean().item() == pytest.approx(0, abs=0.03)
    assert model.vectors.std().item() == pytest.approx(1, abs=0.03)
    for layer in (model.hidden, model.output):
        assert layer.weight.abs().max().item() <= 1 / 8  # U(±1/√64)
        assert layer.weight.std().item() == pytest.approx(1 / 8 / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize("use_transform", [True, False])
def test_fit_equals_autograd_and_sgd(use_transform):
    num_classes, dim, epochs, batch_size, lr = 7, 5, 4, 6, 0.05
    prototypes, labels = uploads(20, num_classes, dim)  # the last batch of an epoch has 2
    margins = torch.linspace(0.0, 3.0, num_classes, dtype=torch.float64)  # one for each class, for generality
    ours = TrainablePrototypes(num_classes, dim, generator=generator(), use_transform=use_transform).double()
    theirs = TrainablePrototypes(num_classes, dim, generator=generator(), use_transform=use_transform).double()

    fit = ours.fit(
        prototypes,
        labels,
        margins_C=margins,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        generator=generator(5),
    )

    optimizer, order, epoch_losses = torch.optim.SGD(theirs.parameters(), lr=lr), generator(5), []
    for _ in range(epochs):
        losses = []
        for rows in torch.randperm(len(labels), generator=order).split(batch_size):
            loss = theirs.loss_as_printed(prototypes[rows], labels[rows], margins)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append((loss.item(), len(rows)))
        epoch_losses.append(sum(loss * size for loss, size in losses) / len(labels))
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], tensor, rtol=1e-9, atol=1e-11)
    assert fit.first_loss == pytest.approx(epoch_losses[0])
    assert fit.loss == pytest.approx(epoch_losses[-1])
    assert fit.last_batch_loss == pytest.approx(losses[-1][0])


def test_gradient_of_one_step_by_finite_differences():
    prototypes, labels = uploads(5, 3, 4)
    margins = torch.full((3,), 0.7, dtype=torch.float64)
    model = TrainablePrototypes(3, 4, generator=generator()).double()
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.fit(prototypes, labels, margins_C=margins, epochs=1, batch_size=5, lr=1.0, generator=generator())
    steps = {name: start[name] - tensor for name, tensor in model.state_dict().items()}  # lr 1: the gradient
    for name, index in [
        ("vectors", (1, 2)),
        ("hidden.weight", (3, 0)),
        ("hidden.bias", (2,)),
        ("output.weight", (0, 1)),
        ("output.bias", (3,)),
    ]:
        values = []
        for shift in (1e-6, -1e-6):
            moved = {key: tensor.clone() for key, tensor in start.items()}
            moved[name][index] += shift
            model.load_state_dict(moved)
            values.append(model.loss_as_printed(prototypes, labels, margins).item())
        assert steps[name][index].item() == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5, abs=1e-9)


def test_single_precision_stays_close_to_double():
    prototypes, labels = uploads(60, 10, 32)
    models = [TrainablePrototypes(10, 32, generator=generator()) for _ in range(2)]
    models[1].double()
    for model, dtype in zip(models, (torch.float32, torch.float64), strict=True):
        model.fit(
            20 * prototypes.to(dtype),
            labels,
            margins_C=torch.full((10,), 5.0, dtype=dtype),
            epochs=10,
            batch_size=10,
            lr=0.01,
            generator=generator(2),
        )
    torch.testing.assert_close(models[0]().double(), models[1](), rtol=1e-3, atol=1e-3)


def test_margin_is_the_largest_distance_to_the_nearest_centre():
    line = np.array([[0.0], [1.0], [5.0], [12.0]], np.float32)
    centres = ClassVectors.from_rows(line, np.array([0, 1, 2, 4]), 5)  # class 3 is absent
    assert adaptive_margin(centres, 100.0) == 7.0  # the nearest are at 1, 1, 4 and 7
    assert adaptive_margin(centres, 2.5) == 2.5


def test_margin_differs_from_the_printed_equation():
    # Two pairs, at 0, 1 and 10, 11: the nearest are all at 1. The smallest of the largest, as printed, is 10.
    line = np.array([[0.0], [1.0], [10.0], [11.0]], np.float32)
    assert adaptive_margin(ClassVectors.from_rows(line, np.arange(4), 4), 100.0) == 1.0


def test_margin_of_fewer_than_two_classes_is_tau():
    one = ClassVectors.from_rows(np.ones((1, 3), np.float32), np.array([2]), 5)
    assert adaptive_margin(one, 42.0) == 42.0
    assert adaptive_margin(ClassVectors.empty(5, 3), 42.0) == 42.0


def fit(model, prototypes, labels, **changes):
    settings = {
        "margins_C": torch.full((len(model.vectors),), 3.0),
        "epochs": 3,
        "batch_size": 4,
        "lr": 0.05,
        "generator": generator(),
    }
    return model.fit(prototypes.float(), labels, **(settings | changes))


def test_training_pulls_each_prototype_to_its_class():
    centres = 4 * torch.eye(6)
    labels = torch.arange(6).repeat(8)
    prototypes = centres[labels] + 0.1 * torch.randn(48, 6, generator=generator(3))
    model = TrainablePrototypes(6, 6, generator=generator())
    result = fit(model, prototypes, labels, epochs=100)
    assert result.loss < 0.25 * result.first_loss
    with torch.no_grad():
        assert torch.cdist(model(), centres).argmin(dim=1).tolist() == list(range(6))


def test_zero_distance_gives_neither_nan_nor_a_push():
    model = TrainablePrototypes(2, 3, generator=generator(), use_transform=False)
    start = model.vectors.detach().clone()
    fit(model, start[:1], torch.tensor([0]), epochs=1, lr=0.1)
    assert model.vectors.isfinite().all()
    np.testing.assert_array_equal(model.vectors[0].detach().numpy(), start[0].numpy())
    assert not torch.equal(model.vectors[1], start[1])  # the other prototype is pushed away as usual


def test_no_uploads_leave_the_prototypes_as_they_are():
    model = TrainablePrototypes(3, 4, generator=generator())
    before = model().detach().clone()
    assert fit(model, torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)).loss == 0.0
    assert torch.equal(model(), before)


@pytest.mark.parametrize(("num_classes", "held"), [(1, 1), (5, 1), (200, 150)])
def test_extreme_numbers_of_classes_stay_finite(num_classes, held):
    model = TrainablePrototypes(num_classes, 8, generator=generator())
    prototypes, _ = uploads(held, held, 8)
    result = fit(
        model,
        100 * prototypes,
        torch.arange(held),
        margins_C=torch.full((num_classes,), 1000.0),
        epochs=5,
    )
    assert math.isfinite(result.loss)
    assert model().isfinite().all()


def test_same_seed_same_bits_and_continuation_from_saved_weights():
    prototypes, labels = uploads(30, 5, 8)
    first, second = (TrainablePrototypes(5, 8, generator=generator()) for _ in range(2))
    for round in range(4):
        fit(first, prototypes, labels, generator=generator(round))
    for round in range(2):
        fit(second, prototypes, labels, generator=generator(round))
    resumed = TrainablePrototypes(5, 8, generator=generator(77))
    resumed.load_state_dict(second.state_dict())
    for round in range(2, 4):
        fit(resumed, prototypes, labels, generator=generator(round))
    assert torch.equal(first(), resumed())


def test_after_a_fit_autograd_works_again():
    model = TrainablePrototypes(3, 4, generator=generator())
    prototypes, labels = uploads(6, 3, 4)
    fit(model, prototypes, labels)
    model.loss_as_printed(prototypes.float(), labels, torch.zeros(3)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
