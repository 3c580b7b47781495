"""What one round of FedKTL costs its server in images: seconds and peak memory for an image of every class.

    python -m benchmarks.generators [--classes 10] [--channels 1024] [--threads 1] [--device cpu]

The embedded generator, and a StyleGAN3-T of the size of the paper's StyleGAN-XL (64×64 pixels, 0.13 billion
weights). The latter has random weights: what an image shows does not change what it costs. Each runs in a process
of its own, so that the peaks are its own.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time

import torch

from benchmarks._common import show
from fedsim.generators import load
from fedsim.generators.stylegan import StyleGAN
from fedsim.generators.stylegan.blocks import Dense, Mapping
from fedsim.generators.stylegan.stylegan3 import FourierInput, Layer, Synthesis

W_DIM, Z_DIM, NUM_LABELS = 512, 64, 1000
RESOLUTION, NUM_LAYERS, NUM_CRITICAL = 64, 14, 2
CHANNEL_BASE, MARGIN, KERNEL = 65536, 10, 3
TAPS = 6
"""Filter taps for each sample between two original ones."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[10])
    parser.add_argument("--channels", type=int, default=1024, help="most channels of a layer of the StyleGAN3-T")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--alone", metavar="GENERATOR", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(measure(given.alone, *given.classes, given.channels, given.threads, given.device)))
        return
    rows = [_in_own_process(name, num) for name in ("tiny", "stylegan") for num in given.classes]
    headings = ("images", "load", "draw", "all images", "an image", "processor time", "memory loaded", "peak")
    show(f"{given.threads} threads, {given.device}", ("generator", "weights", *headings), rows)


def _in_own_process(name: str, num_classes: int) -> list[str]:
    """The same command again, for one row; of options that are given twice the last counts."""
    options = [*sys.argv[1:], "--classes", str(num_classes), "--alone", name]
    command = [sys.executable, "-m", "benchmarks.generators", *options]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measure(name: str, num_classes: int, channels: int, threads: int, device: str) -> list[str]:
    """A row of the table."""
    torch.set_num_threads(threads)
    start = time.perf_counter()
    generator = load() if name == "tiny" else random_stylegan(torch.device(device), channels)
    loading_seconds = time.perf_counter() - start
    loaded_bytes = _peak_bytes()
    modules = [generator.network] if name == "tiny" else [generator.mapping, generator.synthesis]
    num_weights = sum(
        tensor.numel()
        for module in modules
        for name, tensor in module.state_dict().items()
        if not name.endswith("power_OI")  # follows from the weights
    )
    start = time.perf_counter()
    latents = generator.draw(num_classes, torch.Generator().manual_seed(0))
    drawing_seconds = time.perf_counter() - start
    start, processor_start = time.perf_counter(), time.process_time()
    generator.images(latents).cpu()
    images_seconds, processor_seconds = time.perf_counter() - start, time.process_time() - processor_start
    return [
        name,
        f"{num_weights / 1e6:.1f} M",
        str(num_classes),
        f"{loading_seconds:.2f} s",
        f"{drawing_seconds * 1e3:.1f} ms",
        f"{images_seconds:.2f} s",
        f"{images_seconds / num_classes * 1e3:.1f} ms",
        f"{processor_seconds / num_classes * 1e3:.1f} ms",
        f"{loaded_bytes / 2**20:.0f} MiB",
        f"{_peak_bytes() / 2**20:.0f} MiB",
    ]


def _peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def random_stylegan(device: torch.device, most_channels: int) -> StyleGAN:
    """Sizes by the rules of the official program; weights, filters and embeddings are noise."""
    # Cutoff and stop band grow geometrically up to the critically sampled layers (doubled: as sampling rates).
    growth = [min(index / (NUM_LAYERS - NUM_CRITICAL), 1) for index in range(NUM_LAYERS + 1)]
    cutoffs = [2 * (RESOLUTION / 2 / 2) ** power for power in growth]
    stop_bands = [2**2.1 * (RESOLUTION / 2 * 2**0.3 / 2**2.1) ** power for power in growth]
    rates = [2 ** math.ceil(math.log2(min(2 * stop, RESOLUTION))) for stop in stop_bands]
    sizes = [rate + 2 * MARGIN for rate in rates[:-2]] + [RESOLUTION] * 2
    channels = [round(min(CHANNEL_BASE / 2 / cutoff, most_channels)) for cutoff in cutoffs[:-1]] + [3]
    random = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    def dense(num_in: int, num_out: int, activation: str = "linear") -> Dense:
        return Dense(noise(num_out, num_in) / num_in**0.5, torch.zeros(num_out), activation)

    layers = []
    for index in range(NUM_LAYERS + 1):
        before = max(index - 1, 0)
        is_torgb = index == NUM_LAYERS
        kernel = 1 if is_torgb else KERNEL
        rate = max(rates[before], rates[index]) * (1 if is_torgb else 2)
        up, down = rate // rates[before], rate // rates[index]
        taps = [TAPS * factor if factor > 1 else 1 for factor in (up, down)]
        total = (sizes[index] - 1) * down + 1 - (sizes[before] + kernel - 1) * up + sum(taps) - 2
        low = (total + up) // 2
        layers.append(
            Layer(
                affine=dense(W_DIM, channels[before]),
                weight_OIkk=noise(channels[index], channels[before], kernel, kernel),
                bias_O=torch.zeros(channels[index]),
                magnitude=1.0,
                is_torgb=is_torgb,
                up=up,
                down=down,
                up_filter=noise(taps[0]) / taps[0] if up > 1 else None,
                down_filter=noise(taps[1]) / taps[1] if down > 1 else None,
                padding=[low, total - low] * 2,
                clamp=256.0,
                out_size=[sizes[index]] * 2,
            )
        )
    synthesis_input = FourierInput(
        affine=dense(W_DIM, 4),
        weight_CC=noise(channels[0], channels[0]),
        freqs_C2=noise(channels[0], 2),
        phases_C=noise(channels[0]),
        transform_33=torch.eye(3),
        size=[sizes[0]] * 2,
        sampling_rate=rates[0],
        bandwidth=cutoffs[0],
    )
    mapping = Mapping(
        [dense(2 * Z_DIM, W_DIM, "lrelu"), dense(W_DIM, W_DIM, "lrelu")], Z_DIM, noise(NUM_LABELS, Z_DIM), None
    )
    return StyleGAN("random", mapping, Synthesis(synthesis_input, layers, 0.25), W_DIM, device)


if __name__ == "__main__":
    main()
