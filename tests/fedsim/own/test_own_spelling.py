"""What is own code and what is a name, a path or a list of models."""

import pytest

from fedsim.own import spelling


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("./mine.py:load", ("./mine.py", "load")),
        ("/a/b c.py:Net", ("/a/b c.py", "Net")),
        ("package.module:load", ("package.module", "load")),
        ("./mine.py", ("./mine.py", "")),
    ],
)
def test_what_is_written_as_code(text, expected):
    assert spelling.names_code(text) and spelling.split(text) == expected


@pytest.mark.parametrize("text", ["digits", "./table.csv", "~/folder", "own.npz", "./a:b/c", "CNN,ResNet18"])
def test_what_is_not_code(text):
    assert not spelling.names_code(text)
