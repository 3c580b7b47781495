"""Every file of benchmarks/ at toy size: it ends well and prints its table. What it times is not looked at."""

import shutil
import struct
from pathlib import Path

import pytest
from commands import PROJECT, Start

from benchmarks.compare_checkouts import TABLES, compare

TINY_IMAGES = ("--dataset", "digits", "--samples-per-class", "16", "--clients", "2", "--rounds", "1")
ONE_EPOCH = ("--model-group", "CNN1", "--local-epochs", "1", "--seeds", "1")

TOYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # Module -> its options, and words that it prints.
    "as_it_is": (
        (
            *("--out", "runs", "--methods", "fedavg", "--", "--clients", "2", "--rounds", "1", "--no-report"),
            *("--set", "data.samples_per_class=16"),
        ),
        ("| FedAvg | 0 |", "model.group = CNN1 instead of HtCNN8: FedAvg averages models"),
    ),
    "clients": (
        ("--clients", "2", "--samples-per-class", "10"),
        ("one stand-alone process", "each of 2 clients", "the kernel agrees on 2 of 2 connections"),
    ),
    "comm_cost": (
        ("--dataset", "digits", "--model-group", "CNN1", "--clients", "2", "--methods", "fedproto"),
        ("FedProto",),
    ),
    "compare_checkouts": (
        (str(PROJECT), "--methods", "fedproto", "--rounds", "1"),
        ("fedproto     the same bits\n", "1 methods, 0 differ\n"),
    ),
    "encoding_speed": (
        ("--shapes", "4x8", "40", "--repeats", "1", "--no-zstd"),
        ("4x8 float32", "int8", "topk", "1000 Mbit/s"),
    ),
    "encodings": (
        (
            *(
                "--datasets",
                "digits",
                "--samples-per-class",
                "16",
                "--methods",
                "fedproto",
                "--encodings",
                "plain",
                "int8",
            ),
            *("--clients", "2", "--rounds", "1", "--seeds", "1", "2", "--public-samples", "0"),
            *("--prototype-epochs", "1", "--zstd", "first"),
        ),
        ("float32", "int8+zstd", "2 seeds", "agrees on every connection"),
    ),
    "compute": (
        ("--clients", "2", "--model-group", "CNN1", "--rounds", "1", "--batch-size", "100", "--out", "memory.png"),
        ("2 clients: the same bits", "own", "shared", "2 of 2"),
    ),
    "clock": (
        (
            *("--methods", "local", "--links", "fibre", "--dataset", "spiral", "--samples-per-class", "20"),
            *("--clients", "2", "--rounds", "1"),
        ),
        ("The virtual clock against the relay", "local", "2 of 2", "of 2 rounds within 10 %"),
    ),
    "relay": (
        ("--clients", "2", "--mbit", "100", "1000", "--kilobytes", "10", "--delay-ms", "1"),
        ("worst off by ms", "1 beyond the relay's capacity left out"),
    ),
    "gpu_checks": ((), ("not run: no GPU",)),
    "gpu_double": (
        ("--clients", "6", "--gpus", "2", "--rounds", "1", "--work-seconds", "0.05", "--compute", "shared"),
        ("contexts alive at once                                       2  2 slots", "touched CUDA itself", "  0"),
    ),
    "feature_transformer": (("--classes", "10", "--repeats", "1"), ("Feature transformer", "a round", "512")),
    "fedktl_ablations": (
        (*TINY_IMAGES, *ONE_EPOCH, "--variants", "no_pairs"),
        ("table 7", "FedKTL", "−L^M", "24.39"),
    ),
    "fedprotokd_family": (
        (*TINY_IMAGES, *ONE_EPOCH, "--public-samples", "20", "--variants", "fedproto"),
        ("paper, server", "FedProtoKD", "FedProto "),
    ),
    "generators": (("--classes", "1", "--channels", "8"), ("processor time", "tiny", "stylegan")),
    "loading": (("--data-dir", ".", "--samples", "40"), ("fmnist: samples per second", "128")),
    "messaging": (
        ("--clients", "2", "--rounds", "2", "--blocks", "1"),
        ("bare ZeroMQ", "minimum", "the kernel agrees on 2 of 2 connections"),
    ),
    "modalities": (
        ("--sets", "table", "--methods", "fedproto,fedktl", "--clients", "2", "--rounds", "1"),
        ("fedproto", "2/2", "fedktl, table: fedktl needs images"),
    ),
    "model_zoo": (("--models", "fastText,HARCNN-s3,MLP-100"), ("16,648,708", "681,094", "10 of 10")),
    "prototypes": (("--samples", "20", "--repeats", "1"), ("loop over samples", "predict")),
    "round": (
        ("--clients", "2", "--rounds", "1", "--blocks", "1", "--epochs", "1"),
        ("bare program", "2 clients of HtCNN8 on digits"),
    ),
    "server_model": (("--models", "CNN2", "--samples", "32", "--repeats", "1"), ("CNN2", "cores")),
    "slow_links": (
        ("--mbit", "80", "--clients", "2", "--slow", "1", "--slots", "1", "--feature-dim", "300"),
        ("80 Mbit/s", "0.14 MB", "2 of 2", "same\n"),
    ),
    "slow_readers": (
        ("--clients", "3", "--silent", "1", "--megabytes", "0.5", "--rounds", "2"),
        ("3 clients, 1 of them silent", "hung up on"),
    ),
    "server_optimizers": (
        ("--classes", "10", "--repeats", "1"),
        ("Trainable prototypes", "Prototype alignment", "all pairs"),
    ),
    "spiral": (
        ("--rounds", "1", "--clients", "3", "--samples-per-class", "30", "--shown-clients", "0", "--out", "."),
        ("ProtoNorm (γ = 10)", "Dirichlet(0.1)"),
    ),
}


def test_every_benchmark_is_run_at_toy_size() -> None:
    files = {path.stem for path in (PROJECT / "benchmarks").glob("[!_]*.py")}
    assert files == {*TOYS, "check_generators", "train_tiny"}, "these two have tests of their own"


@pytest.mark.parametrize("name", TOYS)
def test_a_benchmark_ends_with_its_table(name: str, python: Start, tmp_path: Path) -> None:
    write_fashion_mnist(tmp_path)
    options, words = TOYS[name]
    printed = python("-m", f"benchmarks.{name}", *options, COLUMNS="200").succeed().stdout
    assert [word for word in words if word not in printed] == [], printed


def test_a_short_campaign_finds_no_difference(python: Start) -> None:
    """A few processes killed or stopped, a link that is cut and breaks; then all is as if left alone."""
    words = ("--process", "1", "--link", "1", "--seed", "12325")
    printed = python("-m", "benchmarks.campaign", *words, COLUMNS="200").succeed().stdout
    assert "2 results compared, 0 differences" in printed and printed.count("same bits\n") == 2


def write_fashion_mnist(folder: Path) -> None:
    """Forty grey images for training and ten for testing, in the files of the published data set."""
    for part, number in (("train", 40), ("t10k", 10)):
        images = struct.pack(">HBBIII", 0, 8, 3, number, 28, 28) + bytes(range(196)) * 4 * number
        labels = struct.pack(">HBBI", 0, 8, 1, number) + bytes(i % 10 for i in range(number))
        (folder / f"{part}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)


# ------------------------------------------------------------------------------------ what compare_checkouts finds


@pytest.fixture
def two_runs(tmp_path: Path) -> tuple[Path, Path]:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    for name in TABLES:
        (ours / name).write_text("round,accuracy\n0,0.5\n1,0.75\n")
    (ours / "final.safetensors").write_bytes(b"weights")
    shutil.copytree(ours, theirs)
    return ours, theirs


def test_equal_runs_have_the_same_bits(two_runs: tuple[Path, Path]) -> None:
    assert compare(*two_runs) == ([], [])


@pytest.mark.parametrize("name", TABLES)
def test_a_number_that_differs_is_found(two_runs: tuple[Path, Path], name: str) -> None:
    (two_runs[0] / name).write_text("round,accuracy\n0,0.5\n1,0.7500000000000001\n")
    assert compare(*two_runs) == ([f"{name}: accuracy"], [])


def test_a_row_or_a_column_that_is_gone_is_found(two_runs: tuple[Path, Path]) -> None:
    (two_runs[0] / "metrics.csv").write_text("round,accuracy\n0,0.5\n")
    (two_runs[0] / "ledger.csv").write_text("round\n0\n1\n")
    assert compare(*two_runs) == (
        ["metrics.csv: round", "metrics.csv: accuracy", "ledger.csv: accuracy is gone"],
        [],
    )


def test_a_new_column_is_named_and_is_no_difference(two_runs: tuple[Path, Path]) -> None:
    (two_runs[0] / "clients.csv").write_text("round,accuracy,ece\n0,0.5,0.1\n1,0.75,0.2\n")
    assert compare(*two_runs) == ([], ["clients.csv: ece"])


def test_other_weights_or_none_are_found(two_runs: tuple[Path, Path]) -> None:
    (two_runs[0] / "final.safetensors").write_bytes(b"other")
    assert compare(*two_runs) == (["final.safetensors"], [])
    (two_runs[0] / "final.safetensors").unlink()
    assert compare(*two_runs) == (["final.safetensors"], [])
    (two_runs[1] / "final.safetensors").unlink()
    assert compare(*two_runs) == ([], [])
