"""The site is built as `make docs` does it, with warnings as errors, and says what the code has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_run import make_run

from fedsim import config, methods
from fedsim.results import folder
from nodes.cli import fedsim as program

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(out)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.process
def test_every_method_command_and_option_has_its_place(site: Path) -> None:
    for name in methods.names():
        assert f"--method {name}" in text_of(site / "methods" / f"{name}.html")
    commands, options = (text_of(site / "reference" / f"{page}.html") for page in ("commands", "options"))
    missing = [name for name in program.list_commands(None) if f"Usage: fedsim {name}" not in commands]  # type: ignore[arg-type]
    assert missing == []
    for section in ("run", "data", "model", "train", "cluster"):
        for option in getattr(config.Experiment(), section).__struct_fields__:
            assert option in options, f"{section}.{option}"


@pytest.mark.process
def test_the_search_works_without_a_server(site: Path) -> None:
    index = (site / "searchindex.js").read_text()

    assert index.startswith("Search.setIndex(") and "fedtgp" in index


def test_every_file_and_column_of_a_run_is_explained(tmp_path: Path) -> None:
    page = (DOCS / "reference" / "run-folder.md").read_text()
    run = make_run(tmp_path / "run")
    columns = {*folder.PARTITION_COLUMNS, *folder.TIMING_COLUMNS, *folder.SERVER_TIMING_COLUMNS}
    for table in run.glob("*.csv"):
        columns |= set(table.read_text().partition("\n")[0].split(","))

    assert [name for name in sorted(columns) if f"`{name}`" not in page] == []
    assert [path.name for path in run.iterdir() if not re.search(rf"`{path.name}/?`", page)] == []


def text_of(page: Path) -> str:
    return re.sub(r"<[^>]+>", "", page.read_text())
