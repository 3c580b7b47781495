"""FedKTL's tensor work: angles of the ETF, ArcFace as loops, images against Pillow, noise."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from fedsim.equations.etf import arcface_loss, fit_images, simplex_etf, to_bytes, with_noise


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --------------------------------------------------------------------------------------------------- ETF


@pytest.mark.parametrize(
    ("num_classes", "dim"), [(2, 1), (2, 2), (3, 2), (10, 9), (10, 10), (10, 500), (100, 100), (102, 1000)]
)
def test_etf_has_unit_vectors_at_equal_angles_as_wide_as_possible(num_classes, dim):
    etf = simplex_etf(num_classes, dim, generator())
    assert etf.shape == (num_classes, dim) and etf.dtype == torch.float32
    cosines = etf.double().numpy() @ etf.double().numpy().T
    expected = np.full((num_classes, num_classes), -1 / (num_classes - 1))
    np.fill_diagonal(expected, 1.0)
    np.testing.assert_allclose(cosines, expected, atol=2e-7)
    np.testing.assert_allclose(etf.double().sum(dim=0).numpy(), 0, atol=1e-6)


def test_etf_is_of_the_form_in_the_paper():
    """V = √(C/(C−1)) U (I − 11ᵀ/C) for some U with orthonormal columns: then U is V without its common scale, plus
    any unit vector orthogonal to all of V in the direction of 1."""
    num, dim = 6, 9
    etf = simplex_etf(num, dim, generator()).double().numpy()
    outside = np.linalg.svd(etf)[2][-1]  # orthogonal to the six vectors, which span five dimensions
    u = (etf / math.sqrt(num / (num - 1)) + outside / math.sqrt(num)).T  # (dim, num)
    np.testing.assert_allclose(u.T @ u, np.eye(num), atol=1e-6)
    rebuilt = math.sqrt(num / (num - 1)) * u @ (np.eye(num) - 1 / num)
    np.testing.assert_allclose(rebuilt.T, etf, atol=1e-6)


def test_etf_is_turned_by_the_seed_alone():
    torch.testing.assert_close(simplex_etf(5, 7, generator(1)), simplex_etf(5, 7, generator(1)), rtol=0, atol=0)
    assert (simplex_etf(5, 7, generator(1)) - simplex_etf(5, 7, generator(2))).abs().max() > 0.1


# ----------------------------------------------------------------------------------------------- ArcFace


def arcface_by_loops(cosines, labels, scale, margin) -> float:
    """Eq. 1, one sample after the other."""
    total = 0.0
    for row, label in zip(cosines, labels, strict=True):
        own = math.exp(scale * math.cos(math.acos(row[label]) + margin))
        others = sum(math.exp(scale * value) for c, value in enumerate(row) if c != label)
        total -= math.log(own / (own + others))
    return total / len(labels)


@pytest.mark.parametrize(("scale", "margin"), [(64.0, 0.5), (1.0, 0.0), (8.0, 2.0)])
def test_arcface_is_equation_1(scale, margin):
    cosines = np.random.default_rng(0).uniform(-0.95, 0.95, (7, 4))
    labels = [0, 1, 2, 3, 3, 1, 0]
    ours = arcface_loss(torch.from_numpy(cosines), torch.tensor(labels), scale=scale, margin=margin)
    assert ours.item() == pytest.approx(arcface_by_loops(cosines, labels, scale, margin), rel=1e-9)


def test_without_scale_and_margin_it_is_the_contrastive_loss_of_equation_6():
    cosines = np.random.default_rng(1).uniform(-1, 1, (5, 3))
    shares = np.exp(cosines) / np.exp(cosines).sum(axis=1, keepdims=True)
    labels = [0, 1, 2, 0, 1]
    expected = -np.log(shares[np.arange(5), labels]).mean()
    ours = arcface_loss(torch.from_numpy(cosines), torch.tensor(labels), scale=1.0, margin=0.0)
    assert ours.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("cosine", [1.0, -1.0, 1.0 + 1e-6])
def test_the_gradient_is_finite_where_the_angle_has_no_derivative(cosine):
    outputs = torch.tensor([[cosine, -0.2, 0.1]], requires_grad=True)
    loss = arcface_loss(outputs, torch.tensor([0]), scale=64.0, margin=0.5)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(outputs.grad).all()


def test_the_gradient_is_that_of_the_formula_elsewhere():
    cosines = torch.tensor([[0.3, -0.2], [0.9, 0.1]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1])
    assert torch.autograd.gradcheck(lambda c: arcface_loss(c, labels, scale=4.0, margin=0.5), cosines)


# ------------------------------------------------------------------------------------------------ images


def test_colour_becomes_grey_and_grey_becomes_three_channels():
    colour = torch.tensor([1.0, 0.5, 0.0])[None, :, None, None].expand(2, 3, 4, 4)
    grey = fit_images(colour, (1, 4, 4))
    assert grey.shape == (2, 1, 4, 4)
    np.testing.assert_allclose(grey.numpy(), 0.299 + 0.587 / 2, rtol=1e-6)
    back = fit_images(grey, (3, 4, 4))
    assert back.shape == (2, 3, 4, 4)
    torch.testing.assert_close(back[:, 0], back[:, 2])


@pytest.mark.parametrize(
    ("shape", "cut"),
    [((4, 8), np.s_[:, 2:6]), ((9, 4), np.s_[2:6, :]), ((4, 4), np.s_[:, :])],
)
def test_what_covers_the_size_is_cut_around_the_centre(shape, cut):
    image = torch.rand(1, 1, *shape, generator=generator())
    fitted = fit_images(image, (1, 4, 4))
    np.testing.assert_array_equal(fitted[0, 0].numpy(), image[0, 0].numpy()[cut])


@pytest.mark.parametrize(("size", "target"), [(64, (32, 32)), (32, (28, 28)), (50, (20, 30))])
def test_images_are_shrunk_as_pillow_does_it(size, target):
    pixels = np.random.default_rng(3).integers(0, 256, (size, size), np.uint8)
    side = max(target)
    shrunk = np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BILINEAR), np.float64)
    top, left = (side - target[0]) // 2, (side - target[1]) // 2
    expected = shrunk[top : top + target[0], left : left + target[1]]
    fitted = fit_images(torch.from_numpy(pixels)[None, None] / 255, (1, *target))
    assert fitted.shape == (1, 1, *target) and fitted.is_contiguous()
    np.testing.assert_allclose(fitted[0, 0].numpy() * 255, expected, atol=1.01)  # Pillow rounds twice


def test_bytes():
    values = np.array([-1.0, 1.0, 0.0, -3.0, 3.0, 2 * 77 / 255 - 1], np.float32)
    assert to_bytes(values).tolist() == [0, 255, 128, 0, 255, 77]
    levels = np.arange(256)
    np.testing.assert_array_equal(to_bytes((levels / 127.5 - 1).astype(np.float32)), levels)


def test_noise_fades_and_spreads():
    values = torch.full((200, 300), 3.0)
    noisy = with_noise(values, 0.05, 0.2, generator())
    assert noisy.mean().item() == pytest.approx(2.4, abs=1e-3)
    assert noisy.std().item() == pytest.approx(0.05, rel=0.02)
