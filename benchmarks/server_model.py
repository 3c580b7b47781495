"""How much the server's model gains from all cores, which it has to itself while the clients wait.

    python -m benchmarks.server_model [--models CNN2,ResNet8,ResNet34] [--samples 320] [--repeats 3]

Images of 3 x 32 x 32: ms for each mini-batch of 32 with one thread and with all, which take turns, the best of
each. Cores are the processors' seconds over the clock's, with all threads. `a round` is that of FedProtoKD's
published setting, also with all: 10 epochs over 2,500 public samples.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks._common import machine_load, show
from fedsim import assembly, config
from fedsim.data import Federation
from fedsim.learning.stopwatch import Spent
from nodes.launchers.processes import cores

BATCH_SIZE, PUBLISHED_SAMPLES, PUBLISHED_EPOCHS = 32, 2500, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="CNN2,ResNet8,ResNet34")
    parser.add_argument("--samples", type=int, default=320)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        dataset = _random_images(Path(folder) / "images.npz", 2 * given.samples)
        for model in given.models.split(","):
            one, every = _best_lessons(model, dataset, given.samples, (1, len(cores())), given.repeats)
            steps = -(-given.samples // BATCH_SIZE)
            published = every.seconds / steps * -(-PUBLISHED_SAMPLES // BATCH_SIZE) * PUBLISHED_EPOCHS
            times = (f"{spent.seconds / steps * 1e3:.1f}" for spent in (one, every))
            ratio = f"{one.seconds / every.seconds:.2f}×"
            rows.append((model, *times, ratio, f"{every.cpu_seconds / every.seconds:.2f}", f"{published:.0f} s"))
    headings = ("model", "1 thread", f"{len(cores())} threads", "ratio", "cores", "a round")
    show(f"The server's model, ms for a batch of {BATCH_SIZE}, {machine_load()}", headings, rows)


def _best_lessons(
    model: str, dataset: Path, num_samples: int, threads: tuple[int, ...], repeats: int
) -> list[Spent]:
    """The quickest epoch with each number of threads; the first of each warms up."""
    experiment = config.build(
        [
            {
                "run": {"clients": 1},
                "data": {"dataset": str(dataset), "partition": "iid", "public_samples": num_samples},
                "method": {"name": "fedprotokd", "server_model": model, "server_epochs": 1},
            }
        ]
    )
    pupil = assembly.make_server(experiment, Federation(experiment)).pupil
    rows_k = torch.arange(num_samples)
    taken: dict[int, list[Spent]] = {number: [] for number in threads}
    for _ in range(repeats + 1):
        for number in threads:
            torch.set_num_threads(number)
            pupil.learn(0, _loss, rows_k)
            taken[number].append(pupil.context.stopwatch.take()["server model"])
    return [min(spent[1:], key=lambda lesson: lesson.seconds) for spent in taken.values()]


def _loss(logits_BC: Tensor, features_BK: Tensor, rows_B: Tensor) -> Tensor:
    """Little work of its own: what is timed is the model."""
    return logits_BC.square().mean() + features_BK.square().mean()


def _random_images(path: Path, num: int) -> Path:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (num, 32, 32, 3), dtype=np.uint8)
    np.savez(path, x_train=images, y_train=np.arange(num) % 10)
    return path


if __name__ == "__main__":
    main()
