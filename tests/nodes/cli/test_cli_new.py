"""`fedsim new`: what it writes, and what it refuses to write over."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import PROJECT

from fedsim.errors import UserError
from nodes.cli.new import command


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def new(*words: str) -> str:
    result = CliRunner().invoke(command, words)
    if result.exception:
        raise result.exception
    return result.output


def test_a_method_says_its_name_and_how_to_try_it(home):
    assert new("method", "fedmine.py") == "wrote fedmine.py; try it with: fedsim check ./fedmine.py\n"
    text = (home / "fedmine.py").read_text()
    assert text.startswith('"""fedmine: ') and "fedsim check ./fedmine.py" in text and "FILE" not in text


def test_the_command_to_try_it_is_one_that_can_be_typed(home):
    (home / "a folder").mkdir()
    assert new("method", str(home / "mine.py")).endswith(f": fedsim check {home}/mine.py\n")
    assert new("model", "a folder/nets.py").endswith(": fedsim check './a folder/nets.py:Small'\n")


@pytest.mark.parametrize(("kind", "name"), [("model", "Small"), ("data", "load")])
def test_models_and_data_have_names_of_their_own(kind, name):
    assert new(kind, "some.py") == f"wrote some.py; try it with: fedsim check ./some.py:{name}\n"


def test_nothing_is_written_over(home):
    (home / "mine.py").write_text("precious")
    with pytest.raises(UserError, match=r"^mine.py exists already; choose another name\.$"):
        new("method", "mine.py")
    assert (home / "mine.py").read_text() == "precious"


@pytest.mark.parametrize("file", ["mine", "mine.txt", "my-method.py", "1st.py"])
def test_only_what_python_can_import_is_a_name(file, home):
    with pytest.raises(UserError, match="is no name for a Python file"):
        new("method", file)
    assert not list(home.iterdir())


def test_a_folder_that_is_not_there():
    with pytest.raises(UserError, match=r"^no/mine.py cannot be written: No such file or directory\.$"):
        new("method", "no/mine.py")


def test_the_documentation_shows_what_is_written(home):
    new("method", "my_method.py")
    document = (PROJECT / "docs" / "adding-a-method.md").read_text()
    assert f"```python\n{(home / 'my_method.py').read_text()}```" in document
