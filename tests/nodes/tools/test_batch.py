"""What a batch takes for the same run, for a finished one and for one to go on with."""

import io
import shutil

import pytest
from rich.console import Console

from fedsim.config import build
from fedsim.errors import UserError
from fedsim.results.folder import RunFolder
from nodes.launchers import zygote
from nodes.tools.batch import Batch, Job, folder_of, identity, parse_seeds, prepare, state_of


def experiment(**sections):
    return build([{"method": {"name": "fedproto"}}, sections])


def test_only_what_changes_a_result_makes_another_run():
    same = experiment()
    assert identity(experiment(cluster={"slots": 1, "checkpoint_every": 3})) == identity(same)
    assert identity(experiment(data={"data_dir": "/elsewhere"})) == identity(same)
    assert identity(experiment(train={"lr": 0.01})) == identity(same), "a default that is written out"
    for other in ({"run": {"seed": 2}}, {"train": {"lr": 0.02}}, {"method": {"prototype_weight": 1}}):
        assert identity(experiment(**other)) != identity(same)


def test_a_generator_is_known_by_its_name_wherever_it_lies():
    here, there = (build([{"method": {"name": "fedktl", "generator": path}}]) for path in ("g.pkl", "/a/b/g.pkl"))
    assert identity(here) == identity(there)


def test_a_folder_says_what_it_holds(tmp_path):
    path = folder_of(tmp_path, experiment(data={"dataset": "some/own data.npz"}, run={"seed": 7}))
    assert path.parent == tmp_path
    assert path.name.startswith("fedproto-own-data.npz-seed7-")


def test_checkpoints_are_on_unless_the_user_chose():
    assert prepare(experiment(run={"rounds": 1000})).cluster.checkpoint_every == 50
    assert prepare(experiment(run={"rounds": 10})).cluster.checkpoint_every == 5
    assert prepare(experiment(cluster={"checkpoint_every": 2})).cluster.checkpoint_every == 2
    assert prepare(experiment(), is_chosen=True).cluster.checkpoint_every == 0


def test_states(tmp_path):
    wanted = experiment()
    path = folder_of(tmp_path, wanted)
    assert state_of(path, wanted) == "new"
    path.mkdir()
    (path / "half").write_text("left before the config was written")
    assert state_of(path, wanted) == "new" and path.exists(), "somebody may be at it; whoever runs it begins anew"
    shutil.rmtree(path)
    folder = RunFolder.create(path, prepare(wanted))
    assert state_of(path, wanted) == "begun"
    folder.write_summary({"completed": False})
    assert state_of(path, wanted) == "begun"
    folder.write_summary({"completed": True})
    assert state_of(path, wanted) == "finished"
    with pytest.raises(UserError, match="holds another experiment than its name says; remove it"):
        state_of(path, experiment(run={"seed": 3}))


@pytest.mark.parametrize("header", ["# fedsim 0.0.9\n", ""])
def test_a_run_of_another_version_is_not_mixed_in(tmp_path, header):
    wanted = experiment()
    path = folder_of(tmp_path, wanted)
    config = RunFolder.create(path, wanted).path / "config.toml"
    assert state_of(path, wanted) == "begun"
    _, _, rest = config.read_text().partition("\n")
    config.write_text(header + rest)
    by = "begun with fedsim 0.0.9" if header else "begun with a fedsim that did not say its version"
    with pytest.raises(UserError, match=f"{by} and this is .*; choose another --out, or remove it"):
        state_of(path, wanted)


def test_a_folder_of_another_version_is_one_sentence(tmp_path):
    wanted = experiment()
    path = folder_of(tmp_path, wanted)
    RunFolder.create(path, wanted)
    config = path / "config.toml"
    config.write_text(config.read_text().replace("[run]", "[run]\nwarp = 9"))
    with pytest.raises(UserError, match=r"run\.warp"):
        state_of(path, wanted)


def test_seeds():
    assert parse_seeds("3,1, 2,1") == [3, 1, 2]
    for text in ("", "1,,2", "one", "-1", "1.5"):
        with pytest.raises(UserError, match="--seeds wants whole numbers separated by commas such as 1,2,3"):
            parse_seeds(text)


def test_identity_does_not_depend_on_the_order_in_which_options_were_given():
    options = [{"method": {"distance": "l2"}}, {"method": {"prototype_weight": 1}}, {"train": {"lr": 1}}]
    name = {"method": {"name": "fedproto"}}
    assert identity(build([name, *options])) == identity(build([name, *reversed(options)]))


def test_own_code_is_known_by_its_content_wherever_it_lies(tmp_path):
    def mine(folder, content="from fedsim.methods.local import Client\n"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "mine.py").write_text(content)
        return build([{"method": {"name": str(tmp_path / folder / "mine.py")}}])

    first = identity(mine("here"))
    assert identity(mine("there")) == first
    folder = RunFolder.create(folder_of(tmp_path, mine("here")), mine("here"))
    assert folder.path.name.startswith("mine-digits-seed1-")
    assert identity(folder.experiment()) == first, "and of its copy"
    assert identity(mine("here", "from fedsim.methods.local import Client\n# edited\n")) != first


@pytest.mark.parametrize(
    ("is_terminal", "in_notebook", "moves"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_what_moves_is_drawn_on_a_real_terminal_alone(tmp_path, monkeypatch, is_terminal, in_notebook, moves):
    """All three ask for colours: a pipe with FORCE_COLOR, and a notebook's "!", which is a terminal of a kind."""
    monkeypatch.setattr(zygote, "preload", lambda: None)
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    if in_notebook:
        monkeypatch.setenv("JPY_PARENT_PID", "1")
    folder = RunFolder.create(folder_of(tmp_path, experiment()), experiment())
    folder.write_summary({"completed": True})
    file = io.StringIO()
    file.isatty = lambda: is_terminal
    console = Console(file=file, force_terminal=True, _environ={"TERM": "xterm"})
    assert Batch(tmp_path, [Job("one", experiment())], console).run()
    assert ("\x1b[?25l" in file.getvalue()) == moves, "it hides the cursor"
