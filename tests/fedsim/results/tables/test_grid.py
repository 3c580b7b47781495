"""A table of made runs: its cells against numbers worked out here, and its four forms against each other."""

import csv
import io
import re

import numpy as np
import pytest
from made_run import TESTED, make_run

from fedsim.errors import UserError
from fedsim.results.groups import collect
from fedsim.results.statistics import Sample
from fedsim.results.tables import formats
from fedsim.results.tables.grid import Cell, Description, Table, build, placed
from fedsim.results.tables.latex import escape, latex
from fedsim.results.values import Value

RIGHT = {
    ("local", 0.1): [(2, 2, 2), (3, 2, 2), (2, 3, 3)],
    ("local", 1.0): [(1, 2, 1), (1, 1, 1), (2, 2, 1)],
    ("fedtgp", 0.1): [(4, 3, 3), (4, 3, 4), (3, 3, 5)],
    ("fedtgp", 1.0): [(3, 3, 2), (3, 2, 3), (2, 3, 3)],
    ("fedproto", 0.1): [(3, 2, 3), (3, 3, 3), (3, 3, 2)],
    ("fedproto", 1.0): [(2, 2, 3), (2, 2, 3), (2, 2, 3)],
}
"""Method and β -> right answers of the three clients in the last round, for each seed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for (method, beta), results in RIGHT.items():
        for seed, right in enumerate(results, 1):
            settings = {"run": {"seed": seed}, "data": {"beta": beta, "seed": 1}}
            correct = {
                0: (0, 0, 0),
                1: (4, 4, 5) if (method, beta, seed) == ("local", 1.0, 3) else (0, 0, 1),
                2: right,
            }
            make_run(folder / f"{method}-{beta}-{seed}", method=method, settings=settings, correct=correct)
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    return collect([folder], finished_only=True)


def shares(method, beta):
    return [100 * sum(right) / sum(TESTED) for right in RIGHT[method, beta]]


def test_rows_columns_and_cells(runs):
    table = build(runs, Description(rounds=("last",)))
    assert table.row_titles == ["method"] and table.rows == [["Local"], ["FedProto"], ["FedTGP"]]
    assert table.headings == [["β = 0.1"], ["β = 1"]]
    for row, method in enumerate(("local", "fedproto", "fedtgp")):
        for column, beta in enumerate((0.1, 1.0)):
            values = shares(method, beta)
            cell = table.cells[row][column]
            assert cell.mean == f"{np.mean(values):.2f}"
            assert cell.deviation == f"{np.std(values, ddof=1):.2f}"
    assert [[cell.place for cell in of_row] for of_row in table.cells] == [[0, 0], [2, 2], [1, 1]]
    assert table.notes == [
        "Accuracy of the last round in per cent.",
        "Mean ± sample standard deviation over 3 run seeds (1, 2, 3) on one partition (data seed 1) (n = 3).",
    ]
    assert not table.warnings


def test_best_and_last_population_and_further_numbers(runs):
    description = Description(
        rows=["beta=1", "method=fedtgp+local"],
        columns=[],
        metrics=("accuracy", "worst_tenth", "bytes_up"),
        rounds=("best", "last"),
        population=True,
    )
    table = build(runs, description)
    assert table.rows == [["1", "FedTGP"], ["1", "Local"]]
    assert [" ".join(heading) for heading in table.headings] == [
        *("accuracy (%) best round", "accuracy (%) last round"),
        *(
            "worst tenth of clients (%) best round",
            "worst tenth of clients (%) last round",
            "sent up (MB) ",
        ),
    ]
    best, last, _, worst, sent = table.cells[1]
    values = [*shares("local", 1.0)[:2], 100.0]  # the third was perfect in round 1
    assert (best.mean, best.deviation) == (f"{np.mean(values):.2f}", f"{np.std(values):.2f}")
    assert last.mean == f"{np.mean(shares('local', 1.0)):.2f}"
    assert worst.mean == f"{np.mean([100 * min(np.divide(right, TESTED)) for right in RIGHT['local', 1.0]]):.2f}"
    assert sent.sample.mean == pytest.approx(840e-6)


def test_differences_to_a_baseline(runs):
    table = build(runs, Description(baseline="local", rounds=("last",)))
    gap = table.cells[2][0].difference
    differences = np.subtract(shares("fedtgp", 0.1), shares("local", 0.1))
    assert gap.mean == pytest.approx(differences.mean()) and gap.num_pairs == 3
    assert table.cells[0][0].difference is None and table.cells[0][0].gap == "–"
    assert table.baseline == "Local"
    across = build(runs, Description(baseline="beta=1", rounds=("last",)))
    assert across.baseline == "β = 1" and across.cells[0][1].difference is None
    differences = np.subtract(shares("local", 0.1), shares("local", 1.0))
    assert across.cells[0][0].difference.mean == pytest.approx(differences.mean())


def test_a_method_without_the_options_that_were_varied_is_a_baseline_all_the_same(tmp_path):
    for seed in (1, 2):
        for method in ({"name": "local"}, {"name": "fedtgp", "tau": 1.0}, {"name": "fedtgp", "tau": 10.0}):
            correct = {1: (seed, 2, 2), 2: (seed, 2, 3) if method["name"] == "local" else (4, 3, 3)}
            name = f"{method['name']}-{method.get('tau')}-{seed}"
            settings = {"run": {"seed": seed}, "data": {"seed": 1}, "method": method}
            make_run(tmp_path / name, settings=settings, correct=correct)
    runs = collect([tmp_path], finished_only=True)
    expected = 100 * np.mean([10 - (seed + 5) for seed in (1, 2)]) / sum(TESTED)
    for columns in ((), ("method.tau",)):  # options in the rows, and in the columns
        rows = [name for name in ("method", "method.tau") if name not in columns]
        table = build(runs, Description(rows=rows, columns=columns, baseline="local", rounds=("last",)))
        gaps = [cell.difference.mean for of_row in table.cells for cell in of_row if cell.difference]
        assert gaps == pytest.approx([expected] * 2)
        assert not any("held against" in warning for warning in table.warnings)


def test_a_baseline_that_nothing_can_be_held_against_is_said(tmp_path):
    for seed, method in ((1, "local"), (2, "fedtgp")):
        make_run(tmp_path / method, method=method, settings={"run": {"seed": seed}, "data": {"seed": 1}})
    table = build(collect([tmp_path], finished_only=True), Description(baseline="local"))
    assert any("no cell can be held against Local" in warning for warning in table.warnings)


def test_where_only_some_runs_have_a_number_there_is_no_rank(runs):
    """The only one of three that got there is no better than three of three."""
    quick, slow = Sample({(1, 1): 5.0}), Sample({(seed, 1): 10.0 for seed in (1, 2, 3)})
    value = Value("time", lambda run, which: None, "s", "lower")
    cells = [[Cell(sample, value, num_runs=3)] for sample in (quick, slow, slow)]
    places = [of_row[0].place for of_row in placed([{}] * 3, cells, "")]
    assert places == [0, 1, 1]
    table = Table("", ["method"], [["a"], ["b"], ["c"]], [[""]], cells, [], num_runs=3)
    assert [table.counted(of_row[0]) for of_row in cells] == ["1 of 3", "", ""]


def test_all_forms_say_the_same(runs):
    table = build(runs, Description(baseline="local", rounds=("last",)))
    mean, deviation = table.cells[2][1].mean, table.cells[2][1].deviation
    assert f"| **{mean} ± {deviation}** |" in formats.markdown(table)
    rows = list(csv.DictReader(io.StringIO(formats.csv(table))))
    (row,) = (row for row in rows if row["method"] == "FedTGP" and row["data.beta"] == "1")
    assert [float(value) for value in row["values"].split(";")] == pytest.approx(shares("fedtgp", 1.0))
    assert (row["run_seeds"], row["data_seeds"], row["n"], row["deviation_of"]) == (
        "1;2;3",
        "1;1;1",
        "3",
        "sample",
    )
    assert f"{float(row['mean']):.2f}" == mean and row["pairs"] == "3.0"
    text = latex(table, caption="50 % of _all_")
    assert rf"\textbf{{{mean}}}\,{{\scriptsize$\pm$\,{deviation}}}" in text and r"50 \% of \_all\_" in text
    assert text.count(r"\begin{") == text.count(r"\end{") == 3 and text.count("\\\\\n") >= 8
    lines = [line for line in text.splitlines() if line.startswith(("Local", "FedProto", "FedTGP"))]
    assert len(lines) == 6 and {line.count("&") for line in lines} == {2}
    assert re.search(r"method & .*\$\\beta\$ \$=\$ 0\.1", text)


def test_levels_of_headings_are_spanned_in_latex(runs):
    text = latex(build(runs, Description(rounds=("best", "last"))))
    assert r" & \multicolumn{2}{c}{$\beta$ $=$ 0.1} & \multicolumn{2}{c}{$\beta$ $=$ 1} \\" in text
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}" in text


def test_every_letter_is_printed_as_it_is():
    assert escape(r"a_b\c{d}~^&%$#") == (r"a\_b\textbackslash{}c\{d\}\textasciitilde{}\textasciicircum{}\&\%\$\#")


def test_a_missing_cell_and_runs_that_cannot_be_averaged(folder):
    some = [path for path in sorted(folder.iterdir()) if not path.name.startswith("fedtgp-1.0")]
    table = build(collect(some), Description())
    assert table.cells[2][1].mean == "–" and table.cells[2][0].sample.size == 3
    assert table.warnings == ["there is no run of FedTGP, β = 1, so its cell is empty."]
    some = [path for path in sorted(folder.iterdir()) if not path.name.startswith("local-1.0")]
    mixed = build(collect(some), Description(rows=["method"], columns=["dataset"]))
    assert [row[0].mean == "–" for row in mixed.cells] == [False, True, True]
    assert mixed.warnings[0] == (
        "runs of FedProto, spiral differ in data.beta and cannot be averaged, so their cell is empty; add "
        "data.beta to --rows or --columns."
    )
    with pytest.raises(UserError, match=r"differ in data\.beta and cannot be averaged"):
        build(collect([folder]), Description(rows=["method"], columns=["dataset"]))
    few = [folder / name for name in ("local-0.1-1", "local-0.1-2", "fedtgp-0.1-1")]
    unequal = build(collect(few), Description())
    assert formats.plain(unequal, unequal.cells[1][0]).endswith("(n = 1)")


@pytest.mark.parametrize(
    ("description", "sentence"),
    [
        (Description(rows=["bets"]), "there is no setting 'bets'; did you mean beta?"),
        (Description(rows=["method=fedtpg"]), "there is no method 'fedtpg'; did you mean FedTGP?"),
        (Description(metrics=["acuracy"]), "there is no metric 'acuracy'; did you mean accuracy?"),
        (Description(baseline="fedavg"), "there is no baseline 'fedavg'; did you mean FedTGP?"),
        (Description(rows=["method"], columns=["method"]), "a setting can be in the rows or in the columns"),
    ],
)
def test_mistakes(runs, description, sentence):
    with pytest.raises(UserError) as caught:
        build(runs, description)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((30.0, 40.0, 50.0), "40.00 ± 10.00"), ((38.0, 40.0, 42.0), "40.00 ± 2.00"), ((1, 2, 3), "2.000 ± 1.000")],
)
def test_a_deviation_has_the_decimals_of_its_mean(numbers, text):
    seconds = Value("time", lambda run, which: None, "s")
    cell = Cell(Sample(dict(enumerate(map(float, numbers)))), seconds)
    assert f"{cell.mean} ± {cell.deviation}" == text
