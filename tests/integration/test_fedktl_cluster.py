"""FedKTL in a cluster: its ledger to the element, and clients that never see anything of a generator."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stylegan_snapshots as snapshots
from commands import TINY, Run, Shell, Start, bits

NUM_CLIENTS, NUM_CLASSES, NUM_ROUNDS, SIDE = 4, 5, 3, 8
TINY_LATENT, SNAPSHOT_LATENT = 128, snapshots.W_DIM
MEBIBYTE = 2**20

OPTIONS = (
    *("--method", "fedktl", "--feature-dim", "16", "--rounds", str(NUM_ROUNDS)),
    *("--set", "data.samples_per_class=0", "--set", "method.server_epochs=2"),
)

# Runs the command line with two halves that also write down what is loaded in their process, and how large it is.
RUNNER = """
import json, os, re, sys
from pathlib import Path
from fedsim.methods import fedktl

def report(name):
    memory = Path("/proc/self/smaps_rollup").read_text()
    sizes = dict(re.findall(r"^(Pss|Rss): +([0-9]+) kB$", memory, re.MULTILINE))
    facts = {"modules": sorted(sys.modules), "bytes": {k: 1024 * int(v) for k, v in sizes.items()}}
    Path(f"{name}.json").write_text(json.dumps(facts))

class Client(fedktl.Client):
    def train(self, round):
        metrics = super().train(round)
        report(f"client-{self.context.client}-round-{round}")
        return metrics

class Server(fedktl.Server):
    def aggregate(self, round, uploads):
        step = super().aggregate(round, uploads)
        report(f"server-round-{round}")
        return step

fedktl.Client, fedktl.Server = Client, Server
from nodes.cli import execute
from nodes.cli.run import command
execute(command)
"""


def write_images(path: Path, channels: int) -> Path:
    """A data set whose classes are bright lines."""
    draw = np.random.default_rng(0)
    labels = np.arange(40 * NUM_CLASSES) % NUM_CLASSES
    images = draw.integers(0, 80, (len(labels), SIDE, SIDE, channels)).astype(np.uint8)
    images[np.arange(len(labels)), labels] += 150
    np.savez(path, x_train=images, y_train=labels)
    return path


# ------------------------------------------------------------------------------------------------ ledger


@pytest.mark.parametrize(
    ("channels", "options", "size"),
    [
        (1, (), NUM_CLASSES),
        (3, (), NUM_CLASSES),
        (3, ("--set", "method.etf_dim=50", "--set", "method.image_dtype=uint8"), 50),
    ],
)
def test_the_ledger_counts_what_the_paper_counts(
    channels: int,
    options: tuple[str, ...],
    size: int,
    cluster: Callable[..., Run],
    classes_held: Callable[[Run], list[int]],
    tmp_path: Path,
) -> None:
    """Up K · ΣC_i, down M · C (ch·h·w + H): section 3.3.2 and table 5."""
    dataset = write_images(tmp_path / "lines.npz", channels)
    run = cluster(*OPTIONS, "--dataset", str(dataset), *options).succeed()
    held = sum(classes_held(run))
    assert NUM_CLIENTS < held < NUM_CLIENTS * NUM_CLASSES, "clients must differ for this to say anything"
    num_pixels = channels * SIDE * SIDE
    for round in range(NUM_ROUNDS):
        assert run.booked("elements", direction="up", round=round) == size * held
    for round in range(1, NUM_ROUNDS + 1):  # with the evaluation after the last round
        down = {"direction": "down", "purpose": "method", "round": round}
        assert run.booked("elements", **down) == NUM_CLIENTS * NUM_CLASSES * (num_pixels + TINY_LATENT)
        images = run.booked("payload_bytes", payload="images", **down)
        assert images == NUM_CLIENTS * NUM_CLASSES * num_pixels * (1 if options else 4)
        assert (
            run.booked("payload_bytes", payload="latents", **down) == NUM_CLIENTS * NUM_CLASSES * 4 * TINY_LATENT
        )
    assert run.booked("elements", direction="down", round=0) == 0
    assert run.booked("elements", direction="up", round=NUM_ROUNDS) == 0
    assert run.summary["audit_passed"]


def test_a_cluster_gives_the_bits_of_the_run_in_one_process(
    cluster: Callable[..., Run], reference: Callable[..., Path]
) -> None:
    options = (*OPTIONS, "--dataset", "digits", "--set", "data.samples_per_class=12", "--participation", "0.5")
    assert bits(cluster(*options).succeed().folder) == bits(reference(*options))


# ------------------------------------------------------------------------------- clients and generators


class Watched:
    """A run whose processes have written down what they had loaded and how large they were."""

    def __init__(self, start: Start, folder: Path, generator: Path | None):
        self.folder = folder
        folder.mkdir()
        (folder / "runner.py").write_text(RUNNER)
        dataset = write_images(folder / "lines.npz", 3)
        setting = () if generator is None else ("--set", f"method.generator={generator}")
        options = (*TINY, *OPTIONS, "--dataset", str(dataset), *setting, "--out", "run")
        self.run = Run(start("runner.py", *options, cwd=folder), folder / "run").succeed()

    def facts(self, name: str) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self.folder / f"{name}-round-{NUM_ROUNDS - 1}.json").read_text())
        return facts

    def of_clients(self) -> list[dict[str, Any]]:
        return [self.facts(f"client-{client}") for client in range(NUM_CLIENTS)]


@pytest.fixture(scope="module")
def watched(
    shell: Shell, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str, Path | None], Watched]]:
    with shell.commands(tmp_path_factory.mktemp("watched")) as start:
        yield lambda name, generator: Watched(start, tmp_path_factory.mktemp("watched") / name, generator)


def of_generators(modules: list[str]) -> set[str]:
    """Generator code, and libraries that only generators use."""
    owners = ("fedsim.generators", "safetensors.torch", "diffusers", "transformers")
    return {name for name in modules if any(name == owner or name.startswith(f"{owner}.") for owner in owners)}


def test_no_client_loads_anything_of_a_generator(watched: Callable[[str, Path | None], Watched]) -> None:
    cluster = watched("embedded", None)
    assert {"fedsim.generators.tiny", "safetensors.torch"} <= of_generators(cluster.facts("server")["modules"])
    for facts in cluster.of_clients():
        assert "fedsim.methods.fedktl" in facts["modules"]
        assert of_generators(facts["modules"]) == set()


def test_clients_are_as_large_with_a_large_generator_as_with_a_small_one(
    watched: Callable[[str, Path | None], Watched], tmp_path: Path
) -> None:
    """The large one has 2.5 million more neurons of 11 weights and a bias: 120 MB."""
    extra_neurons, num_inputs = 2_500_000, snapshots.Z_DIM
    extra_bytes = 4 * extra_neurons * (num_inputs + 1 + snapshots.W_DIM)
    runs = []
    for name, hidden in (("small", 8), ("large", 8 + extra_neurons)):
        path = snapshots.write(tmp_path / f"{name}.pkl", snapshots.stylegan3(mapping_hidden=hidden))
        runs.append(watched(name, path))
    small, large = runs
    assert large.facts("server")["bytes"]["Rss"] - small.facts("server")["bytes"]["Rss"] > 0.9 * extra_bytes
    for before, after in zip(small.of_clients(), large.of_clients(), strict=True):
        assert "fedsim.generators.stylegan" not in after["modules"]
        # An inherited generator would be resident in each client as a whole, and shared by seven processes.
        assert abs(after["bytes"]["Rss"] - before["bytes"]["Rss"]) < 0.1 * extra_bytes
        assert abs(after["bytes"]["Pss"] - before["bytes"]["Pss"]) < 0.05 * extra_bytes
    difference = large.run.summary["client_pss_bytes_mean"] - small.run.summary["client_pss_bytes_mean"]
    assert abs(difference) < 0.05 * extra_bytes
    latents = large.run.booked("elements", direction="down", round=1, payload="latents")
    assert latents == NUM_CLIENTS * NUM_CLASSES * SNAPSHOT_LATENT
