"""`fedsim reproduce` and `fedsim sweep` as a user types them: real runs, interrupted and taken up again."""

import csv
import re
import signal
from pathlib import Path

import pytest
from commands import PROJECT, Command, Start, bits, events_of, wait_for

from fedsim import presets
from fedsim.results.load import load
from nodes.cli.reproduce import build_cell

SLOW_SECONDS = 240.0
"""A batch is several runs; only a failing test waits that long."""

TINY = [
    *("--set", "data.dataset=spiral", "--set", "model.group=MLP", "--set", "model.feature_dim=3"),
    *("--set", "data.samples_per_class=40", "--set", "run.clients=4", "--set", "cluster.server_threads=1"),
]


@pytest.fixture
def fedsim(python: Start, monkeypatch: pytest.MonkeyPatch):
    """`fedsim("presets")` is the command, in the test's own folder."""

    def start(*words: str | Path) -> Command:
        return python("-m", "nodes", *words, PYTHONPATH=str(PROJECT), COLUMNS="160")

    return start


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def folders(out: Path) -> list[Path]:
    return sorted(path for path in out.iterdir() if path.is_dir())


def test_a_part_of_a_table_ends_with_ours_beside_the_papers(fedsim, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("reproduce", "fedtgp-table10", "--scale", "quick", "--only", "fedproto,feddistill,practical")
    options = (*TINY, "--set", "run.rounds=2", "--seeds", "1,2", "--out", out)
    first = fedsim(*words, *options)
    assert first.wait(SLOW_SECONDS) == 0, first.stdout
    assert "4 runs in" in first.stdout and "0 finished, 0 begun, 4 new" in first.stdout
    assert "QUICK SCALE, not the paper's" in first.stdout and "ours, quick scale (%)" in first.stdout
    assert "Changed for all runs: data.dataset=spiral, model.group=MLP" in first.stdout
    assert "97.46 ± 0.01" in first.stdout and "97.48 ± 0.04" in first.stdout
    assert "99.48" not in first.stdout, "the pathological column was not asked for"
    rows = {(row["method"], row["setting"]): row for row in table_of(out / "fedtgp-table10-quick.csv")}
    assert len(rows) == 14, "the files hold the whole table"
    ours = rows["FedProto", "practical"]
    best = []
    for folder in folders(out):
        if folder.name.startswith("fedproto"):
            best.append(max(float(row["accuracy"]) for row in table_of(folder / "metrics.csv") if row["accuracy"]))
    assert float(ours["ours_mean"]) == pytest.approx(100 * sum(best) / 2)
    assert float(ours["ours_deviation"]) == pytest.approx(100 * abs(best[0] - best[1]) / 2)
    assert (ours["ours_runs"], ours["paper_mean"], ours["paper_deviation"]) == ("2", "97.46", "0.01")
    assert (rows["FedGen", "practical"]["ours_runs"], rows["FedGen", "practical"]["note"]) == ("0", "2 not run")
    assert "QUICK SCALE" in (out / "fedtgp-table10-quick.md").read_text()
    assert not list(out.glob("*/checkpoints")), "a finished run is not resumed"

    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.csv") if path.parent != out}
    again = fedsim(*words, *options).succeed()
    assert "4 finished, 0 begun, 0 new" in again.stdout
    assert before == {path: path.stat().st_mtime_ns for path in before}, "nothing was run again"


def test_several_at_once_have_the_same_bits_and_the_table_fills_while_they_run(fedsim, tmp_path: Path) -> None:
    words = ("reproduce", "fedtgp-table10", "--scale", "quick", "--only", "lg-fedavg,fedproto,fedtgp,practical")
    words = (*words, *TINY, "--set", "run.rounds=3", "--seeds", "1")
    table = tmp_path / "two" / "fedtgp-table10-quick.csv"
    two = fedsim(*words, "--out", tmp_path / "two", "--jobs", "2")
    begun = wait_for(lambda: table.exists() and [row["ours_runs"] for row in table_of(table)], "there is no table")
    assert two.wait(SLOW_SECONDS) == 0, two.stdout
    assert "1" in begun, "written as soon as the first run is over"
    assert [row["ours_runs"] for row in table_of(table)].count("1") == 3
    assert " left, by the first rounds" in two.stdout
    left = tmp_path / "one" / folders(tmp_path / "two")[0].name
    left.mkdir(parents=True)
    (left / "half").write_text("a run that was killed before its config was written")
    one = fedsim(*words, "--out", tmp_path / "one")
    assert one.wait(SLOW_SECONDS) == 0, one.stdout
    assert [path.name for path in folders(tmp_path / "one")] == [path.name for path in folders(tmp_path / "two")]
    assert [bits(p) for p in folders(tmp_path / "one")] == [bits(p) for p in folders(tmp_path / "two")]


def test_ctrl_c_in_the_middle_and_the_same_command_again(fedsim, tmp_path: Path) -> None:
    """The second of three runs is interrupted after a checkpoint; it ends with the bits of one left alone."""
    words = ("reproduce", "protonorm-figure2", "--scale", "quick", "--seeds", "1", "--checkpoint-every", "2")
    only = ("--only", "fedproto,fedproto iid,protonorm gamma=1")
    options = ("--set", "run.rounds=12", "--set", "run.clients=4", "--set", "cluster.server_threads=1")
    out, undisturbed = tmp_path / "out", tmp_path / "undisturbed"
    command = fedsim(*words, *only, *options, "--out", out)

    def second() -> Path | None:
        """The run that has begun while another is finished, once it has a checkpoint."""
        begun = [path for path in folders(out) if not (path / "summary.json").exists()] if out.exists() else []
        reached = [path for path in begun if list(events_of(path, "checkpoint", round=3))]
        return reached[0] if reached and len(folders(out)) == 2 else None

    interrupted = wait_for(second, "the second run does not begin", SLOW_SECONDS)
    command.send_to_all(signal.SIGINT)
    assert command.wait(SLOW_SECONDS) == 130
    assert "the same command goes on" in command.stdout and "Traceback" not in command.stderr
    assert "failed" not in command.stdout, "what was stopped has not failed"
    assert len(folders(out)) == 2

    again = fedsim(*words, *only, *options, "--out", out)
    assert again.wait(SLOW_SECONDS) == 0, again.stdout
    assert "1 finished, 1 begun, 1 new" in again.stdout and "going on" in again.stdout
    resumed = [event["resumed_from"] for event in events_of(interrupted, "started")]
    assert resumed[0] is None and resumed[1] >= 3
    assert fedsim(*words, *only, *options, "--out", undisturbed).wait(SLOW_SECONDS) == 0
    assert [path.name for path in folders(undisturbed)] == [path.name for path in folders(out)]
    assert len(folders(out)) == 3
    assert [bits(path) for path in folders(undisturbed)] == [bits(path) for path in folders(out)]


def test_a_run_that_fails_is_reported_and_the_others_go_on(fedsim, tmp_path: Path) -> None:
    """FedKTL generates images, which points in a plane are not."""
    out = tmp_path / "out"
    command = fedsim(
        *("reproduce", "fedktl-table1", "--only", "fedktl,feddistill,practical,cifar10", "--scale", "quick"),
        *(*TINY, "--set", "run.rounds=1", "--seeds", "1", "--out", out),
    )
    assert command.wait(SLOW_SECONDS) == 1
    assert "failed: " in command.stdout and "1 failed" in command.stdout
    rows = {row["method"]: row for row in table_of(out / "fedktl-table1-quick.csv") if row["dataset"] == "Cifar10"
            and row["setting"] == "practical"}  # fmt: skip
    assert (rows["FedKTL"]["ours_runs"], rows["FedDistill"]["ours_runs"]) == ("0", "1")


def test_an_option_of_one_method_is_set_where_only_that_one_is_asked_for(fedsim, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("reproduce", "fedtgp-table10", "--only", "fedtgp,practical", "--scale", "quick", *TINY)
    command = fedsim(*words, "--set", "method.tau=5", "--set", "run.rounds=1", "--seeds", "1", "--out", out)
    assert command.wait(SLOW_SECONDS) == 0, command.stdout
    (folder,) = folders(out)
    assert load(folder).experiment.method["tau"] == 5
    assert len(table_of(out / "fedtgp-table10-quick.csv")) == 14, "with the cells that do not know it"


@pytest.mark.parametrize("scale", ["paper", "laptop", "quick"])
def test_a_folder_of_generators_has_those_that_the_table_names_at_every_scale(scale: str) -> None:
    (cell,) = presets.select("fedktl-table7", presets.load("fedktl-table7").cells(), ["-lm"])
    named = build_cell(cell, 1, scale=scale, layers=[], generators=Path("~/there"))
    assert named.method["generator"] == str(Path.home() / "there" / "imagenet64.pkl")
    without = build_cell(cell, 1, scale=scale, layers=[])
    assert without.method["generator"] == ("imagenet64.pkl" if scale == "paper" else "tiny")


def test_a_table_of_other_changes_is_not_written_over(fedsim, tmp_path: Path) -> None:
    words = (
        "reproduce",
        "fedtgp-table10",
        "--only",
        "fedproto,practical",
        "--scale",
        "quick",
        *TINY,
        "--seeds",
        "1",
    )
    first = (*words, "--set", "run.rounds=1", "--out", "out")
    assert fedsim(*first).wait(SLOW_SECONDS) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "out").glob("*.*")}
    other = fedsim(*first, "--set", "train.lr=0.5")
    assert other.wait(SLOW_SECONDS) == 2 and other.stderr.count("\n") == 1
    assert other.stderr.startswith(
        "error: out/fedtgp-table10-quick.md is the table of other runs (changed for these: "
    )
    assert other.stderr.endswith("run.rounds=1, train.lr=0.5); give another folder with --out.\n")
    assert len(before) == 2 and all(path.read_bytes() == content for path, content in before.items())
    assert "1 finished, 0 begun, 0 new" in fedsim(*first).succeed().stdout
    # How the same runs are run is no other change, and neither is the order in which they are described.
    how = (*words[:-2], "--set", "cluster.slots=1", "--set", "run.rounds=1", *words[-2:], "--out", "out")
    assert "1 finished, 0 begun, 0 new" in fedsim(*how).succeed().stdout


def test_how_long_runs_on_own_data_take_is_not_guessed(fedsim, tmp_path: Path) -> None:
    points = [f"{x},{y},{x > y}" for x in range(30) for y in range(30)]
    (tmp_path / "points.csv").write_text("\n".join(["x,y,label", *points]))
    words = ("reproduce", "fedtgp-table10", "--only", "fedproto,practical", "--scale", "quick", *TINY)
    own = ("--set", "data.dataset=points.csv", "--set", "data.samples_per_class=200", "--set", "run.rounds=1")
    command = fedsim(*words, *own, "--seeds", "1", "--out", tmp_path / "out")
    assert command.wait(SLOW_SECONDS) == 0, command.stdout
    assert "1 run, and the first rounds will tell how long it takes. Quick scale:" in command.stdout
    assert "Changed for all runs: data.dataset=points.csv, model.group=MLP" in command.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["reproduce", "fedktl-table9", "--set", "method.tau=1"],
            "Client Data, 23-shot: there is no option 'method.tau'",
        ),
        (["reproduce", "fedtgp-tabel10"], "there is no preset 'fedtgp-tabel10'; did you mean fedtgp-table10"),
        (["reproduce", "fedtgp-table5"], "fedtgp-table5 is not made of runs; use: fedsim comm-cost"),
        (["reproduce", "fedtgp-table10", "--only", "fedtpg"], "did you mean fedtgp"),
        (["reproduce", "fedtgp-table2", "--only", "fedgen,res34-htc4"], "not applicable"),
        (["reproduce", "fedtgp-table10", "--seeds", "one"], "--seeds wants whole numbers"),
        (["reproduce", "fedtgp-table10", "--set", "run.rouns=3"], "did you mean run.rounds"),
        (["presets", "fedtgp-table99"], "there is no preset"),
        (
            ["reproduce", "fedtgp-table10", "--generators", "here"],
            "--generators has no effect: no run of fedtgp-table10",
        ),
        (["reproduce", "fedktl-table9", "--only", "client data", "--generators", "here"], "no effect"),
        (["sweep", "--vary", "method.tau"], "--vary wants section.key=value,value"),
        (["reproduce", "fedtgp-table10", "--set", "run.seed=9"], "--set run.seed is what --seeds is for"),
        (["sweep", "--vary", "run.seed=1,2"], "--vary run.seed is what --seeds is for"),
        (["sweep", "--vary", "method.tau=1,2", "--set", "data.seed=9"], "is what --data-seeds is for"),
        (["sweep", "--vary", "method.tau=1,2", "--data-seeds", "x"], "--data-seeds wants whole numbers"),
        (["sweep", "--vary", "method.tau=1,2", "--set", "run.seed=9"], "--set run.seed is what --seeds is for"),
        (["sweep", "--vary", "method.tau=1,2", "--baseline", "3"], "there is no baseline '3'; known: 1, 2."),
        (["sweep", "--vary", "method.tua=1,2"], "did you mean method.tau"),
        (["run", "--preset", "fedtgp-table10/practical"], "add labels until it is one"),
    ],
)
def test_bad_input_is_one_sentence(fedsim, tmp_path: Path, words: list[str], message: str) -> None:
    command = fedsim(*words)
    assert command.wait() == 2
    assert message in command.stderr and command.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_sweep_compares_values_over_seeds(fedsim, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("sweep", "--vary", "method.name=fedproto,local", "--vary", "train.lr=0.01,0.1", "--seeds", "1,2")
    command = fedsim(*words, *TINY, "--rounds", "2", "--out", out, "--baseline", "local", "--jobs", "2")
    assert command.wait(SLOW_SECONDS) == 0, command.stdout
    rows = table_of(out / "summary.csv")
    assert [(row["method"], row["train.lr"], row["round"]) for row in rows] == [
        (method, lr, which)
        for method in ("Local", "FedProto")
        for lr in ("0.01", "0.1")
        for which in ("best", "last")
    ]
    assert {row["n"] for row in rows} == {"2"} and len(folders(out)) == 8
    assert all(f"{float(row['mean']):.2f} ± {float(row['deviation']):.2f}" in command.stdout for row in rows)
    assert "over 2 run seeds (1, 2) on one partition (data seed 1)" in command.stdout
    assert all(
        re.fullmatch(r"(fedproto|local)-spiral-lr0\.1?0?1?-seed[12]-\w{10}", path.name) for path in folders(out)
    )
    assert (out / "summary.tex").exists() and (out / "summary.md").exists()
    more = fedsim(*words[:-1], "1,2,3", *TINY, "--rounds", "2", "--out", out)
    assert more.wait(SLOW_SECONDS) == 0, more.stdout
    assert "8 finished, 0 begun, 4 new" in more.stdout
    # What is no accuracy is a plain number, as it was in the last round.
    loss = fedsim(*words[:-1], "1", *TINY, "--rounds", "2", "--out", out, "--metric", "train_loss")
    assert loss.wait(SLOW_SECONDS) == 0, loss.stdout
    assert "Train loss" in loss.stdout and "per cent" not in loss.stdout
    last = {load(path).best_and_last("train_loss").last for path in out.glob("*-seed1-*")}
    assert {float(row["mean"]) for row in table_of(out / "summary.csv")} == last


def test_a_sweep_stops_at_the_first_run_that_lacks_the_metric(fedsim, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("sweep", "--vary", "train.lr=0.01,0.1", "--seeds", "1", *TINY, "--set", "method.name=fedproto")
    wrong = (*words, "--rounds", "1", "--out", out, "--metric", "acuracy")
    for _ in range(2):  # the second time the run is there already
        command = fedsim(*wrong)
        assert command.wait(SLOW_SECONDS) == 2
        (run,) = folders(out)
        assert command.stderr.startswith(
            f"error: --metric acuracy is no column of {run}/metrics.csv; it has accuracy, "
        )
        assert command.stderr.endswith(".\n") and command.stderr.count("\n") == 1
        assert "round," not in command.stderr and not (out / "summary.csv").exists()
    right = fedsim(*wrong[:-1], "client_mean_accuracy")
    assert right.wait(SLOW_SECONDS) == 0, right.stderr
    assert "1 finished, 0 begun, 1 new" in right.stdout
    assert {row["n"] for row in table_of(out / "summary.csv")} == {"1"}


def test_presets_are_listed_and_shown(fedsim) -> None:
    listed = fedsim("presets").succeed().stdout
    assert "fedtgp-table10" in listed and "protonorm-figure2" in listed and "billion operations a second" in listed
    shown = fedsim("presets", "fedtgp-table2").succeed().stdout
    assert "– (not applicable)" in shown and "41.57 ± 0.30" in shown
    assert "56 cells, 52 runs for one seed" in shown
    assert "fedsim models show HtCNN8" in fedsim("presets", "fedtgp-table9").succeed().stdout


def test_a_cell_is_a_preset_of_run(fedsim, tmp_path: Path) -> None:
    options = ("--dataset", "spiral", "--model-group", "MLP", "--rounds", "1", "--clients", "3", "--in-process")
    fedsim("run", "--preset", "fedtgp-table6/scl,cifar100", *options, "--out", tmp_path / "run").succeed()
    config = (tmp_path / "run" / "config.toml").read_text()
    assert 'margin = "none"' in config and "rounds = 1\n" in config and "beta = 0.1" in config


def test_a_sweep_has_seeds_and_not_a_seed(fedsim) -> None:
    command = fedsim("sweep", "--vary", "method.tau=1,2", "--seed", "9")
    assert command.wait() == 2
    assert "No such option '--seed'" in command.stderr and "'--seeds'" in command.stderr
