"""Forward and backward of every model of texts, signals and vectors at its real size: parameters and seconds.

    python -m benchmarks.model_zoo --models Transformer-16x16,HARCNN

Times are of one batch on this machine, as it happens to be; what matters is that all of them compute.
"""

import time

import click
import torch
from rich.table import Column, Table
from torch.nn.functional import cross_entropy

from benchmarks._common import CONSOLE
from fedsim import models
from fedsim.config import Model
from fedsim.data.inputs import InputShape, example_batch
from fedsim.models import cnn, sensors, text

NEWS, HAR, WORDS = InputShape((200,), "tokens", 32_000), InputShape((9, 1, 128), "signal"), InputShape((5000,))
TASKS = {
    **dict.fromkeys(text.MODELS, (NEWS, 4)),
    **dict.fromkeys(sensors.MODELS, (HAR, 6)),
    **dict.fromkeys(cnn.MLP_HIDDEN, (WORDS, 2)),
}


@click.command()
@click.option("--models", "chosen", default=",".join(TASKS), help="All but those of images unless named.")
@click.option("--batch-size", default=2, show_default=True)
def main(chosen: str, batch_size: int) -> None:
    """All weights must get a finite gradient that is not 0 everywhere."""
    right = (Column(heading, justify="right") for heading in ("parameters", "seconds", "gradients"))
    table = Table("model", "input", *right)
    for name in chosen.split(","):
        shape, num_classes = TASKS[name]
        torch.manual_seed(0)
        model = models.build(Model(group=name), 0, shape, num_classes).train()
        started = time.perf_counter()
        loss = cross_entropy(model(example_batch(batch_size, shape)), torch.arange(batch_size) % num_classes)
        loss.backward()
        seconds = time.perf_counter() - started
        weights = list(model.parameters())
        trained = sum(
            bool(own.grad is not None and own.grad.isfinite().all() and own.grad.any()) for own in weights
        )
        num = sum(own.numel() for own in weights)
        table.add_row(name, str(shape), f"{num:,}", f"{seconds:.2f}", f"{trained} of {len(weights)}")
        if trained < len(weights):
            raise SystemExit(f"{name}: only {trained} of {len(weights)} weights have a gradient")
    CONSOLE.print(table)


if __name__ == "__main__":
    main()
