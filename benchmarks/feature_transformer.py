"""How long FedKTL's server takes to train F in a round, against its matrix products alone and against autograd.

    python -m benchmarks.feature_transformer [--classes 10 100] [--repeats 5]

E_S = 100 epochs in batches of B_S = 100 over the prototypes of 20 clients; a few epochs are timed and scaled up.
`products` are the matrix products of a step into buffers, with nothing between them: what no implementation can
do without. `autograd` is the same step as a module, a loss and torch's optimizer. That both compute the same is
checked first. One thread, which is what such a fit is given.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, mse_loss, normalize, relu

from benchmarks._common import best_seconds, machine_load, show
from fedsim.server_optimizers.feature_transformer import FeatureTransformer, squared_mmd

NUM_CLIENTS, BATCH_SIZE, EPOCHS, LR, CLIP_NORM = 20, 100, 100, 0.01, 100.0


class Size(NamedTuple):
    """K = C as by default: the ETF has as many dimensions as there are classes."""

    num_classes: int
    classes_held: int
    """By each client: what Dirichlet(0.1) leaves it."""
    latent_dim: int
    epochs_timed: int

    @property
    def num_prototypes(self) -> int:
        return NUM_CLIENTS * self.classes_held

    @property
    def num_steps(self) -> int:
        return self.epochs_timed * -(-self.num_prototypes // BATCH_SIZE)


SIZES = (Size(10, 4, 128, 50), Size(10, 4, 512, 50), Size(100, 45, 128, 20), Size(100, 45, 512, 20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", choices=(10, 100), default=(10, 100))
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for size in (size for size in SIZES if size.num_classes in given.classes):
        uploads = _uploads(size)
        _check(size, *uploads)
        products, ours, plain = best_seconds(
            [
                _products(size),
                lambda size=size, uploads=uploads: _fit(_model(size), size, *uploads),
                lambda size=size, uploads=uploads: plain_fit(_model(size), size, *uploads),
            ],
            given.repeats,
        )
        milliseconds = [f"{1e3 * seconds / size.num_steps:.2f}" for seconds in (products, ours, plain)]
        rows.append(
            (
                *(str(size.num_classes), str(size.num_prototypes), str(size.latent_dim), *milliseconds),
                *(f"{ours / products:.2f}×", f"{plain / ours:.2f}×", f"{ours / size.epochs_timed * EPOCHS:.2f} s"),
            )
        )
    headings = (
        "classes",
        "prototypes",
        "H",
        "products",
        "fedsim",
        "autograd",
        "÷ products",
        "autograd ÷",
        "a round",
    )
    show(f"Feature transformer, {NUM_CLIENTS} clients: ms per step, one thread, {machine_load()}", headings, rows)


def _uploads(size: Size) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    held = [torch.randperm(size.num_classes, generator=draw)[: size.classes_held] for _ in range(NUM_CLIENTS)]
    labels_N = torch.cat(held)
    centres_CP = torch.randn(size.num_classes, size.num_classes, generator=draw)
    noise_NP = 0.3 * torch.randn(len(labels_N), size.num_classes, generator=draw)
    return normalize(centres_CP[labels_N] + noise_NP), labels_N


def _model(size: Size) -> FeatureTransformer:
    torch.manual_seed(0)
    return FeatureTransformer(size.num_classes, torch.randn(size.num_classes, size.latent_dim))


def _valid(size: Size) -> Callable[[int], Tensor]:
    """Drawn beforehand: a generator's mapping network is not what is measured."""
    latents_NH = torch.randn(size.num_prototypes, size.latent_dim, generator=torch.Generator().manual_seed(2))
    return lambda num: latents_NH


def _fit(model: FeatureTransformer, size: Size, prototypes_NP: Tensor, labels_N: Tensor) -> FeatureTransformer:
    model.fit(
        prototypes_NP,
        labels_N,
        draw_valid=_valid(size),
        epochs=size.epochs_timed,
        batch_size=BATCH_SIZE,
        lr=LR,
        clip_norm=CLIP_NORM,
        generator=torch.Generator().manual_seed(3),
    )
    return model


def plain_fit(
    model: FeatureTransformer, size: Size, prototypes_NP: Tensor, labels_N: Tensor
) -> FeatureTransformer:
    """As one would write it first."""
    order, draw_valid = torch.Generator().manual_seed(3), _valid(size)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    counts_C1 = labels_N.bincount(minlength=size.num_classes).clamp_min(1)[:, None]
    model.train()
    for _ in range(size.epochs_timed):
        rows_N, valid_NH = torch.randperm(len(labels_N), generator=order), draw_valid(len(labels_N))
        for rows_B, valid_BH in zip(rows_N.split(BATCH_SIZE), valid_NH.split(BATCH_SIZE), strict=True):
            with torch.no_grad():
                all_NP = model.hidden(prototypes_NP)
                all_NP = relu(batch_norm(all_NP, None, None, model.norm.weight, model.norm.bias, training=True))
                sums_CP = torch.zeros(size.num_classes, all_NP.shape[1]).index_add_(0, labels_N, all_NP)
                targets_CH = model.output(sums_CP / counts_C1)
            latents_BH = model(prototypes_NP[rows_B])
            loss = squared_mmd(latents_BH, valid_BH) + mse_loss(latents_BH, targets_CH[labels_N[rows_B]])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
    return model.eval()


def _check(size: Size, prototypes_NP: Tensor, labels_N: Tensor) -> None:
    """One epoch from the same weights in the same order must end at the same latents. In double precision: Adam
    makes a whole step of a gradient that is nothing but rounding."""
    short, prototypes_NP = size._replace(epochs_timed=1), prototypes_NP.double()
    torch.set_default_dtype(torch.float64)
    ours, plain = (fit(_model(short), short, prototypes_NP, labels_N) for fit in (_fit, plain_fit))
    torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(ours(prototypes_NP), plain(prototypes_NP), rtol=1e-9, atol=1e-9)


def _products(size: Size) -> Callable[[], None]:
    num_classes, latent_dim, num_prototypes = size.num_classes, size.latent_dim, size.num_prototypes
    batch_size = min(BATCH_SIZE, num_prototypes)
    prototypes_NP, hidden_NP = (torch.randn(num_prototypes, num_classes) for _ in range(2))
    batch_BP, active_BP, grad_BP = (torch.randn(batch_size, num_classes) for _ in range(3))
    means_CP, targets_CH = torch.randn(num_classes, num_classes), torch.randn(num_classes, latent_dim)
    weight1_PP, grad1_PP = (torch.randn(num_classes, num_classes) for _ in range(2))
    weight2_HP, grad2_HP = (torch.randn(latent_dim, num_classes) for _ in range(2))
    latents_BH, both_2BH = torch.randn(batch_size, latent_dim), torch.randn(2 * batch_size, latent_dim)
    slopes_B2B = torch.randn(batch_size, 2 * batch_size)

    @torch.inference_mode()
    def run() -> None:
        for _ in range(size.num_steps):
            torch.mm(prototypes_NP, weight1_PP.T, out=hidden_NP)
            torch.mm(means_CP, weight2_HP.T, out=targets_CH)
            torch.mm(active_BP, weight2_HP.T, out=latents_BH)
            torch.mm(latents_BH, both_2BH.T, out=slopes_B2B)
            torch.mm(slopes_B2B, both_2BH, out=latents_BH)
            torch.mm(latents_BH.T, active_BP, out=grad2_HP)
            torch.mm(latents_BH, weight2_HP, out=grad_BP)
            torch.mm(grad_BP.T, batch_BP, out=grad1_PP)

    return run


if __name__ == "__main__":
    main()
