"""The own code of an experiment: where it lies, its copies in a run folder, and equal copies elsewhere."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from fedsim.config import build, read_toml, to_layer
from fedsim.errors import UserError
from fedsim.own import files, loading
from fedsim.results.folder import RunFolder

METHOD = """
from fedsim.methods.local import Client
import pathlib
BESIDE = pathlib.Path(__file__).parent / "beside.txt"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder, which is also the one that commands are typed in."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "mine.py").write_text(METHOD)
    (folder / "nets.py").write_text("from torch.nn import Linear\nclass Net(Linear): ...\n")
    (folder / "beside.txt").write_text("beside the original")
    return folder


@pytest.fixture
def everything_allowed():
    yield
    loading.allow_only(None)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def mine(**sections):
    return build([{"method": {"name": "./mine.py"}}, sections])


def test_files_are_named_by_where_they_are(home):
    layer = {"method": {"name": "./mine.py", "server_model": "nets.py:Net", "generator": "x.pkl"},
             "model": {"group": "CNN:256, ./nets.py:Net,timm:tiny,MLP,a.b:Net"},
             "data": {"dataset": "~/data.py:load", "data_dir": "./here"}}  # fmt: skip
    found = files.absolute(layer, Path())
    assert found["method"] == {
        "name": f"{home}/mine.py",
        "server_model": f"{home}/nets.py:Net",
        "generator": "x.pkl",
    }
    assert found["model"]["group"] == f"CNN:256,{home}/nets.py:Net,timm:tiny,MLP,a.b:Net"
    assert found["data"] == {"dataset": f"{Path.home()}/data.py:load", "data_dir": "./here"}
    assert files.places(found) == [
        f"{home}/mine.py", f"{home}/nets.py", "a.b", f"{Path.home()}/data.py",
    ]  # fmt: skip


def test_what_is_no_code_stays_as_it_was_written():
    layer = {
        "model": {"group": "CNN , ResNet18:256"},
        "data": {"dataset": "hf:mnist"},
        "method": {"name": "fedtgp"},
    }
    assert files.absolute(layer, Path("/x")) == layer
    assert files.places(layer) == []


def test_two_files_of_one_name_are_refused(home):
    (home / "other").mkdir()
    shutil.copy("mine.py", "other")
    with pytest.raises(
        UserError, match=r"mine.py and .*other/mine.py have the same name; rename one of the files"
    ):
        mine(model={"group": "./other/mine.py:Net"})


def test_a_config_file_looks_from_where_it_is(home, monkeypatch):
    (home / "experiment.toml").write_text('[method]\nname = "mine.py"\n[model]\ngroup = "./nets.py:Net"\n')
    monkeypatch.chdir("/")
    experiment = build([read_toml(home / "experiment.toml")])
    assert experiment.method["name"] == f"{home}/mine.py" and experiment.model.group == f"{home}/nets.py:Net"
    assert experiment.method_name == "mine"


# ------------------------------------------------------------------------------------------------ run folders


def test_a_run_folder_keeps_copies_and_names_them(home, tmp_path):
    folder = RunFolder.create(tmp_path / "run", mine(model={"group": "CNN,./nets.py:Net"}))
    code = folder.path / "code"
    assert sorted(path.name for path in code.iterdir()) == ["mine.py", "nets.py", "origins.json"]
    assert (code / "mine.py").read_text() == METHOD
    text = (folder.path / "config.toml").read_text()
    assert 'name = "code/mine.py"' in text and 'group = "CNN,code/nets.py:Net"' in text
    assert json.loads((code / "origins.json").read_text())["mine.py"] == {
        "from": f"{home}/mine.py", "sha256": sha256(home / "mine.py"),
    }  # fmt: skip
    assert folder.experiment().method["name"] == f"{code}/mine.py"


def test_a_run_without_own_code_has_no_folder_for_it(tmp_path):
    assert not (RunFolder.create(tmp_path / "run", build([])).path / "code").exists()


def test_a_copy_is_run_as_the_file_it_was_copied_from(home, tmp_path):
    before = mine()
    folder = RunFolder.create(tmp_path / "run", before)
    module = folder.experiment().method_module
    assert module is before.method_module, "what was imported already is not run again"
    assert module.BESIDE.read_text() == "beside the original"


def test_a_run_goes_on_with_its_copies(home, tmp_path):
    folder = RunFolder.create(tmp_path / "run", mine())
    (home / "mine.py").write_text("raise RuntimeError('changed since')")
    module = folder.experiment().method_module
    assert module.BESIDE.read_text() == "beside the original"
    (home / "mine.py").unlink()
    shutil.move(folder.path, tmp_path / "moved")
    experiment = RunFolder.open(tmp_path / "moved").experiment()
    assert experiment.method_name == "mine" and experiment.method_module.Client


def test_a_run_is_repeated_from_its_config(home, tmp_path):
    RunFolder.create(tmp_path / "run", mine())
    (home / "mine.py").write_text("raise RuntimeError('changed since')")
    again = RunFolder.create(tmp_path / "again", build([read_toml(tmp_path / "run" / "config.toml")]))
    assert (again.path / "code" / "mine.py").read_text() == METHOD
    origins = json.loads((again.path / "code" / "origins.json").read_text())
    assert origins["mine.py"]["from"] == f"{home}/mine.py", "not the copy that it was copied from"


def test_a_copy_that_was_edited_is_refused(home, tmp_path):
    folder = RunFolder.create(tmp_path / "run", mine())
    copy = folder.path / "code" / "mine.py"
    copy.chmod(0o644)
    copy.write_text(METHOD + "# edited\n")
    with pytest.raises(
        UserError, match=r"code/mine.py has changed since the run began: its SHA-256 was .* now it is "
    ):
        folder.experiment()


def test_a_module_that_has_changed_is_refused(home, tmp_path, monkeypatch):
    (home / "packaged").mkdir()
    module = home / "packaged" / "mine.py"
    module.write_text(METHOD)
    monkeypatch.syspath_prepend(str(home))
    folder = RunFolder.create(tmp_path / "run", build([{"method": {"name": "packaged.mine"}}]))
    assert (folder.path / "code" / "packaged.mine.py").read_text() == METHOD
    assert folder.experiment().method_name == "mine"
    module.write_text(METHOD + "# edited\n")
    with pytest.raises(
        UserError, match=r"packaged.mine has changed .*put it back .* as in .*code/packaged.mine.py\.$"
    ):
        folder.experiment()


def test_where_code_lies_does_not_make_another_experiment_but_its_content_does(home, tmp_path):
    first = files.without_places(to_layer(mine()))
    shutil.copytree(home, tmp_path / "elsewhere")
    there = build([{"method": {"name": f"{tmp_path}/elsewhere/mine.py"}}])
    assert files.without_places(to_layer(there)) == first
    (home / "mine.py").write_text(METHOD + "# edited\n")
    assert files.without_places(to_layer(mine())) != first


# ------------------------------------------------------------------------------------------- other machines


def test_an_equal_copy_is_found_whatever_it_is_called(home, tmp_path):
    shutil.copy("mine.py", tmp_path / "copied.py")
    named = [str(tmp_path / "copied.py"), "./nets.py"]
    told = {"/far/away/mine.py": sha256(home / "mine.py"), "/far/away/nets.py": sha256(home / "nets.py")}
    assert files.matched(told, named) == dict(zip(told, named, strict=True))


@pytest.mark.parametrize("others", [(), ("./nets.py",)])
def test_a_copy_that_differs_is_refused_with_both_hashes(home, others):
    with pytest.raises(UserError) as caught:
        files.matched({"/far/away/mine.py": "0" * 64}, ["./mine.py", *others])
    assert str(caught.value) == (
        f"./mine.py differs from the server's mine.py: its SHA-256 is {sha256(home / 'mine.py')}, the server's is "
        f"{'0' * 64}; copy the server's file to this machine."
    )


def test_code_that_was_not_named_here_is_refused(home):
    with pytest.raises(
        UserError, match=r"^the run uses mine.py \(SHA-256 0{64}\), and code never travels; .*--code mine"
    ):
        files.matched({f"{home}/mine.py": "0" * 64}, [])


def test_a_process_that_allows_little_runs_nothing_else(home, everything_allowed):
    loading.allow_only({"/far/away/mine.py": "./mine.py"})
    assert loading.load_module("/far/away/mine.py").Client
    assert loading.file_of("/far/away/mine.py") == home / "mine.py"
    for place in (f"{home}/nets.py", "json"):
        with pytest.raises(UserError, match="is code that the run names but nobody named here"):
            loading.load_module(place)
    with pytest.raises(UserError, match="nobody named here"):
        loading.file_of("json")
