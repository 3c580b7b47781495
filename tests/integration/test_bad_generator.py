"""FedKTL with a generator that cannot serve: one sentence before any client starts, and nothing is left behind."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import stylegan_snapshots as snapshots
from commands import PROJECT, TINY, Start

NUM_CLASSES = 5


@pytest.fixture
def complaint(python: Start, tmp_path: Path) -> Callable[..., str]:
    """`complaint("method.generator=x", side=8)`: what a run with clients' images of this size says."""

    def run(*settings: str, side: int = 8, flags: tuple[str, ...] = ()) -> str:
        labels = np.arange(40 * NUM_CLASSES) % NUM_CLASSES
        np.savez(tmp_path / "grey.npz", x_train=np.zeros((len(labels), side, side), np.uint8), y_train=labels)
        before = sorted(tmp_path.rglob("*"))
        words = [word for setting in settings for word in ("--set", setting)]
        options = (*TINY, "--method", "fedktl", "--dataset", "./grey.npz", *words, *flags, "--out", "run")
        command = python(PROJECT / "run_cluster.py", *options)
        assert command.wait() == 2, command.stdout + command.stderr
        assert not command.left() and sorted(tmp_path.rglob("*")) == before
        assert command.stdout == "" and command.stderr.count("\n") == 1
        return command.stderr.removeprefix("error: ").rstrip("\n")

    return run


def pipeline(folder: Path, **changes: object) -> None:
    """A Stable Diffusion folder with empty parts."""
    parts = {name: ["diffusers", "Part"] for name in ("unet", "vae", "scheduler", "text_encoder", "tokenizer")}
    for name in parts:
        (folder / name).mkdir(parents=True)
    index = {"_class_name": "StableDiffusionPipeline", **parts, **changes}
    (folder / "model_index.json").write_text(json.dumps(index))


def test_no_such_file(complaint: Callable[..., str]) -> None:
    for name in ("nowhere.pkl", "nowhere/at/all", "tinny"):
        assert complaint(f"method.generator={name}") == (
            f"there is no generator at {name}; give a StyleGAN .pkl, a Stable Diffusion folder, or tiny."
        )


def test_a_run_in_one_process_says_the_same(complaint: Callable[..., str]) -> None:
    sentence = complaint("method.generator=nowhere.pkl", flags=("--in-process",))
    assert sentence.startswith("there is no generator at nowhere.pkl; ")


def test_not_a_generator(complaint: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert complaint("method.generator=notes.txt").startswith("notes.txt is not a generator; give a StyleGAN .pkl")
    (tmp_path / "noise.pkl").write_bytes(b"no pickle at all")
    assert complaint("method.generator=noise.pkl").startswith("noise.pkl ")
    (tmp_path / "empty.pkl").write_bytes(b"")
    assert complaint("method.generator=empty.pkl").startswith("empty.pkl ")
    snapshots.write(tmp_path / "other.pkl", snapshots.Network("Discriminator"))
    assert "none of StyleGAN2, StyleGAN3 and StyleGAN-XL" in complaint("method.generator=other.pkl")


def test_wrong_layout_of_diffusers(complaint: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert complaint("method.generator=empty").startswith(
        "the folder empty is not a generator, it has no model_index.json; give the top folder of a Stable"
    )
    pipeline(tmp_path / "flux", _class_name="FluxPipeline")
    assert complaint("method.generator=flux") == (
        "flux/model_index.json describes 'FluxPipeline', only a StableDiffusionPipeline can be used."
    )
    pipeline(tmp_path / "half")
    (tmp_path / "half" / "vae").rmdir()
    assert complaint("method.generator=half") == "the Stable Diffusion folder half is incomplete, it lacks vae."


def test_a_generator_smaller_than_the_clients_images(complaint: Callable[..., str], tmp_path: Path) -> None:
    snapshots.write(tmp_path / "small.pkl", snapshots.stylegan3())
    assert complaint("method.generator=small.pkl", side=9) == (
        "the generator small.pkl makes images of 8x8 pixels, but the clients' are 9x9; "
        "choose a larger one with method.generator."
    )
    assert complaint(side=33).startswith(
        "the generator tiny makes images of 32x32 pixels, but the clients' are 33x33"
    )


def test_too_few_dimensions_for_the_classifier(complaint: Callable[..., str]) -> None:
    assert complaint(f"method.etf_dim={NUM_CLASSES - 2}") == (
        "method.etf_dim = 3 is too small for 5 classes; give at least 4, or 0 for 5."
    )


def test_more_classes_than_labels(complaint: Callable[..., str], tmp_path: Path) -> None:
    snapshots.write(tmp_path / "four.pkl", snapshots.stylegan3(num_labels=NUM_CLASSES - 1, family="xl"))
    snapshots.write(tmp_path / "none.pkl", snapshots.stylegan3())
    assert complaint("method.pairs_from=labels", "method.generator=four.pkl") == (
        "the task has 5 classes but the generator four.pkl has only 4 labels; choose a generator with at least 5."
    )
    assert complaint("method.pairs_from=labels", "method.generator=none.pkl").startswith(
        "the generator none.pkl is unconditional, it cannot be asked for images of a class; choose a conditional"
    )


def test_data_that_are_not_images(python: Start) -> None:
    command = python(PROJECT / "run_cluster.py", *TINY, "--method", "fedktl")
    assert command.wait() == 2 and command.stderr.count("\n") == 1
    assert command.stderr.startswith("error: fedktl needs images, but a sample of this data set is 2 numbers; ")
