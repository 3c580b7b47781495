"""The notebooks carry what they printed: nothing is left out, and nothing went wrong that was not meant to."""

import itertools
import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "tutorial").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_was_run_and_none_failed(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in cells for output in cell["outputs"]]
    printed = "".join("".join(output.get("text", "")) for output in outputs)

    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert [output for output in outputs if output["output_type"] == "error"] == []
    assert not re.search(r"^(Usage:|Error:|error:)", printed, re.MULTILINE), printed
    assert "\x1b[2K" not in printed  # lines that were drawn over
    assert path.stat().st_size < 200_000


def test_there_is_a_way_from_the_first_to_the_last() -> None:
    for path, following in itertools.pairwise(NOTEBOOKS):
        assert following.name in path.read_text(), f"{path.name} does not lead to {following.name}"
