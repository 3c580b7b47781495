"""`fedsim table`: what is printed, what is written, what is refused."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from made_run import make_run

from fedsim.errors import UserError
from nodes.cli.table import command


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for method in ("local", "fedtgp"):
        for seed in (1, 2):
            make_run(Path("sweep") / f"{method}-{seed}", method=method, settings={"run": {"seed": seed}})
    return Path("sweep")


def table(*words: object) -> Result:
    return CliRunner().invoke(
        command, [str(word) for word in words], catch_exceptions=False, standalone_mode=False
    )


def test_a_table_is_printed_and_written(sweep: Path) -> None:
    done = table(sweep, "--out", "t/a.tex", "--out", "a.csv", "--out", "a.md", "--baseline", "local")
    assert done.return_value == 0
    assert "FedTGP  69.23 ± 0.00" in done.stdout and "+0.00 [0.00, 0.00]" in done.stdout
    assert "2 seeds (1, 2), each with a partition of its own, so that both vary (n = 2)" in done.stdout
    assert "\\toprule" in Path("t/a.tex").read_text() and "| method |" in Path("a.md").read_text()
    assert Path("a.csv").read_text().startswith("method,metric,round,unit,mean,deviation")


def test_only_the_table_goes_to_standard_output(sweep: Path) -> None:
    (sweep / "local-2" / "config.toml").write_text("[[")
    done = table(sweep, "--format", "csv")
    assert done.return_value == 1, "not all that was asked for is in it"
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr.startswith("left out: ") and "is not valid TOML" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--out", "a.pdf"), "a.pdf is to be a table of what kind? Give it a name that ends in .tex, .csv, .md."),
        (("--caption", "x"), "--caption is for LaTeX; add --format latex or --out FILE.tex."),
        (("--round", "first"), "--round wants best, last or best,last, not 'first'."),
        (("--rows", "method,"), "--rows wants names separated by commas, not 'method,'."),
        (("--out", "sweep/local-1/config.toml/a.md"), "sweep/local-1/config.toml/a.md cannot be written"),
    ],
)
def test_mistakes_are_sentences(sweep: Path, words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        table(sweep, *words)
    assert str(caught.value).startswith(sentence)
