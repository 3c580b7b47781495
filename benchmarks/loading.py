"""Samples per second: our batches against torchvision's data set with a DataLoader, for the same batches.

    python -m benchmarks.loading [--dataset fmnist] [--samples 6000]

Both sides run on one core and deliver float32 batches with the same transforms; that the batches are equal to
the last bit is checked before anything is timed. Needs Fashion-MNIST or MNIST.
"""

import argparse
import gzip
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from benchmarks._common import show
from fedsim.compat import import_torchvision
from fedsim.data import Subset, sources, store

BATCH_SIZES = (10, 32, 128)
REPEATS = 3
Batches = Callable[[], Iterable[tuple[torch.Tensor, torch.Tensor]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", choices=["fmnist", "mnist"], default="fmnist")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--samples", type=int, default=6000)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dataset = store.open_dataset(arguments.dataset, arguments.data_dir).dataset
    rows = np.random.default_rng(0).permutation(dataset.num_train)[: arguments.samples]
    table = []
    with tempfile.TemporaryDirectory() as folder:
        theirs = _torchvision_subset(arguments.dataset, arguments.data_dir, Path(folder), rows)
        ours = Subset(dataset, rows)
        for size in BATCH_SIZES:
            loader = torch.utils.data.DataLoader(theirs, batch_size=size, num_workers=0)
            _check_equal(loader, ours.batches(size))
            slow = _samples_per_second(lambda loader=loader: loader, len(rows))
            fast = _samples_per_second(lambda size=size: ours.batches(size), len(rows))
            table.append((str(size), f"{slow:,.0f}", f"{fast:,.0f}", f"{fast / slow:.0f}×"))
    headings = ("batch", "torchvision + DataLoader", "fedsim", "ratio")
    show(f"{arguments.dataset}: samples per second, one core", headings, table)


def _torchvision_subset(
    name: str, data_dir: str, folder: Path, rows: np.ndarray
) -> torch.utils.data.Dataset[tuple[torch.Tensor, int]]:
    """torchvision's own class on the same files; it wants them unpacked in a folder of its own."""
    torchvision = import_torchvision()
    kind = {"fmnist": "FashionMNIST", "mnist": "MNIST"}[name]
    raw = folder / kind / "raw"
    raw.mkdir(parents=True)
    for path in sources.locate(name, data_dir).files:
        content = path.read_bytes()
        is_packed = path.suffix == ".gz"
        (raw / path.name.removesuffix(".gz")).write_bytes(gzip.decompress(content) if is_packed else content)
    transforms = torchvision.transforms
    steps = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,), (0.5,))])
    whole = getattr(torchvision.datasets, kind)(folder, train=True, transform=steps)
    return torch.utils.data.Subset(whole, rows.tolist())


def _check_equal(
    theirs: Iterable[tuple[torch.Tensor, torch.Tensor]], ours: Iterable[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    for (their_x, their_y), (our_x, our_y) in zip(theirs, ours, strict=True):
        if not (torch.equal(their_x, our_x) and torch.equal(their_y, our_y)):
            raise SystemExit("the two sides gave different batches")


def _samples_per_second(batches: Batches, num_samples: int) -> float:
    """The best of a few passes: what else the machine does can only slow a pass down."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _batch in batches():
            pass
        seconds.append(time.perf_counter() - start)
    return num_samples / min(seconds)


if __name__ == "__main__":
    main()
