"""Mean and deviation beside the printed numbers, as text, Markdown and CSV."""

import csv

import pytest
from made_run import make_run

from fedsim.presets import Printed
from fedsim.results.load import load
from fedsim.results.report.comparison import Comparison, Measured, Row, number_of

ROWS = [
    Row({"method": "FedTGP", "setting": "a|b"}, "accuracy", Measured((90.0, 94.0)), Printed(97.58, 0.05)),
    Row({"method": "FedGen", "setting": "x"}, "accuracy", None, None, "paper: – (not applicable)"),
    Row({"method": "FedProto", "setting": "x"}, "accuracy", Measured((50.0,)), Printed(47.0), "1 failed"),
]


def test_deviation_is_that_of_the_population():
    measured = Measured((1.0, 2.0, 6.0))
    assert measured.mean == 3.0
    assert measured.deviation == pytest.approx(((4 + 1 + 9) / 3) ** 0.5)
    assert str(measured) == "3.00 ± 2.16"
    assert str(Measured((5.0,))) == "5.00"


def test_the_grid_has_only_columns_that_say_something():
    headings, cells = Comparison("t", "paper scale", [], ROWS).grid()
    assert headings == ["method", "setting", "ours, paper scale (%)", "runs", "paper (%)", "difference", "note"]
    assert cells[0] == ["FedTGP", "a|b", "92.00 ± 2.00", "2", "97.58 ± 0.05", "-5.58", ""]
    assert cells[1] == ["FedGen", "x", "", "0", "", "", "paper: – (not applicable)"]
    assert cells[2] == ["FedProto", "x", "50.00", "1", "47.00", "+3.00", "1 failed"]
    headings, _ = Comparison("t", "quick scale", [], ROWS, is_comparable=False).grid()
    assert "difference" not in headings
    several = [
        Row({"method.tau": "1"}, "accuracy", Measured((1.0,))),
        Row({"method.tau": "2"}, "server_accuracy", None),
    ]
    headings, cells = Comparison("t", "quick scale", [], several).grid()
    assert headings == ["method.tau", "metric", "ours, quick scale (%)", "runs"]
    assert cells[1] == ["2", "server accuracy", "", "0"]


def test_what_is_no_share_is_no_percentage():
    loss = Measured((0.01234, 0.01236), in_percent=False)
    assert str(loss) == "0.01235 ± 1e-05"


def test_the_best_round_of_a_share_counts_and_the_last_of_another_number(tmp_path):
    path = make_run(tmp_path / "run")
    run = load(path)
    for metric in ("accuracy", "server_loss"):
        known = run.series(metric)
        assert number_of(path, metric) == (100 * known.max() if metric == "accuracy" else known.iloc[-1])
    assert number_of(path, "nothing") is None


def test_files(tmp_path):
    markdown, table = Comparison("Title", "quick scale", ["a note"], ROWS).write(tmp_path / "out" / "name")
    lines = markdown.read_text().splitlines()
    assert lines[:4] == ["# Title", "", "a note", ""]
    assert lines[6].startswith("| FedTGP | a\\|b | 92.00 ± 2.00 | 2 |")
    assert len({line.replace("\\|", "").count("|") for line in lines[4:]}) == 1
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["setting"] == "a|b"
    numbers = [
        rows[0][name] for name in ("ours_mean", "ours_deviation", "ours_runs", "paper_mean", "paper_deviation")
    ]
    assert [float(number) for number in numbers] == [92.0, 2.0, 2.0, 97.58, 0.05]
    assert (rows[1]["ours_mean"], rows[1]["ours_runs"], rows[1]["paper_mean"]) == ("", "0", "")
    assert rows[2]["paper_deviation"] == "" and {row["scale"] for row in rows} == {"quick scale"}
