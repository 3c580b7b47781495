"""ACTSP: Eq. 5 to 7 of FedProtoKD as plain loops, degenerate numbers of classes, and what persists."""

import math

import numpy as np
import pytest
import torch

from fedsim.equations.class_vectors import ClassVectors
from fedsim.server_optimizers.actsp import ServerPrototypes, classwise_margins
from fedsim.server_optimizers.tgp import TrainablePrototypes

LINE = np.array([[0.0], [1.0], [5.0], [12.0]], np.float32)  # the nearest are at 1, 1, 4 and 7


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def margins_by_loops(centres: dict[int, np.ndarray], num_classes: int, zeta: float) -> list[float]:
    """Eq. 6, class by class."""
    margins = []
    for c in range(num_classes):
        if c not in centres:
            margins.append(math.nan)
            continue
        candidates = [zeta]
        for other, centre in centres.items():
            if other != c:
                candidates.append(math.dist(centres[c], centre))
        margins.append(min(candidates))
    return margins


def loss_by_loops(uploaded, labels, prototypes, margins, sign) -> float:
    """Eq. 7 with exponents −Δ + sign · ξ; the sum over uploads is a mean."""
    total = 0.0
    for own, label in zip(uploaded, labels, strict=True):
        near = math.exp(-math.dist(own, prototypes[label]) + sign * margins[label])
        far = sum(math.exp(-math.dist(own, other)) for c, other in enumerate(prototypes) if c != label)
        total -= math.log(near / (near + far))
    return total / len(labels)


@pytest.mark.parametrize("zeta", [100.0, 2.5])
def test_each_class_has_the_distance_to_its_nearest_neighbour(zeta):
    centres = ClassVectors.from_rows(LINE, np.array([0, 1, 2, 4]), 5)  # class 3 is absent and is no neighbour
    expected = [min(1, zeta), min(1, zeta), min(4, zeta), math.nan, min(7, zeta)]
    np.testing.assert_array_equal(classwise_margins(centres, zeta).numpy(), np.array(expected, np.float32))


@pytest.mark.parametrize(("zeta", "largest"), [(100.0, 7.0), (2.5, 2.5)])
def test_the_variant_has_the_largest_for_every_class(zeta, largest):
    centres = ClassVectors.from_rows(LINE, np.array([0, 1, 2, 4]), 5)
    expected = [largest, largest, largest, math.nan, largest]
    np.testing.assert_array_equal(classwise_margins(centres, zeta, "max").numpy(), np.array(expected, np.float32))


@pytest.mark.parametrize("kind", ["class", "max"])
def test_a_single_class_has_nobody_near(kind):
    one = ClassVectors.from_rows(np.ones((1, 3), np.float32), np.array([1]), 3)
    np.testing.assert_array_equal(classwise_margins(one, 42.0, kind).numpy(), [math.nan, 42.0, math.nan])
    assert classwise_margins(ClassVectors.empty(3, 2), 42.0, kind).isnan().all()


def test_centres_that_coincide_have_no_margin():
    same = ClassVectors.from_rows(np.ones((3, 4), np.float32), np.arange(3), 3)
    assert classwise_margins(same, 50.0).tolist() == [0.0, 0.0, 0.0]


def some_uploads(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two or three prototypes of classes 0, 1, 3 and 4 of five; class 2 is nobody's."""
    labels = torch.tensor([0, 1, 3, 4, 0, 1, 3, 4, 0, 4])
    return 3 * torch.randn(len(labels), 3, generator=generator(seed)), labels


def update(prototypes, uploaded, labels, **changes):
    settings = {
        "margin": "class",
        "limit": 50.0,
        "printed_sign": False,
        "keep_absent": True,
        "epochs": 1,
        "batch_size": 100,
        "lr": 0.01,
        "generator": generator(5),
    }
    return prototypes.update(uploaded, labels, **(settings | changes))


@pytest.mark.parametrize("printed", [False, True])
@pytest.mark.parametrize("zeta", [50.0, 1.5])
@pytest.mark.parametrize("seed", range(4))
def test_margins_and_loss_are_equations_6_and_7(seed, zeta, printed):
    uploaded, labels = some_uploads(seed)
    rows = uploaded.numpy().astype(np.float64)
    centres = {int(c): rows[labels.numpy() == c].mean(axis=0) for c in labels.unique()}
    margins = margins_by_loops(centres, 5, zeta)
    prototypes = ServerPrototypes(5, 3, generator=generator())
    start = prototypes.latest_CK.numpy().astype(np.float64)
    result = update(prototypes, uploaded, labels, limit=zeta, printed_sign=printed)
    np.testing.assert_allclose(result.margins_C.numpy(), margins, rtol=1e-5)
    # All uploads are one batch, so the only loss is that of the prototypes before their first step.
    expected = loss_by_loops(rows, labels.tolist(), start, margins, sign=1 if printed else -1)
    assert result.fit.first_loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("printed", [False, True])
def test_an_update_is_sgd_on_equation_7_as_printed(printed):
    uploaded, labels = some_uploads(6)
    ours, theirs = (ServerPrototypes(5, 3, generator=generator()) for _ in range(2))
    result = update(ours, uploaded, labels, printed_sign=printed, epochs=3, batch_size=4, lr=0.05)
    optimizer, order = torch.optim.SGD(theirs.parameters(), lr=0.05), generator(5)
    margins = result.margins_C.nan_to_num(nan=0.0)
    for _ in range(3):
        for rows in torch.randperm(len(labels), generator=order).split(4):
            optimizer.zero_grad()
            theirs.loss_as_printed(uploaded[rows], labels[rows], margins if printed else -margins).backward()
            optimizer.step()
    present = [0, 1, 3, 4]
    torch.testing.assert_close(ours.latest_CK[present], theirs.trainable().detach()[present], rtol=1e-4, atol=1e-5)


def test_equation_7_as_printed_by_loops():
    uploaded, labels = some_uploads(7)
    prototypes, margins = ServerPrototypes(5, 3, generator=generator()), [1.0, 0.5, 9.0, 2.0, 3.0]
    expected = loss_by_loops(uploaded.tolist(), labels.tolist(), prototypes.latest_CK.tolist(), margins, sign=1)
    loss = prototypes.loss_as_printed(uploaded, labels, torch.tensor(margins))
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_the_printed_sign_rewards_the_own_class():
    uploaded, labels = some_uploads(0)
    losses = [
        update(
            ServerPrototypes(5, 3, generator=generator()), uploaded, labels, printed_sign=printed
        ).fit.first_loss
        for printed in (True, False)
    ]
    assert losses[0] < losses[1]


@pytest.mark.parametrize("kind", ["class", "max"])
def test_training_is_fedtgp_s_with_these_margins(kind):
    uploaded, labels = some_uploads(1)
    prototypes = ServerPrototypes(5, 3, generator=generator())
    alone = TrainablePrototypes(5, 3, generator=generator())
    for round in range(2):
        result = update(
            prototypes, uploaded, labels, margin=kind, epochs=3, batch_size=4, generator=generator(round)
        )
        alone.fit(
            uploaded,
            labels,
            margins_C=result.margins_C.nan_to_num(nan=123.0),  # nobody has the absent class: any number will do
            epochs=3,
            batch_size=4,
            lr=0.01,
            generator=generator(round),
        )
    present = [0, 1, 3, 4]
    np.testing.assert_array_equal(prototypes.latest_CK[present].numpy(), alone().detach()[present].numpy())


def test_an_absent_class_keeps_its_prototype_or_is_pushed():
    uploaded, labels = some_uploads(2)
    keeping, pushing = (ServerPrototypes(5, 3, generator=generator()) for _ in range(2))
    start = keeping.latest_CK.clone()
    update(keeping, uploaded, labels, keep_absent=True)
    update(pushing, uploaded, labels, keep_absent=False)
    assert torch.equal(keeping.latest_CK[2], start[2])
    assert not torch.equal(pushing.latest_CK[2], start[2])
    present = [0, 1, 3, 4]
    assert torch.equal(keeping.latest_CK[present], pushing.latest_CK[present])


def test_no_uploads_change_nothing():
    prototypes = ServerPrototypes(5, 3, generator=generator())
    start = prototypes.latest_CK.clone()
    result = update(prototypes, torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    assert result.margins_C.isnan().all() and result.fit.loss == 0.0
    assert torch.equal(prototypes.latest_CK, start)


def test_classes_near_each_other_end_nearer_than_with_one_large_margin():
    """Two classes close together, two far away: the largest margin drives the close ones apart as well."""
    centres = torch.zeros(4, 16)
    centres[1, 0], centres[2, 1], centres[3, 2] = 2.0, 20.0, 20.0
    labels = torch.arange(4).repeat(5)
    gaps = {}
    for kind in ("class", "max"):
        prototypes = ServerPrototypes(4, 16, generator=generator())
        result = update(prototypes, centres[labels], labels, margin=kind, epochs=200, batch_size=10)
        assert result.fit.loss < result.fit.first_loss
        gaps[kind] = float((prototypes.latest_CK[0] - prototypes.latest_CK[1]).norm())
    assert gaps["class"] < gaps["max"]


def test_a_restored_copy_goes_on_with_the_same_bits():
    uploaded, labels = some_uploads(3)
    whole, first = (ServerPrototypes(5, 3, generator=generator()) for _ in range(2))
    for round in range(2):
        update(whole, uploaded, labels, generator=generator(round))
    update(first, uploaded, labels, generator=generator(0))
    second = ServerPrototypes(5, 3, generator=generator(99))
    second.load_state_dict(first.state_dict())
    update(second, uploaded, labels, generator=generator(1))
    assert torch.equal(second.latest_CK, whole.latest_CK)
