"""`fedsim figure`: what is drawn, what is refused, and that one broken run does not stop it."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from made_run import make_run

from fedsim.errors import UserError
from nodes.cli.figure import command


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for method in ("local", "fedtgp"):
        make_run(Path("sweep") / method, method=method)
    return Path("sweep")


def figure(*words: object) -> Result:
    return CliRunner().invoke(
        command, [str(word) for word in words], catch_exceptions=False, standalone_mode=False
    )


def test_runs_are_drawn_together_and_one_alone(sweep: Path) -> None:
    assert figure(sweep).stdout == "wrote accuracy_by_round.pdf\n"
    assert Path("accuracy_by_round.pdf").read_bytes().startswith(b"%PDF")
    done = figure(
        sweep / "fedtgp", "--plot", "traffic", "--out", "new/t.png", "--width", "page", "--height", "2in"
    )
    assert done.return_value == 0 and Path("new/t.png").read_bytes().startswith(b"\x89PNG")
    assert "accuracy_of_clients" in figure(sweep, "--list").stdout
    assert "traffic" in figure(sweep / "local", "--list").stdout


def test_a_broken_run_is_named_and_the_others_drawn(sweep: Path) -> None:
    make_run(sweep / "broken", method="fedproto")
    (sweep / "broken" / "clients.csv").write_text("round\n")
    done = figure(sweep, "--out", "a.svg")
    assert done.return_value == 1 and done.stdout == "wrote a.svg\n"
    assert done.stderr.startswith("left out: sweep/broken was made by another version")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--out", "a.jpg"),
            "a.jpg is to be a picture of what kind? Give it a name that ends in .pdf, .svg, .png.",
        ),
        (
            ("--plot", "acuracy_by_round"),
            "there is no picture 'acuracy_by_round'; did you mean accuracy_by_round?",
        ),
        (("--plot", "traffic"), "traffic is a picture of one run; name one run, or another picture: --list"),
        (("--plot", "generated_images"), "these runs have no data for generated_images; --list names"),
        (
            ("--width", "wide"),
            "'wide' is no length for a figure; write column, page, or between 1.5 and 20 inches",
        ),
    ],
)
def test_mistakes_are_sentences(sweep: Path, words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        figure(sweep, *words)
    assert str(caught.value).startswith(sentence) and not list(Path().glob("*.*"))
