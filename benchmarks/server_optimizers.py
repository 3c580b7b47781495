"""How long the server's optimizers take, against what they cannot do without and against plain versions.

    python -m benchmarks.server_optimizers [--classes 10 100 200] [--threads 1] [--repeats 5]

Trainable prototypes (FedTGP), per mini-batch of 10: beside the time of the matrix products alone, which no
implementation can avoid, and beside an nn.Module trained by autograd, torch.optim.SGD and a DataLoader. Prototype
alignment (ProtoNorm), per iteration: beside differences of all pairs in all features. That both sides compute
the same is checked before anything is timed. Repeats take turns and the best of each counts; with one thread it
is the processor's time that is measured. So other work on the machine disturbs neither side more.
"""

import argparse
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks._common import best_seconds, show
from fedsim.server_optimizers.prototype_alignment import align
from fedsim.server_optimizers.tgp import TrainablePrototypes

FEATURE_DIM, BATCH_SIZE, LR, MARGIN, PUBLISHED_EPOCHS = 512, 10, 0.01, 5.0, 100
TGP_SIZES = ((10, 100, 10), (100, 900, 1))  # classes, uploaded prototypes, epochs timed at once
PA_SIZES = (10, 100, 200)
PA_ITERATIONS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", choices=PA_SIZES, default=PA_SIZES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    title = f"Trainable prototypes, K = {FEATURE_DIM}, batch {BATCH_SIZE}: ms per step, {given.threads} thread(s)"
    headings = ("products alone", "fedsim", "÷ products", "module + DataLoader", "÷ fedsim", "s per round")
    show(title, ("classes", "prototypes", *headings), _tgp_rows(given.classes, given.repeats))
    title = f"Prototype alignment, K = {FEATURE_DIM}: ms per iteration, {given.threads} thread(s)"
    headings = ("classes", "fedsim", "all pairs in all features", "ratio")
    show(title, headings, _alignment_rows(given.classes, given.repeats))


def _tgp_rows(classes: Sequence[int], repeats: int) -> list[tuple[str, ...]]:
    rows = []
    for num_classes, num_prototypes, epochs in TGP_SIZES:
        if num_classes not in classes:
            continue
        prototypes_NK, labels_N = _uploads(num_classes, num_prototypes)
        _check_tgp(prototypes_NK, labels_N, num_classes)
        num_steps = epochs * -(-num_prototypes // BATCH_SIZE)
        ours, plain = _fedsim_model(num_classes), PlainModel(num_classes)
        products, fast, slow = best_seconds(
            [
                _products(num_classes, num_steps),
                lambda ours=ours, p=prototypes_NK, y=labels_N, e=epochs: _fit(ours, p, y, e),
                lambda plain=plain, p=prototypes_NK, y=labels_N, e=epochs: plain.fit(p, y, e),
            ],
            repeats,
        )
        rows.append(
            (
                str(num_classes),
                str(num_prototypes),
                f"{products / num_steps * 1e3:.3f}",
                f"{fast / num_steps * 1e3:.3f}",
                f"{fast / products:.2f}×",
                f"{slow / num_steps * 1e3:.3f}",
                f"{slow / fast:.2f}×",
                f"{fast / epochs * PUBLISHED_EPOCHS:.1f}",
            )
        )
    return rows


def _alignment_rows(classes: Sequence[int], repeats: int) -> list[tuple[str, ...]]:
    rows = []
    for num_classes in classes:
        start_CK = torch.randn(num_classes, FEATURE_DIM, generator=torch.Generator().manual_seed(0)) + 1.0
        _check_alignment(start_CK)
        fast, slow = best_seconds(
            [
                lambda start=start_CK: align(start, max_iterations=PA_ITERATIONS, tolerance=0.0),
                lambda start=start_CK: plain_alignment(start, PA_ITERATIONS),
            ],
            repeats,
        )
        times = (f"{seconds / PA_ITERATIONS * 1e3:.3f}" for seconds in (fast, slow))
        rows.append((str(num_classes), *times, f"{slow / fast:.1f}×"))
    return rows


def _uploads(num_classes: int, num_prototypes: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    labels_N = torch.arange(num_prototypes) % num_classes
    centres_CK = torch.randn(num_classes, FEATURE_DIM, generator=draw)
    return centres_CK[labels_N] + 0.3 * torch.randn(num_prototypes, FEATURE_DIM, generator=draw), labels_N


def _fedsim_model(num_classes: int) -> TrainablePrototypes:
    return TrainablePrototypes(num_classes, FEATURE_DIM, generator=torch.Generator().manual_seed(0))


def _fit(model: TrainablePrototypes, prototypes_NK: Tensor, labels_N: Tensor, epochs: int) -> None:
    model.fit(
        prototypes_NK,
        labels_N,
        margins_C=torch.full((len(model.vectors),), MARGIN),
        epochs=epochs,
        batch_size=BATCH_SIZE,
        lr=LR,
        generator=torch.Generator().manual_seed(2),
    )


class PlainModel(nn.Module):
    """The step as one would write it first: modules, autograd, an optimizer, a DataLoader."""

    def __init__(self, num_classes: int):
        super().__init__()
        self.embedding = nn.Embedding(num_classes, FEATURE_DIM)
        self.transform = nn.Sequential(
            nn.Linear(FEATURE_DIM, FEATURE_DIM), nn.ReLU(), nn.Linear(FEATURE_DIM, FEATURE_DIM)
        )
        self.num_classes = num_classes

    def forward(self) -> Tensor:
        return self.transform(self.embedding(torch.arange(self.num_classes)))

    def fit(self, prototypes_NK: Tensor, labels_N: Tensor, epochs: int) -> None:
        loader = DataLoader(TensorDataset(prototypes_NK, labels_N), batch_size=BATCH_SIZE, shuffle=True)
        optimizer = torch.optim.SGD(self.parameters(), lr=LR)
        for _ in range(epochs):
            for targets_BK, labels_B in loader:
                self.step(optimizer, targets_BK, labels_B)

    def step(self, optimizer: torch.optim.Optimizer, targets_BK: Tensor, labels_B: Tensor) -> None:
        outputs_CK = self()
        squares_BC = targets_BK.square().sum(dim=1, keepdim=True) + outputs_CK.square().sum(dim=1)
        distances_BC = (squares_BC - 2 * targets_BK @ outputs_CK.T).clamp_min(1e-12).sqrt()
        margins_BC = MARGIN * nn.functional.one_hot(labels_B, self.num_classes)
        loss = nn.functional.cross_entropy(-(distances_BC + margins_BC), labels_B)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _check_tgp(prototypes_NK: Tensor, labels_N: Tensor, num_classes: int) -> None:
    """One epoch from the same weights in the same order must end at the same prototypes."""
    ours, plain = _fedsim_model(num_classes), PlainModel(num_classes)
    with torch.no_grad():
        plain.embedding.weight.copy_(ours.vectors)
    plain.transform[0].load_state_dict(ours.hidden.state_dict())
    plain.transform[2].load_state_dict(ours.output.state_dict())
    _fit(ours, prototypes_NK, labels_N, 1)
    optimizer = torch.optim.SGD(plain.parameters(), lr=LR)
    order_N = torch.randperm(len(labels_N), generator=torch.Generator().manual_seed(2))
    for rows_B in order_N.split(BATCH_SIZE):
        plain.step(optimizer, prototypes_NK[rows_B], labels_N[rows_B])
    torch.testing.assert_close(ours(), plain(), rtol=1e-3, atol=1e-4)


def _products(num_classes: int, num_steps: int) -> Callable[[], None]:
    """The matrix products of a step, into buffers, with nothing between them."""
    vectors_CK, hidden_CK, grad_CK, out_CK = (torch.randn(num_classes, FEATURE_DIM) for _ in range(4))
    weight1_KK, weight2_KK = (torch.randn(FEATURE_DIM, FEATURE_DIM) for _ in range(2))
    targets_BK, out_BC = torch.randn(BATCH_SIZE, FEATURE_DIM), torch.randn(BATCH_SIZE, num_classes)
    pull_BC = torch.randn(BATCH_SIZE, num_classes)

    @torch.inference_mode()
    def run() -> None:
        for _ in range(num_steps):
            torch.mm(vectors_CK, weight1_KK.T, out=out_CK)
            torch.mm(hidden_CK, weight2_KK.T, out=out_CK)
            torch.mm(targets_BK, hidden_CK.T, out=out_BC)
            torch.mm(pull_BC.T, targets_BK, out=out_CK)
            torch.mm(grad_CK, weight2_KK, out=out_CK)
            torch.mm(grad_CK, weight1_KK, out=out_CK)
            weight2_KK.addmm_(grad_CK.T, hidden_CK, alpha=-1e-9)
            weight1_KK.addmm_(grad_CK.T, vectors_CK, alpha=-1e-9)

    return run


def plain_alignment(prototypes_CK: Tensor, iterations: int) -> Tensor:
    """Eq. 11 to 14 with a (C, C, K) tensor of differences."""
    points_CK = nn.functional.normalize(prototypes_CK, dim=1)
    velocity_CK, lr = torch.zeros_like(points_CK), 0.1
    for iteration in range(iterations):
        differences_CCK = points_CK[:, None] - points_CK[None]
        squares_CC1 = differences_CCK.square().sum(dim=2, keepdim=True)
        velocity_CK = 0.9 * velocity_CK + lr * (differences_CCK / (squares_CC1 + 1e-10)).sum(dim=1)
        points_CK = nn.functional.normalize(points_CK + velocity_CK, dim=1)
        if iteration % 10 == 0:
            lr *= 0.95
    return points_CK


def _check_alignment(start_CK: Tensor) -> None:
    ours = align(start_CK, max_iterations=PA_ITERATIONS, tolerance=0.0).prototypes_nK
    torch.testing.assert_close(ours, plain_alignment(start_CK, PA_ITERATIONS), rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    main()
