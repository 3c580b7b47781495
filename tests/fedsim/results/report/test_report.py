"""The page: its numbers are those of the files, it needs nothing but itself, and a browser shows it."""

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from made_run import make_run

from fedsim.errors import UserError
from fedsim.results.groups import collect
from fedsim.results.load import load
from fedsim.results.report import page as report
from fedsim.results.report import tables as report_tables

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Tables as lists of rows, ids, the attributes that could load something, and all text."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.ids, self.loads, self.open, self.text = [], [], [], [], ""
        self.figures = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        self.figures += tag == "figure"
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "data", "srcset"):
                self.loads.append(value)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag  # every element is closed where it belongs

    def handle_data(self, data):
        self.text += data
        if "tr" in self.open:
            self.tables[-1][-1][-1] += data.strip()

    def table(self, first_heading):
        return next(table for table in self.tables if table[0][0] == first_heading)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = make_run(tmp_path_factory.mktemp("report") / "a run")
    assert report.write_report(path) == path / "report.html"
    return path


@pytest.fixture(scope="module")
def page(path):
    return Page((path / "report.html").read_text())


# ------------------------------------------------------------------------------------------------------ numbers


def test_every_client_has_a_row_with_its_numbers(page):
    headings, *rows = page.table("client")
    assert headings == [
        *("client", "model", "train", "test", "classes", "best", "last", "last loss", "train s / round"),
        *("up", "down"),
    ]
    assert rows == [
        ["0", "CNN1", "9", "4", "2", "75.00 %", "75.00 %", "1.5000", "1.000", "280 B", "880 B"],
        ["1", "CNN2", "9", "4", "1", "100.00 %", "100.00 %", "2.5000", "1.000", "280 B", "880 B"],
        ["2", "CNN1", "12", "5", "3", "40.00 %", "40.00 %", "3.5000", "1.000", "280 B", "880 B"],
    ]


def test_the_cost_is_the_ledger_s(page):
    """Two rounds of 2 · (2 + 1 + 3) elements; the wire adds 10 bytes of header and so on to each."""
    _, *rows = page.table("purpose")
    assert rows == [
        ["method", "up", "24", "96", "660", "690", "618.75 %"],
        ["method", "down", "24", "96", "2,460", "2,490", "2493.75 %"],
        ["control", "up", "0", "0", "144", "150", "–"],
        ["control", "down", "0", "0", "144", "150", "–"],
        ["total", "up", "24", "96", "804", "840", "775.00 %"],
        ["total", "down", "24", "96", "2,604", "2,640", "2650.00 %"],
    ]
    _, *rows = page.table("payload")
    assert rows == [
        ["prototypes", "24", "24", "600", "2,400"],
        ["handshake", "0", "0", "150", "150"],
        ["header", "0", "0", "90", "90"],
    ]
    assert "The kernel agrees to the byte on 3 of 3 connections, in both directions." in page.text


def test_where_the_time_went(page):
    _, *rows = page.table("in a client's mean round")
    named = {row[0]: float(row[1]) for row in rows}
    # Two rounds with training and one without it, in which the server does nothing either.
    assert named == pytest.approx(
        {
            "train": 2 / 3,
            "evaluate": 0.25,
            "other": (0.25 + 0.25 + 0.125) / 3,
            "wire": (0.5 + 0.5 + 0.125) / 3,
            "wait": (2.5 + 2.5 + 4.5) / 3,
            "server": 1 / 3,
            "whole round": 5.0,
        },
        abs=6e-4,
    )
    assert rows[-1][2] == "100.00 %"


def test_what_the_server_s_step_is_made_of(page):
    assert page.table("in the server's mean step") == [
        ["in the server's mean step", "seconds", "share", "cores"],
        ["prototypes", "0.375", "75.00 %", "2.00"],
        ["aggregation", "0.125", "25.00 %", "1.00"],
        ["whole step", "0.500", "100.00 %", "1.75"],
    ]


def test_every_column_of_the_metrics_has_a_row(page):
    """Training losses 2 and 1; accuracies 4 and 9 of 13."""
    headings, *rows = page.table("metric")
    assert headings == ["metric", "first", "smallest", "largest", "last"]
    shown = {name: numbers for name, *numbers in rows}
    assert list(shown)[:2] == ["accuracy", "pooled_accuracy"] and len(shown) == 14
    assert shown["accuracy"] == ["30.77 %", "30.77 %", "69.23 %", "69.23 %"]
    assert shown["train_loss"] == ["2", "1", "2", "1"] and shown["clients"] == ["3"] * 4


def test_what_clients_report_of_their_own_has_a_column(tmp_path):
    path = make_run(tmp_path / "run")
    heading, *lines = (path / "clients.csv").read_text().splitlines()
    heading += ",trained_correct,trained_tested,ece"
    lines = [f"{line},{'1,4,0.125' if line.startswith('1,') else ',,'}" for line in lines]  # in round 1 alone
    (path / "clients.csv").write_text("\n".join([heading, *lines]) + "\n")
    table = report_tables.clients(load(path))
    assert table.headings[-2:] == ["last ece", "last before distillation"]
    assert [row[-2:] for row in table.rows] == [["0.125", "25.00 %"]] * 3


def test_the_memory_of_gpus_is_told_of_each_client(tmp_path):
    path = make_run(tmp_path / "run")
    assert "GPU memory" not in report_tables.clients(load(path)).headings
    heading, *lines = (path / "timings.csv").read_text().splitlines()
    lines = [f"{line},{(index + 1) * 1e6}" for index, line in enumerate(lines)]
    (path / "timings.csv").write_text("\n".join([f"{heading},gpu_peak_bytes", *lines]) + "\n")
    table = report_tables.clients(load(path))
    shown = [row[table.headings.index("GPU memory")] for row in table.rows]
    assert shown == [f"{len(lines) - 2 + client}.00 MB" for client in range(3)]


def test_the_facts_on_top(page):
    for fact in ("69.23 %", "round 2", "840 B", "2.64 kB", "3 of 3", "12.5 s", "the run is complete"):
        assert fact in page.text


def test_the_whole_config_is_there_with_what_is_not_default_marked(path, page):
    text = (path / "report.html").read_text()
    marked = re.findall(r'<tr class="changed"><th>(.*?)</th><td>(.*?)</td>', text)
    assert marked == [("clients", "3"), ("rounds", "2"), ("dataset", "spiral"), ("name", "fedproto")]
    experiment = load(path).experiment
    rows = [row for table in page.tables for row in table]
    assert ["beta", str(experiment.data.beta)] in rows and ["name", "fedproto"] in rows


# --------------------------------------------------------------------------------------------------- the page


def test_the_page_has_all_pictures_and_needs_nothing_else(path, page):
    assert page.figures == len(list((path / "plots").glob("*.svg"))) == len(list((path / "plots").glob("*.png")))
    assert page.figures == 14
    assert all(target.startswith(("#", "data:")) for target in page.loads)
    assert len(page.ids) == len(set(page.ids)), "ids are unique over all pictures"
    assert {target[1:] for target in page.loads if target.startswith("#")} <= set(page.ids)
    text = (path / "report.html").read_text()
    assert "<script" not in text and "@import" not in text and not re.search(r"url\((?!#)", text)


def test_names_are_shown_as_they_are_and_not_run(tmp_path):
    path = make_run(tmp_path / "<b>run</b>", dataset="data/<script>alert(1)</script>")
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(
        json.dumps(summary | {"reason": "stopped & <i>gone</i>", "completed": False})
    )
    for name in ("records", "timings.csv", "server_timings.csv", "ledger.csv", "partition.csv"):
        shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()
    text = report.write_report(path).read_text()
    assert "<script" not in text and "<b>" not in text and "<i>" not in text
    assert "stopped &amp; &lt;i&gt;gone&lt;/i&gt;" in text


def test_a_killed_run_has_a_page_too(tmp_path):
    path = make_run(tmp_path / "run")
    for name in ("summary.json", "ledger.csv", "partition.csv", "timings.csv", "server_timings.csv"):
        (path / name).unlink()
    shutil.rmtree(path / "records")
    page = Page(report.write_report(path).read_text())
    assert "the run was interrupted before it wrote a summary" in page.text
    assert page.table("client")[1] == ["0", "–", "–", "–", "–", "75.00 %", "75.00 %", "1.5000", "–", "–", "–"]
    assert not any(table[0][0] in ("purpose", "payload", "in a client's mean round") for table in page.tables)


def test_a_page_that_cannot_be_written(path, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"the report .*report\.html cannot be written: .*; choose another place"):
        report._write(tmp_path / "file" / "report.html", "page")


# -------------------------------------------------------------------------------------------------- comparison


def test_several_runs_on_one_page(path, tmp_path):
    other = make_run(tmp_path / "other", method="local", wire=False)
    out, left_out = report.write_comparison([path, other], tmp_path / "pages" / "both.html")
    assert left_out == []
    page = Page(out.read_text())
    assert [row[:2] for row in page.table("method")[1:]] == [["Local", "69.23"], ["FedProto", "69.23"]]
    _, *rows = page.table("run")
    assert rows == [
        ["other", "Local", "spiral", "3", "2", "69.23 %", "2", "69.23 %", "–", "–", "12.5"],
        ["a run", "FedProto", "spiral", "3", "2", "69.23 %", "2", "69.23 %", "840 B", "2.64 kB", "12.5"],
    ]
    assert "stopped early" not in page.text
    assert page.figures == 5
    names = sorted(path.name for path in (tmp_path / "pages" / "both_plots").iterdir())
    assert names == [
        f"{name}.{kind}"
        for name in (
            "accuracy_by_bytes",
            "accuracy_by_round",
            "accuracy_by_seconds",
            "accuracy_of_clients",
            "margins",
        )
        for kind in ("png", "svg")
    ]
    assert page.table("option")[1:] == [["method.name", "Local", "FedProto"]]


@pytest.mark.usefixtures("one_picture")
def test_a_run_that_stopped_early_is_marked_among_others(path, tmp_path):
    other = make_run(tmp_path / "<i>", wire=False, settings={"run": {"seed": 2}})
    summary = json.loads((other / "summary.json").read_text())
    (other / "summary.json").write_text(json.dumps(summary | {"completed": False}))
    text = report.write_comparison([path, other], tmp_path / "both.html")[0].read_text()
    assert "left out where others of their group are complete: &lt;i&gt;" in text
    assert '<th>&lt;i&gt; <span class="bad">(stopped early)</span></th>' in text and "<th>a run</th>" in text


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path):
    folders = [make_run(tmp_path / n / "run", settings={"run": {"seed": int(n)}}) for n in "12"]
    table = report_tables.comparison(collect(folders))
    assert [row[0] for row in table.rows] == [str(folder) for folder in folders]


@pytest.mark.usefixtures("one_picture")
def test_what_makes_runs_hard_to_compare_is_said_above_the_plots(tmp_path):
    make_run(tmp_path / "runs" / "a", settings={"train": {"lr": 0.5}})
    make_run(tmp_path / "runs" / "b", method="fedtgp")
    make_run(tmp_path / "runs" / "c", method="local")
    (tmp_path / "runs" / "c" / "metrics.csv").write_text("round\n1\n")
    out, left_out = report.write_comparison([tmp_path / "runs"], tmp_path / "page.html")
    text = out.read_text()
    caution = "Train.lr is not the same for all methods: 0.5 for FedProto; 0.01 for FedTGP."
    assert len(left_out) == 1 and "c was made by another version" in left_out[0]
    assert text.index('class="notice"') < text.index(caution) < text.index("<figure")
    assert text.index("c was made by another version") < text.index("<figure")


@pytest.mark.usefixtures("one_picture")
def test_losses_of_fedktl_are_explained(tmp_path):
    path = make_run(tmp_path / "run")
    lines = (path / "metrics.csv").read_text().splitlines()
    (path / "metrics.csv").write_text("".join(f"{a},{b}\n" for a, b in zip(lines, ("mmd", 1, 2, 3), strict=True)))
    assert "maximum mean discrepancy" in report.write_report(path).read_text()


# ------------------------------------------------------------------------------------------------- the browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

MEASURE = """
<script>
addEventListener("load", () => {
  const page = document.getElementById("page").contentDocument;
  const wide = (element) => Math.round(element.getBoundingClientRect().width);
  const found = {
    inner: wide(page.documentElement), content: page.documentElement.scrollWidth,
    pictures: [...page.querySelectorAll("figure svg")].map(wide),
    tables: [...page.querySelectorAll("table")].map((table) => table.rows.length),
    ink: getComputedStyle(page.querySelector("figure svg text, figure svg path")).fill,
  };
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script>
"""


def open_in_browser(page, folder, width):
    """Sizes as a browser lays the page out, and what it says on its console."""
    framed = (
        f'<iframe id="page" style="width:{width}px;height:3000px;border:0" srcdoc="{html.escape(page)}"></iframe>'
    )
    (folder / "frame.html").write_text(f'<!doctype html><pre id="found"></pre>{framed}{MEASURE}')
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *("--dump-dom", "--window-size=1400,1000"),
            *(f"--user-data-dir={folder / 'profile'}", f"file://{folder}/frame.html"),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', done.stdout)[1])), console


if CHROMIUM:  # without a browser there is nothing to open the page with

    @pytest.mark.process
    @pytest.mark.parametrize("width", [1300, 400])
    def test_a_browser_shows_the_page(path, tmp_path, width):
        found, console = open_in_browser((path / "report.html").read_text(), tmp_path, width)
        assert console == []
        assert found["content"] == found["inner"] > width - 20, "nothing sticks out at the side"
        assert len(found["pictures"]) == 14 and min(found["pictures"]) > 0.75 * min(width, 560)
        assert found["tables"][:5] == [15, 4, 7, 4, 8]

    @pytest.mark.process
    def test_a_browser_complains_of_what_is_wrong(tmp_path):
        """The test above would see an error."""
        page = "<html><figure><svg><path/></svg></figure><script>console.error('wrong')</script></html>"
        assert "wrong" in open_in_browser(page, tmp_path, 400)[1][0]


def test_what_a_method_tests_beside_its_clients_is_among_the_facts(tmp_path):
    path = make_run(tmp_path / "run")
    heading, *rows = (path / "metrics.csv").read_text().splitlines()
    shares = ("0.5", "0.75", "")  # of rounds 0 to 2
    lines = [f"{heading},server_accuracy", *(f"{row},{share}" for row, share in zip(rows, shares, strict=True))]
    (path / "metrics.csv").write_text("\n".join(lines) + "\n")
    assert ("server", "75.00 %", "best, round 1") in report_tables.facts(load(path))
