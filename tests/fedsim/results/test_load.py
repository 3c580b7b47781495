"""Reading a run folder back: every value, what an interrupted run lacks, and a sentence for what is broken."""

import json
import subprocess
import sys

import numpy as np
import pandas
import pytest
from commands import PROJECT
from made_run import CORRECT, make_run

from fedsim.errors import UserError
from fedsim.results.load import load

TABLES = ("metrics", "clients", "timings", "server_timings", "ledger", "partition")


@pytest.fixture
def path(tmp_path):
    return make_run(tmp_path / "some run")


def replace(path, name, old, new):
    text = (path / name).read_text()
    assert old in text
    (path / name).write_text(text.replace(old, new, 1))


# ----------------------------------------------------------------------------------------------------- values


def test_a_run_is_read_with_its_types(path):
    run = load(path)
    assert (run.name, run.method, run.num_rounds) == ("some run", "FedProto", 2)
    assert run.title == "FedProto on spiral, 3 clients, 2 rounds"
    assert run.experiment.run.rounds == 2 and run.experiment.data.dataset == "spiral"
    assert run.metrics["round"].tolist() == [0, 1, 2] and run.metrics["round"].dtype == np.int64
    np.testing.assert_array_equal(run.metrics["accuracy"], [np.nan, 4 / 13, 9 / 13])
    assert run.clients.query("round == 2")["correct"].tolist() == list(CORRECT[2])
    assert set(run.ledger["direction"]) == {"up", "down"}
    assert run.partition.query("client == 2")["test"].tolist() == [2, 2, 1]
    assert run.completed and run.reason == "the run is complete" and run.seconds == 12.5


def test_best_and_last_accuracy(path):
    run = load(path)
    assert run.best == (2, 9 / 13) and run.final_accuracy == 9 / 13
    replace(path, "metrics.csv", str(4 / 13), "0.75")
    run = load(path)
    assert run.best == (1, 0.75) and run.final_accuracy == 9 / 13


def test_a_series_leaves_out_what_is_not_known(path):
    replace(path, "metrics.csv", "3.0,2.0,1.5", "inf,2.0,1.5")
    run = load(path)
    assert run.series("train_loss").to_dict() == {0: 2.0, 1: 1.0}
    assert run.series("server_loss").to_dict() == {1: 2.0}
    assert len(run.series("unheard_of")) == 0 and run.best_and_last("unheard_of") is None


def test_the_best_round_of_any_column(path):
    assert load(path).best_and_last("client_mean_accuracy") == ((0.75 + 1 + 0.4) / 3, 2, (0.75 + 1 + 0.4) / 3)
    assert load(path).best_and_last("train_loss") == (2.0, 0, 1.0)


def test_what_a_client_reports_beside_the_usual_is_a_column(path):
    text = (path / "clients.csv").read_text().splitlines()
    (path / "clients.csv").write_text("\n".join([text[0] + ",ece", *(f"{line},0.5" for line in text[1:])]) + "\n")
    assert load(path).clients["ece"].tolist() == [0.5] * 9


def test_records_are_those_that_have_all_names(path):
    run = load(path)
    recorded = run.records("global_margins", "client_ids")
    assert sorted(recorded) == [0, 1] and set(recorded[0]) == {"global_margins", "client_ids"}
    assert recorded[1]["global_margins"].tolist() == [1, 2, 3]
    assert run.records("images") == {}


def test_wire_bytes_are_the_ledger_s(path):
    run = load(path)
    assert run.wire_bytes("up") == 3 * (50 + 3 * 10 + 2 * 100)
    assert run.wire_bytes("down") == 3 * (50 + 3 * 10 + 2 * 400)


def test_of_a_round_that_was_played_again_the_last_word_counts(path):
    again = {"event": "round_finished", "time": 200.0, "round": 1, "seconds": 9.0}
    with (path / "events.jsonl").open("a") as file:
        file.write(json.dumps(again) + '\n{"event": "rou')  # and a line that a crash has cut off
    rounds = load(path).rounds
    assert sorted(rounds) == [0, 1, 2] and rounds[1]["seconds"] == 9.0


@pytest.mark.parametrize("name", TABLES)
def test_pandas_reads_the_same(path, name):
    ours = getattr(load(path), name)
    theirs = pandas.read_csv(path / f"{name}.csv")
    assert list(theirs.columns) == list(ours.columns)
    for column in theirs.columns:
        np.testing.assert_array_equal(theirs[column].to_numpy(), ours[column], err_msg=column)


@pytest.mark.process
def test_no_torch_is_needed(path):
    program = (
        "import sys; from pathlib import Path; from fedsim.results.load import load;"
        "import fedsim.results.report.page;"
        "print(load(Path(sys.argv[1])).best, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"(2, {9 / 13}) False\n"


# ------------------------------------------------------------------------------------------------ interrupted


def test_a_run_that_was_killed_has_what_it_wrote(path):
    for name in ("summary.json", "ledger.csv", "partition.csv"):
        (path / name).unlink()
    with (path / "metrics.csv").open("a") as file:
        file.write("3,0.9")
    run = load(path)
    assert run.metrics["round"].tolist() == [0, 1, 2]
    assert not run.completed and run.reason == "the run was interrupted before it wrote a summary"
    assert run.best == (2, 9 / 13) and run.seconds == 15.0  # by its events
    assert run.wire_bytes("up") is None and len(run.partition) == 0


# ----------------------------------------------------------------------------------------------------- errors


def complaint(path):
    with pytest.raises(UserError) as caught:
        run = load(path)
        assert run.events and run.records("client_ids")
    sentence = str(caught.value)
    assert sentence.endswith(".") and "\n" not in sentence
    return sentence.replace(str(path), "RUN")


def test_no_folder_and_no_run_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    assert complaint(tmp_path / "none") == "there is no run folder RUN."
    assert complaint(tmp_path / "empty") == "RUN is not a run folder: it has no config.toml."


def test_a_run_without_a_round(path):
    (path / "metrics.csv").unlink()
    assert complaint(path).startswith("RUN has no finished round yet, so there is nothing to show;")


def test_a_config_of_another_version(path):
    replace(path, "config.toml", "[run]\n", "[run]\nnum_clients = 3\n")
    sentence = complaint(path)
    assert sentence.startswith("RUN was made by another version of fedsim (config.toml: ")
    assert "num_clients" in sentence and sentence.endswith("; open it with that version, or run it again.")


def test_a_table_of_another_version(path):
    replace(path, "clients.csv", "tested", "tests")
    assert complaint(path) == (
        "RUN was made by another version of fedsim (clients.csv has no column 'tested'); "
        "open it with that version, or run it again."
    )


def test_a_summary_of_another_version(path):
    replace(path, "summary.json", '"reason"', '"why"')
    assert "(summary.json has no 'reason')" in complaint(path)


def test_a_row_with_too_few_fields_is_named_by_file_and_line(path):
    replace(path, "clients.csv", "1,1,2,4,2.5", "1,1,2")
    assert complaint(path) == (
        "RUN/clients.csv, line 6, is broken: 3 fields instead of 5; mend or delete the line."
    )


def test_a_field_that_is_no_number_is_named_by_file_and_line(path):
    replace(path, "metrics.csv", str(4 / 13), "?")
    assert complaint(path) == (
        "RUN/metrics.csv, line 3, is broken: accuracy = '?' is not a number; mend or delete the line."
    )


def test_a_whole_number_may_not_be_missing(path):
    replace(path, "timings.csv", "\n1,2,", "\n,2,")
    assert "RUN/timings.csv, line 7, is broken: round = '' is not a number" in complaint(path)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("summary.json", "{", "RUN/summary.json is not valid JSON; delete it, and the numbers are taken"),
        ("events.jsonl", "{}\nnonsense\n", "RUN/events.jsonl, line 2, is broken: it is not valid JSON"),
        ("config.toml", "run = [", "RUN/config.toml is not valid TOML"),
        ("records/round-000001.safetensors", "nonsense", "RUN/records/round-000001.safetensors cannot be read"),
    ],
)
def test_files_that_are_broken_as_a_whole(path, name, content, sentence):
    (path / name).write_text(content)
    assert complaint(path).startswith(sentence)
