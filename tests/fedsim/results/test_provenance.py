"""Where a run's numbers come from: taken down when it begins, shown in reports, compared between runs."""

import hashlib
import json
import platform
import subprocess
from pathlib import Path

import pytest
import torch
from made_run import make_run

from fedsim import config
from fedsim.results import provenance
from fedsim.results.folder import RunFolder
from fedsim.results.groups import collect
from fedsim.results.load import load
from fedsim.results.report import page, tables

pytestmark = pytest.mark.process  # git is asked


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_all_of_it_is_taken_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from fedsim.method import Client\n")
    git(tmp_path, "init")
    git(tmp_path, "add", "mine.py")
    git(tmp_path, "commit", "-m", "first")
    experiment = config.build([{"method": {"name": "./mine.py"}, "data": {"dataset": "spiral"}}])
    found = provenance.collect(experiment)
    assert (
        found["versions"] | {"torch": torch.__version__, "python": platform.python_version()} == found["versions"]
    )
    assert found["commit"]["here"] == {"commit": git(tmp_path, "rev-parse", "HEAD"), "dirty": False}
    assert found["own_files"] == {"mine.py": hashlib.sha256((tmp_path / "mine.py").read_bytes()).hexdigest()}
    assert found["machine"]["cores"] >= 1 and found["machine"]["memory_bytes"] > 2**20 and found["machine"]["cpu"]
    assert len(found["data"]["fingerprint"]) >= 16 and found["command"]
    (tmp_path / "mine.py").write_text("from fedsim.method import Client  # changed\n")
    assert provenance.collect(experiment)["commit"]["here"]["dirty"]
    json.dumps(found)


def test_where_there_is_no_repository_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    assert provenance.collect(config.build([]))["commit"] == {"fedsim": None, "here": None}


@pytest.mark.usefixtures("one_picture")
def test_reports_show_it_and_comparisons_what_differs(tmp_path: Path) -> None:
    base = provenance.collect(config.build([{"data": {"dataset": "spiral"}}]))
    for name, version, method in (("one", "2.0", "fedproto"), ("two", "2.1", "fedtgp")):
        folder = RunFolder.open(make_run(tmp_path / name, method=method))
        folder.provenance = {**base, "command": f"fedsim run {name}", "versions": {"torch": version, "numpy": "2"}}
        summary = folder.summary()
        assert summary is not None
        folder.write_summary(summary)
    runs = collect([tmp_path / "one", tmp_path / "two"])
    assert ["torch", "2.0", "2.1"] in tables.differences(runs).rows
    text = page.write_report(tmp_path / "one").read_text()
    assert '<section id="provenance">' in text and "fedsim run one" in text and base["data"]["fingerprint"] in text
    assert "provenance" not in page.write_report(make_run(tmp_path / "old")).read_text()


def test_a_run_shows_itself_in_a_few_lines(tmp_path: Path) -> None:
    lines = repr(load(make_run(tmp_path / "made"))).splitlines()
    assert lines[0] == "FedProto on spiral, 3 clients, 2 rounds: complete"
    assert lines[1] == "best accuracy 69.23 % in round 2, last 69.23 %, 12.5 s"
    assert lines[2].startswith(f"{tmp_path / 'made'}: metrics 3×") and len(lines) == 3
