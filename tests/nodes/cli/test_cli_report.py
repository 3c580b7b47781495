"""`fedsim report`, and the report that every run draws when it is over, without ever harming the run."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from commands import PROJECT, TINY, Start
from made_run import make_run

from fedsim.errors import UserError
from fedsim.results.report import page as report_page
from nodes.cli.report import command
from nodes.display import report_process

RUN = PROJECT / "run_cluster.py"


def report(*words: object) -> Result:
    return CliRunner().invoke(command, [str(word) for word in words], catch_exceptions=False)


def test_one_run_is_drawn_into_its_folder(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    done = report(path)
    assert done.output == f"wrote {path / 'report.html'}\n"
    assert (path / "report.html").stat().st_size > 100_000 and (path / "plots" / "traffic.png").exists()


def test_several_runs_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = make_run(tmp_path / "one"), make_run(tmp_path / "two", method="local")
    assert report(one, two, "--out", "pages/c.html").output == "wrote pages/c.html\n"
    assert "2 runs compared" in Path("pages/c.html").read_text()
    assert not (one / "report.html").exists()
    monkeypatch.setattr(report_page, "write_comparison", lambda runs, out: (out, []))
    assert report(one, two).output == "wrote comparison.html\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nowhere",), "there is no run folder nowhere."),
        (("run", "--out", "x.html"), "--out is for a comparison of several runs; the report of one run goes"),
        (("run", "nowhere"), "there is no run folder nowhere."),
        (("run", "run"), "the run run is given twice; give each run once."),
    ],
)
def test_mistakes_are_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("run"))
    with pytest.raises(UserError) as caught:
        report(*words)
    assert str(caught.value).startswith(sentence)


def test_a_run_ends_with_its_report(python: Start, tmp_path: Path) -> None:
    run = python(RUN, *TINY, "--out", "run", FEDSIM_NO_REPORT="0").succeed()
    assert run.stdout.endswith("report in run/report.html\n")
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("<figure") == 13 and "the run is complete" in page


def test_a_run_may_do_without(python: Start, tmp_path: Path) -> None:
    run = python(RUN, *TINY, "--out", "run", "--no-report", FEDSIM_NO_REPORT="0").succeed()
    assert "report" not in run.stdout and not (tmp_path / "run" / "report.html").exists()


def test_a_report_that_fails_does_not_fail_the_run(python: Start, tmp_path: Path) -> None:
    """With this setting matplotlib cannot even be imported."""
    run = python(
        RUN, *TINY, "--in-process", "--out", "run", FEDSIM_NO_REPORT="0", MPLBACKEND="none such"
    ).succeed()
    last = run.stdout.splitlines()[-1]
    assert last.startswith("the report was not drawn: ") and last.endswith("; try again with: fedsim report run")
    assert (tmp_path / "run" / "summary.json").exists() and run.stderr == ""


@pytest.mark.process
def test_a_report_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_process, "PATIENCE_SECONDS", 0.01)
    line = report_process.draw_report(tmp_path)
    assert line == f"the report was not drawn within 0.01 s; try again with: fedsim report {tmp_path}"


@pytest.mark.process
def test_a_folder_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    line = report_process.draw_report(tmp_path)
    assert line == (
        f"the report was not drawn: {tmp_path} is not a run folder: it has no config.toml; "
        f"try again with: fedsim report {tmp_path}"
    )
