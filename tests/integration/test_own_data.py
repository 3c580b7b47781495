"""One's own data in whole commands: an .npz, a table, a function; run, sweep, comm-cost, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import PROJECT, Command, Run, Start, bits, rows

RUN = PROJECT / "run_cluster.py"
SMALL = (
    *("--method", "fedproto", "--model-group", "MLP", "--feature-dim", "16", "--clients", "3", "--rounds", "2"),
    *("--local-epochs", "10", "--set", "cluster.server_threads=1", "--set", "train.lr=0.05", "--no-report"),
)

CODE = '''
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

def load():
    """Blobs around three corners; who calls it leaves a line."""
    with Path("calls").open("a") as file:
        file.write("called\\n")
    random = np.random.default_rng(0)
    labels = np.arange(150) % 3
    points = np.eye(3, dtype=np.float32)[labels] * 4 + random.normal(size=(150, 3)).astype(np.float32)
    whole = TensorDataset(torch.from_numpy(points), torch.from_numpy(labels))
    return torch.utils.data.Subset(whole, range(120)), torch.utils.data.Subset(whole, range(120, 150))
'''


@pytest.fixture(autouse=True)
def own_files(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = np.arange(150) % 3
    points = np.eye(3)[labels] * 4 + random.normal(size=(150, 3))
    np.savez(
        tmp_path / "images.npz", X_train=random.integers(0, 256, (150, 12, 12), np.uint8), labels_train=labels
    )
    table = [
        f"{x * 1e4:.1f},{y:.3f},{z:.5f},{'abc'[label]}" for (x, y, z), label in zip(points, labels, strict=True)
    ]
    (tmp_path / "table.csv").write_text("\n".join(["income,height,share,kind", *table]))
    (tmp_path / "data.py").write_text(CODE)


@pytest.fixture
def run(python: Start, tmp_path: Path) -> Callable[..., Run]:
    def start(*options: str, name: str = "run") -> Run:
        return Run(python(RUN, *SMALL, *options, "--out", name), tmp_path / name)

    return start


@pytest.mark.parametrize(
    "options",
    [
        ("--dataset", "images.npz", "--set", "data.image_size=6"),
        ("--dataset", "./table.csv", "--set", "data.label=kind"),
        ("--dataset", "./data.py:load"),
    ],
    ids=["npz", "csv", "code"],
)
def test_a_cluster_and_one_process_give_the_same_bits(run, tmp_path, options):
    cluster = run(*options, name="cluster").succeed()
    run(*options, "--in-process", name="oracle").succeed()
    assert bits(cluster.folder) == bits(tmp_path / "oracle")
    assert cluster.summary["audit_passed"]
    if "images.npz" not in options:  # images of noise teach nothing
        assert cluster.summary["best_accuracy"] > 0.8
    held = rows(cluster.folder / "partition.csv")
    assert sum(int(row["train"]) + int(row["test"]) for row in held) == 150


def test_code_is_run_once_for_a_whole_cluster(run, tmp_path):
    """The launcher calls it; the server and the clients are forked with what it gave."""
    run("--dataset", "./data.py:load").succeed()
    assert (tmp_path / "calls").read_text() == "called\n"
    assert not (tmp_path / "__pycache__").exists()


def test_a_config_names_own_data_too_and_a_run_without_a_name_has_one_for_its_folder(python, tmp_path):
    (tmp_path / "own.toml").write_text('[data]\ndataset = "./data.py:load"\n')
    python(RUN, *SMALL, "--config", "own.toml").succeed()
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("fedproto-data.py-load-2")


def test_a_sweep_over_own_data(python, tmp_path):
    options = SMALL[:-1]  # a sweep draws no reports
    vary = "data.dataset=./data.py:load,images.npz"
    python("-m", "nodes", "sweep", *options, "--vary", vary, "--seeds", "1", "--out", "sweep").succeed()
    names = sorted(path.name for path in (tmp_path / "sweep").iterdir() if path.is_dir())
    assert [name.rpartition("-seed1-")[0] for name in names] == ["fedproto-data.py-load", "fedproto-images.npz"]
    assert (tmp_path / "calls").read_text() == "called\n"


def test_what_own_data_cost(python):
    setting = ("--dataset", "./data.py:load", "--model-group", "MLP", "--feature-dim", "3", "--clients", "2")
    command = python("-m", "nodes", "comm-cost", *setting, "--methods", "fedproto").succeed()
    assert "data.py:load, MLP, 2 clients" in command.stdout


def test_40_clients_share_digits_and_a_line_says_how(python):
    command = python(
        RUN, "--method", "local", "--model-group", "MLP", "--clients", "40", "--rounds", "1", "--no-report"
    ).succeed()
    first, second = command.stdout.splitlines()[:2]
    assert first.startswith(
        "digits is small for 40 clients: the best Dirichlet draw at β = 0.1 left one with 11 samples"
    )
    assert second.startswith("40 clients joined")


def sentence_of(command: Command, folder: Path) -> str:
    assert command.wait() == 2, command.stdout + command.stderr
    assert command.stdout == "" and command.stderr.count("\n") == 1
    assert not (folder / "run").exists()
    return command.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--dataset", "nowhere.csv"), "there is no data set at "),
        (("--dataset", "./nowhere.py:load"), "there is no file "),
        (("--dataset", "./data.py:lod"), "data.py called 'lod'; did you mean load?"),
        (
            ("--dataset", "./broken.py:load"),
            "broken.py cannot be imported (line 2, ZeroDivisionError: division by zero)",
        ),
        (
            ("--dataset", "unlabelled.npz"),
            "holds the inputs x_train but no labels for them; add one for each sample",
        ),
        (("--dataset", "table.csv", "--set", "data.label=share"), "has text in the column kind; features must be"),
        (
            ("--dataset", "one.csv"),
            "one has nothing to tell apart: all 2 samples are of class a; give samples of two",
        ),
        (("--dataset", "digits"), "digits is a data set known by name and also your folder "),
        (("--dataset", "./data.py:load", "--set", "data.image_size=32"), "has the shape (3,); unset it."),
        (("--dataset", "images.npz", "--set", "data.label=kind"), "data.label = 'kind' names a column of a table"),
    ],
)
def test_own_data_that_cannot_be_used(python, tmp_path, options, sentence):
    (tmp_path / "broken.py").write_text("x = 1\ny = x / 0\n")
    np.savez(tmp_path / "unlabelled.npz", x_train=np.zeros((3, 2)))
    (tmp_path / "one.csv").write_text("x,label\n1,a\n2,a\n")
    (tmp_path / "digits").mkdir()
    for name in ("train.csv", "test.csv"):
        (tmp_path / "digits" / name).write_text("x,label\n1,a\n2,b\n")
    assert sentence in sentence_of(python(RUN, *SMALL, *options, "--out", "run"), tmp_path)
