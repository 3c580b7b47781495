import shlex

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fedsim.errors import UserError
from fedsim.results.load import load
from fedsim.results.report import tables
from nodes.cli.data import command
from nodes.cli.run import command as run_command


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")


def run(line: str) -> Result:
    return CliRunner().invoke(command, shlex.split(line), catch_exceptions=False)


def rows_of(done: Result) -> list[list[str]]:
    return [line.replace(" ", "").strip("│").split("│") for line in done.output.splitlines() if "│" in line]


def test_show_prints_what_every_client_holds_and_draws_it(tmp_path):
    done = run(f"show --dataset digits --clients 3 --partition iid --out {tmp_path / 'out'}")
    assert done.exit_code == 0
    # digits has 1797 samples, dealt out to three clients; int(0.75 × 599) of them are for training.
    rows = rows_of(done)
    assert [row[:5] for row in rows[:3]] == [
        ["0", "449", "150", "599", "10"],
        ["1", "449", "150", "599", "10"],
        ["2", "449", "150", "599", "10"],
    ]
    assert ["4,6", "181", "3"] in rows
    assert "Client sizes 599 to 599, median 599, imbalance 1.0; 30 (client, class) pairs" in done.output
    assert "digits: 1,797 samples of 10 classes, images 1x28x28, bytes scaled to [-1, 1]" in done.output
    assert "for test" not in done.output and "fingerprint 4450779f7c8e9b4eef9251ebf8ec5537" in done.output
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    kinds = ("bubbles.png", "bubbles.svg", "heat_map.png", "heat_map.svg")
    assert names == [f"digits_iid_3_{kind}" for kind in kinds]


@pytest.mark.process  # a run asks git where the code comes from
def test_show_has_the_defaults_of_run_and_the_counts_of_its_report(tmp_path):
    """The report's tables come from partition.csv; a client's classes are those that it trains on."""
    shown = rows_of(run(f"show --out {tmp_path / 'out'}"))[:10]
    done = CliRunner().invoke(
        run_command,
        ["--in-process", "--method", "local", "--rounds", "1", "--no-report", "--out", str(tmp_path / "run")],
    )
    assert done.exit_code == 0, done.output
    reported = tables.clients(load(tmp_path / "run"))
    columns = [reported.headings.index(name) for name in ("client", "train", "test", "classes")]
    assert [[row[0], row[1], row[2], row[4]] for row in shown] == [
        [row[i] for i in columns] for row in reported.rows
    ]


def test_show_fits_80_columns(tmp_path):
    labels = ["a class with quite a long name, as people give them", "another one", "third"]
    rows = "".join(f'{n},{n * n % 7},"{labels[n % 3]}"\n' for n in range(120))
    (tmp_path / "table.csv").write_text("a,b,kind\n" + rows)
    done = run(
        f"show --dataset {tmp_path / 'table.csv'} --set data.label=kind --clients 12 --out {tmp_path / 'out'}"
    )
    lines = [line for line in done.output.splitlines() if not line.startswith("wrote")]
    assert max(map(len, lines)) <= 80
    assert "table: 120 samples of 3 classes, 2 numbers each" in done.output
    assert "table is small for 12 clients" in done.output and "another one" in done.output


def test_show_takes_a_config_and_its_ready_made_partition(tmp_path):
    for part, number in (("train", 8), ("test", 3)):
        (tmp_path / "made" / part).mkdir(parents=True)
        for client in range(2):
            arrays = {"x": np.zeros((number, 4), np.float32), "y": np.arange(number) % 2}
            np.savez(tmp_path / "made" / part / f"{client}.npz", data=arrays)
    (tmp_path / "made" / "config.json").write_text('{"num_clients": 2, "num_classes": 2}')
    (tmp_path / "own.toml").write_text(f'[data]\ndataset = "{tmp_path / "made"}"\n[run]\nclients = 2\n')
    done = run(f"show --config {tmp_path / 'own.toml'} --out {tmp_path / 'out'}")
    assert [row[:5] for row in rows_of(done)[:2]] == [["0", "8", "3", "11", "2"], ["1", "8", "3", "11", "2"]]
    assert "made: 22 samples (16 for training, 6 for test) of 2 classes, 4 numbers each" in done.output
    assert (tmp_path / "out" / "made_ready-made_2_bubbles.png").is_file()


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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--partition iid --beta 0.5", "data.beta = 0.5 has no effect on data.partition = iid; leave it out, or"),
        ("--set data.classes_per_client=3", "set the partition to pathological."),
    ],
)
def test_an_option_of_another_partition_is_refused(line, said):
    with pytest.raises(UserError) as refused:
        run(f"show --dataset digits --clients 3 {line}")
    assert said in str(refused.value)
