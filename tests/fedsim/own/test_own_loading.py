"""Own Python files: only the named one is run, nothing is left behind, and every failure is one sentence."""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsim.errors import UserError
from fedsim.own import loading


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a file into the folder that the test is in."""
    monkeypatch.chdir(tmp_path)

    def write(content: str, name: str = "mine.py") -> str:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
        return f"./{name}"

    return write


def refused(place: str, name: str = "load") -> str:
    with pytest.raises(UserError) as caught:
        loading.load(place, name)
    message = str(caught.value)
    assert "\n" not in message and message.endswith((".", "?"))
    return message


def test_only_the_named_file_is_run_and_nothing_is_left_behind(write, tmp_path):
    write("raise RuntimeError('a neighbour was imported')", "neighbour.py")
    place = write("from dataclasses import dataclass\n@dataclass\nclass Made:\n    x: int = 1\n")
    path, modules = list(sys.path), set(sys.modules)
    assert loading.load(place, "Made")().x == 1
    assert sys.path == path
    assert [name for name in set(sys.modules) - modules if not name.startswith("fedsim_own_mine_")] == []
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine.py", "neighbour.py"]


def test_a_file_is_run_once_and_again_when_it_has_changed(write):
    place = write("made = object()")
    first = loading.load(place, "made")
    assert loading.load(place, "made") is first
    write("made = 2")
    assert loading.load(place, "made") == 2


def test_torchvision_is_there_for_own_code_wherever_it_is_for_ours(write):
    place = write("from torchvision.datasets import FakeData\nload = FakeData(3, (3, 8, 8))")
    assert loading.load(place, "load")[2][0].size == (8, 8)


def test_files_of_one_name_are_different_modules(write):
    places = [write("load = 1", "one/data.py"), write("load = 2", "two/data.py")]
    assert [loading.load(place, "load") for place in places] == [1, 2]


def test_the_hash_is_that_of_the_file(write):
    place = write("load = 1")
    assert loading.sha256(place) == hashlib.sha256(b"load = 1").hexdigest()
    assert loading.sha256("fedsim.seeds") == loading.sha256(str(loading.file_of("fedsim.seeds")))


def test_something_in_a_module(write, monkeypatch, tmp_path):
    write("load = 3", "pack/inner.py")
    assert refused("pack.inner") == (
        "Python finds no module pack.inner; write ./pack/inner.py or put its folder on PYTHONPATH."
    )
    assert refused("nowhere.at_all").startswith(
        "Python finds no module nowhere.at_all; write the path of its file"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert loading.load("pack.inner", "load") == 3


def test_a_file_that_does_not_exist(write, tmp_path):
    write("")
    message = refused("./other.py")
    assert message == f"there is no file {tmp_path}/other.py; give the path of a Python file that exists."


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("x = 1\n\ny = undefined\n", "line 3, NameError: name 'undefined' is not defined"),
        ("x = 1\ndef load(:\n", "line 2, SyntaxError: "),
        ("import sys\nsys.exit(3)", "line 2, SystemExit: 3"),
        ("import no_such_package", "line 1, ModuleNotFoundError: No module named 'no_such_package'"),
        ("def f():\n    raise ValueError('two\\nlines')\nf()", "line 2, ValueError: two lines"),
    ],
)
def test_a_file_that_raises_on_import(write, content, reason):
    place, modules = write(content), set(sys.modules)
    assert refused(place).startswith(f"{place} cannot be imported ({reason}")
    assert not [name for name in set(sys.modules) - modules if name.startswith("fedsim_own_mine_")]


def test_a_file_that_imports_its_neighbour(write, tmp_path):
    write("", "helper.py")
    assert refused(write("import helper")) == (
        "./mine.py imports helper, which lies beside it, but only the named file is found by itself; put its "
        f"folder on PYTHONPATH, as in PYTHONPATH={tmp_path}."
    )


def test_a_name_that_is_not_there(write):
    place = write("import os\nfrom math import sin\ndef load(): pass\ndef other(): pass\n_hidden = 1")
    assert refused(place, "lod") == "there is no object in ./mine.py called 'lod'; did you mean load?"
    assert refused(place, "xyz") == "there is no object in ./mine.py called 'xyz'; known: load, other."
    assert refused(place, "") == "say what to take from ./mine.py, as in ./mine.py:NAME; it has load, other."
    assert refused(write("import os", "empty.py")).startswith("./empty.py defines nothing; define load there")


def test_errors_of_what_was_loaded_name_the_last_line_of_the_file(write):
    place = write("def load():\n    import json\n    return json.loads('{')")
    with (
        pytest.raises(UserError, match=r"^loading failed \(line 3, JSONDecodeError: Expecting .*\); mend it and"),
        loading.explained("loading failed", loading.file_of(place)),
    ):
        loading.load(place, "load")()
