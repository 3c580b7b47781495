import shlex

import pytest
from click.testing import CliRunner, Result

from fedsim.errors import UserError
from nodes.cli.data import _ranges, command


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")


def run(line: str) -> Result:
    return CliRunner().invoke(command, shlex.split(line), catch_exceptions=False)


def test_show_prints_what_every_client_holds_and_draws_it(tmp_path):
    done = run(f"show --dataset digits --clients 3 --partition iid --out {tmp_path / 'out'}")
    assert done.exit_code == 0
    # digits has 1797 samples, dealt out to three clients; int(0.75 × 599) of them are for training.
    rows = [line.replace(" ", "").strip("│").split("│") for line in done.output.splitlines() if "│" in line]
    assert [row[:5] for row in rows[:3]] == [
        ["0", "449", "150", "599", "10"],
        ["1", "449", "150", "599", "10"],
        ["2", "449", "150", "599", "10"],
    ]
    assert ["4,6", "181", "3"] in rows
    assert "Client sizes 599 to 599, median 599, imbalance 1.0; 30 (client, class) pairs" in done.output
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    kinds = ("bubbles.png", "bubbles.svg", "heat_map.png", "heat_map.svg")
    assert names == [f"digits_iid_3_{kind}" for kind in kinds]


def test_show_passes_its_options_on(tmp_path):
    out = tmp_path / "out"
    done = run(f"show --partition pathological --clients 10 --classes-per-client 3 --seed 4 --out {out}")
    assert "28 (client, class) pairs" in done.output  # nine clients with three classes, client 9 with one
    assert (out / "digits_pathological_10_bubbles.png").is_file()
    with pytest.raises(UserError, match="is not a folder"):
        run("show --dataset mnist --data-dir nowhere")


def test_list_names_the_data_sets():
    output = run("list").output
    assert all(name in output for name in ("cifar10", "cifar100", "digits", "flowers102", "fmnist"))
    assert all(name in output for name in ("mnist", "spiral", "svhn", "tiny_imagenet"))


def test_ranges():
    assert _ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
