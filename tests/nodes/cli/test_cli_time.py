"""`fedsim time`: a run made by hand, whose seconds can be worked out on paper."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from made_run import make_run

from fedsim.errors import UserError
from nodes.cli.time import command

LINK = "up=800bit down=4kbit delay=100ms"
"""An answer of 110 bytes is 1.1 s under way and 0.1 s longer; work of 10 or 410 bytes 0.02 and 0.82 s."""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for method in ("fedproto", "fedtgp"):
        folder = make_run(Path("runs") / method, method=method, settings={"cluster": {"slots": 1}})
        with (folder / "events.jsonl").open("a") as events:
            for client in range(3):
                events.write(json.dumps({"event": "client_ready", "client": client, "place": "here"}) + "\n")
    return Path("runs")


def time(*words: object) -> Result:
    return CliRunner().invoke(
        command, [str(word) for word in words], catch_exceptions=False, standalone_mode=False
    )


def test_a_run_is_asked_again_for_another_link(runs: Path) -> None:
    """Own devices: 0.12 + 1.25 + 1.2 s, 0.5 s of the server; then 0.92 + 1.25 + 1.2 + 0.5; then 0.92 down.

    One slot: three clients one after the other, with 0.25 s of tests each; at the end 0.92 + 0.375 + 0.2 s each.
    """
    done = time(runs / "fedproto", "--link", LINK, "--format", "csv")

    assert done.return_value == 0
    seconds = [float(line.split(",")[6]) for line in done.stdout.splitlines()[1:]]
    assert seconds[0] == pytest.approx(0.12 + 1.25 + 1.2 + 0.5 + 0.92 + 1.25 + 1.2 + 0.5 + 0.92)
    assert seconds[1] == pytest.approx(
        3 * (0.12 + 1.5 + 1.2) + 0.5 + 3 * (0.92 + 1.5 + 1.2) + 0.5 + 2 * 1.495 + 0.92
    )


def test_methods_are_compared_by_the_time_to_an_accuracy(runs: Path) -> None:
    done = time(
        runs, "--link", LINK, "--link", "fibre", "--accuracy", "30,60,99", "--schedule", "devices",
        "--metric", "seconds,megabytes,rounds", "--out", "times.tex", "--out", "times.md",
    )  # fmt: skip

    assert done.return_value == 0, done.stderr
    assert "FedTGP" in done.stdout and "A dash: never reached." in done.stdout
    assert "The ranking to 30 % is the same over all these links" in done.stdout
    assert "\\toprule" in Path("times.tex").read_text() and "| method |" in Path("times.md").read_text()


def test_accuracy_by_seconds_is_drawn(runs: Path) -> None:
    done = time(runs, "--link", "4g", "--link", "3g", "--schedule", "devices", "--plot", "curve.svg")
    assert done.return_value == 0 and "<svg" in Path("curve.svg").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--link", "5g"), "there is no link '5g'"),
        (("--link", "up=0bit down=1mbit"), "'up=0bit' in the link"),
        (("--device", "toaster", "--schedule", "devices"), "there is no device 'toaster'"),
        (("--device", "phone"), "--device is for clients on devices of their own"),
        (("--accuracy", "x"), "--accuracy wants numbers in per cent"),
        (("--accuracy", "800"), "--accuracy 800 is not between 0 and 100 per cent."),
        (("--schedule", "slot"), "there is no schedule 'slot'; did you mean slots?"),
        (("--metric", "bytes"), "there is no metric 'bytes'"),
        (("--out", "a.pdf"), "a.pdf is to be a table of what kind?"),
    ],
)
def test_mistakes_are_sentences(runs: Path, words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        time(runs, *words)
    assert str(caught.value).startswith(sentence)


def test_a_run_without_a_wire_has_nothing_to_time(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", wire=False)
    with pytest.raises(UserError, match=r"run has no ledger, for it had no wire; run it without --in-process."):
        time(folder, "--link", "4g")
