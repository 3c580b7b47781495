"""The command that checks a folder of snapshots notices what it is there to notice."""

import sys

import numpy as np
import pytest
import stylegan_snapshots as snapshots
import torch

from benchmarks import check_generators as check
from fedsim.generators import load


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """One network with the arrays that it gives, and a file that must be refused."""
    path = snapshots.write(tmp_path / "good.pkl", snapshots.stylegan3(num_labels=3))
    random = torch.Generator().manual_seed(0)
    given = {
        "z": torch.randn(4, snapshots.Z_DIM, generator=random),
        "c": torch.eye(3)[[2, 0, 1, 1]],
        "w_given": torch.randn(2, snapshots.W_DIM, generator=random),
        "ws_mixed": torch.randn(1, 4, snapshots.W_DIM, generator=random),
        "transform": torch.tensor([[1.5, 0, 0.1], [0.2, 1, 0], [0, 0, 1]]),
    }
    arrays = given | check.compute(load(path), given)
    np.savez(tmp_path / "good.expected.npz", **{name: array.numpy() for name, array in arrays.items()})
    (tmp_path / "broken.pkl").write_bytes(path.read_bytes()[:500])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["check", str(tmp_path)])
    return tmp_path


def change(folder, name: str, value: float) -> None:
    path = folder / "good.expected.npz"
    arrays = dict(np.load(path))
    arrays[name] = arrays[name] * value
    np.savez(path, **arrays)


def test_everything_as_expected(folder, capsys):
    assert check.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("broken                   ok    refused: broken.pkl is not a StyleGAN snapshot")
    assert lines[1].startswith("good                     ok    w 0.0e+00  image 0.0e+00")
    assert lines[2] == "2 of 2 as expected."


@pytest.mark.parametrize(
    "name", ["w", "image", "ws_psi07_cutoff3", "image_given", "image_mixed", "image_transform"]
)
def test_every_array_is_compared(folder, capsys, name):
    change(folder, name, 1.001)
    assert check.main() == 1
    assert f"worst 1.0e-03 ({name})" in capsys.readouterr().out


def test_rounding_is_no_failure(folder):
    change(folder, "image", 1.00001)
    assert check.main() == 0


def test_a_network_without_expectations_should_have_been_refused(folder, capsys):
    (folder / "good.expected.npz").unlink()
    assert check.main() == 1
    assert "was read, should have been refused" in capsys.readouterr().out


def test_an_empty_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["check", str(tmp_path)])
    assert check.main() == 2
    assert "there is no .pkl file" in capsys.readouterr().err
