"""The run folder: what is written, what a resumed run forgets, and that nothing is ever written over."""

import json
import math

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedsim.config import build
from fedsim.errors import UserError
from fedsim.learning.stopwatch import Spent
from fedsim.results.folder import RunFolder

EXPERIMENT = build([{"run": {"clients": 3}, "method": {"name": "fedproto"}}])


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs" / "one", EXPERIMENT)


def lines(folder: RunFolder, name: str) -> list[str]:
    return (folder.path / name).read_text().splitlines()


def fill(folder: RunFolder, rounds: range) -> None:
    for round in rounds:
        folder.add_metrics({"round": round, "accuracy": None if round == 0 else round / 8, "correct": round})
        folder.add_client_metrics(
            round, {1: {"correct": round, "tested": 9, "loss": 0.1}, 0: {"correct": 0, "tested": 4}}
        )
        folder.add_timings(round, {0: {"train": 0.5, "round_trip": 0.75}})
        folder.add_server_timings(round, {"aggregation": Spent(0.25, 0.5), "evaluation": Spent(0.125, 0.125)})


# ----------------------------------------------------------------------------------------------- make and open


def test_a_new_folder_knows_its_experiment(folder):
    assert folder.experiment() == EXPERIMENT
    assert RunFolder.open(folder.path).experiment() == EXPERIMENT
    assert folder.logs.is_dir() and not folder.checkpoints.exists()
    assert folder.summary() is None


def test_a_folder_that_exists_is_refused_and_left_alone(folder):
    (folder.path / "metrics.csv").write_text("precious")
    other = build([{"run": {"clients": 9}}])
    with pytest.raises(UserError, match=r"exists already; choose another with --out, or go on with --resume"):
        RunFolder.create(folder.path, other)
    assert (folder.path / "metrics.csv").read_text() == "precious"
    assert folder.experiment() == EXPERIMENT


def test_an_empty_folder_or_a_file_is_refused_too(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name in ("empty", "file"):
        with pytest.raises(UserError, match="exists already"):
            RunFolder.create(tmp_path / name, EXPERIMENT)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be made: Not a directory\.$"):
        RunFolder.create(tmp_path / "file" / "run", EXPERIMENT)


def test_only_a_run_folder_can_be_opened(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UserError, match=r"is not a run folder: it has no config\.toml"):
            RunFolder.open(path)


# -------------------------------------------------------------------------------------------------------- tables


def test_metrics_are_one_row_a_round(folder):
    fill(folder, range(3))
    assert lines(folder, "metrics.csv") == ["round,accuracy,correct", "0,,0", "1,0.125,1", "2,0.25,2"]


def test_clients_are_sorted_and_what_they_lack_is_empty(folder):
    fill(folder, range(2))
    assert lines(folder, "clients.csv") == [
        "round,client,correct,tested,loss",
        "0,0,0,4,",
        "0,1,0,9,0.1",
        "1,0,0,4,",
        "1,1,1,9,0.1",
    ]


def test_timings_have_a_column_for_each_step(folder):
    fill(folder, range(1))
    assert lines(folder, "timings.csv") == [
        "round,client,receive,evaluate,train,upload,save,round_trip",
        "0,0,,,0.5,,,0.75",
    ]


def test_the_memory_of_a_gpu_has_a_column_where_there_is_one(folder):
    folder.add_timings(0, {0: {"train": 0.5}})
    folder.add_timings(1, {0: {"train": 0.5, "gpu_peak_bytes": 4096.0}})
    assert lines(folder, "timings.csv") == [
        "round,client,receive,evaluate,train,upload,save,round_trip,gpu_peak_bytes",
        "0,0,,,0.5,,,,",
        "1,0,,,0.5,,,,4096.0",
    ]


def test_timings_of_the_server_have_a_row_for_each_part(folder):
    fill(folder, range(1))
    assert lines(folder, "server_timings.csv") == [
        "round,part,seconds,cpu_seconds",
        "0,aggregation,0.25,0.5",
        "0,evaluation,0.125,0.125",
    ]


def test_numbers_keep_all_their_bits(folder):
    value = 0.1 + 0.2
    folder.add_metrics({"round": 0, "accuracy": value})
    assert float(lines(folder, "metrics.csv")[1].split(",")[1]) == value


def test_columns_grow_and_earlier_rows_stay(folder):
    folder.add_metrics({"round": 0, "accuracy": 0.1})
    folder.add_metrics({"round": 1, "accuracy": 0.2, "margin": 3.5})
    folder.add_metrics({"round": 2})
    folder.add_metrics({"loss": 0.7, "round": 3, "margin": 4})
    assert lines(folder, "metrics.csv") == [
        "round,accuracy,margin,loss",
        "0,0.1,,",
        "1,0.2,3.5,",
        "2,,,",
        "3,,4,0.7",
    ]
    assert not [path.name for path in folder.path.iterdir() if path.name.startswith(".")]


def test_what_clients_report_later_gets_a_column_of_its_own(folder):
    folder.add_client_metrics(0, {0: {"correct": 1, "tested": 2}, 1: {"correct": 0, "tested": 3, "ece": 0.5}})
    folder.add_client_metrics(
        1, {1: {"tested": 3, "correct": 2, "auc": math.nan, "loss": 0.25}, 0: {"ece": 0.125}}
    )
    assert lines(folder, "clients.csv") == [
        "round,client,correct,tested,loss,ece,auc",
        "0,0,1,2,,,",
        "0,1,0,3,,0.5,",
        "1,0,,,,0.125,",
        "1,1,2,3,0.25,,nan",
    ]


def test_a_client_cannot_add_to_the_timings(folder):
    """What clients say of their time is not checked at the border."""
    folder.add_timings(0, {2: {"train": 0.5, "round": 9.0, "holiday": 3.0}})
    assert lines(folder, "timings.csv")[1] == "0,2,,,0.5,,,"


# -------------------------------------------------------------------------------------------------------- resume


def test_a_resumed_run_forgets_the_rounds_it_plays_again(folder):
    fill(folder, range(5))
    names = ("metrics.csv", "clients.csv", "timings.csv", "server_timings.csv")
    whole = {name: lines(folder, name) for name in names}
    folder.forget_after(2)
    assert lines(folder, "metrics.csv") == whole["metrics.csv"][:4]
    assert lines(folder, "clients.csv") == whole["clients.csv"][:7]
    assert lines(folder, "timings.csv") == whole["timings.csv"][:4]
    assert lines(folder, "server_timings.csv") == whole["server_timings.csv"][:7]
    fill(folder, range(3, 5))
    assert {name: lines(folder, name) for name in whole} == whole


def test_a_run_without_a_checkpoint_starts_over(folder):
    fill(folder, range(2))
    folder.forget_after(-1)
    assert lines(folder, "metrics.csv") == ["round,accuracy,correct"]
    fill(folder, range(1))
    assert lines(folder, "metrics.csv") == ["round,accuracy,correct", "0,,0"]


def test_rounds_are_compared_as_numbers(folder):
    fill(folder, range(9, 12))
    folder.forget_after(10)
    assert [line.split(",")[0] for line in lines(folder, "metrics.csv")[1:]] == ["9", "10"]


def test_forgetting_before_anything_was_written_is_nothing(folder):
    before = sorted(folder.path.iterdir())
    folder.forget_after(3)
    assert sorted(folder.path.iterdir()) == before


# ---------------------------------------------------------------------------------------------------- other files


def test_records_are_one_file_a_round(folder):
    folder.add_records(0, {})
    assert not (folder.path / "records").exists()
    every_second = np.arange(10, dtype=np.int32)[::2]
    folder.add_records(7, {"margins": np.array([0.5, np.nan], np.float32), "ids": every_second, "n": np.array(3)})
    loaded = load_file(folder.path / "records" / "round-000007.safetensors")
    np.testing.assert_array_equal(loaded["ids"], [0, 2, 4, 6, 8])
    assert np.isnan(loaded["margins"][1]) and loaded["n"].shape == ()


def test_the_final_knowledge_is_kept(folder):
    prototypes = np.arange(6, dtype=np.float32).reshape(2, 3).T
    folder.write_final({"prototypes": prototypes})
    np.testing.assert_array_equal(load_file(folder.path / "final.safetensors")["prototypes"], prototypes)


def test_the_ledger_is_written_whole(folder):
    folder.write_ledger([])
    assert not (folder.path / "ledger.csv").exists()
    rows = [
        {"round": -1, "payload": "header", "wire_bytes": 2**40},
        {"round": 0, "payload": "a,b", "wire_bytes": 1},
    ]
    for _ in range(2):  # the second replaces the first
        folder.write_ledger(rows)
    assert lines(folder, "ledger.csv") == ["round,payload,wire_bytes", f"-1,header,{2**40}", '0,"a,b",1']


def test_the_summary_comes_back(folder):
    summary = {"best_accuracy": 0.1 + 0.2, "accuracy_by_round": {"0": None}, "reason": "ü"}
    folder.write_summary(summary)
    assert folder.summary() == summary == json.loads((folder.path / "summary.json").read_text())


def test_folders_of_runs_without_heartbeats_can_still_be_read(folder):
    config = folder.path / "config.toml"
    config.write_text(config.read_text().replace("heartbeat_seconds = 5.0", "heartbeat_seconds = 0.0"))

    assert folder.experiment() == EXPERIMENT
