"""Where payloads were encoded, or clients had links, the report says so: in what, and what was chosen."""

from pathlib import Path

import pytest
from made_run import make_run

from fedsim.results.load import load
from fedsim.results.report import page, tables


@pytest.fixture
def encoded(tmp_path: Path) -> Path:
    """The run made by hand, as if its prototypes had been twice as large in memory."""
    path = make_run(tmp_path / "run")
    header, *lines = (path / "ledger.csv").read_text().splitlines()
    size = header.split(",").index("payload_bytes")
    rows = [f"{line},{2 * int(line.split(',')[size])}" for line in lines]
    (path / "ledger.csv").write_text("\n".join([f"{header},decoded_bytes", *rows]) + "\n")
    with (path / "config.toml").open("a") as file:
        file.write('\n[wire]\nprototypes = "float16"\n')
    return path


def test_the_tables_have_the_encoding_and_both_sizes(encoded: Path) -> None:
    found = tables.payloads(load(encoded))
    row = dict(zip(found.headings, found.rows[0], strict=True))
    assert (row["payload"], row["encoding"]) == ("prototypes", "float16")
    assert row["payload bytes up"] == "96" and row["decoded bytes up"] == "192"
    assert dict(zip(found.headings, found.rows[1], strict=True))["encoding"] == "–"
    costs = tables.costs(load(encoded))
    assert costs.headings[-2:] == ["decoded bytes", "overhead"]


def test_other_runs_have_neither(tmp_path: Path) -> None:
    run = load(make_run(tmp_path / "run"))
    assert "encoding" not in tables.payloads(run).headings
    assert "decoded bytes" not in tables.costs(run).headings


@pytest.mark.usefixtures("one_picture")
def test_encodings_links_and_devices_are_settings_that_were_chosen(encoded: Path) -> None:
    """What stands in a section that most runs do not have has no default to be compared with."""
    with (encoded / "config.toml").open("a") as file:
        file.write('\n[world]\nlink = "4g"\n')
    settings = dict(tables.config(load(encoded).experiment))
    assert settings["wire"] == [("prototypes", "float16", True)]
    assert settings["world"] == [("link", "4g", True)]
    text = page.write_report(encoded).read_text()
    assert "float16" in text and "4g" in text
