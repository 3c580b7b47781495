"""`fedsim.run` and `fedsim.load`: the documented example, mistakes, and the rule of imports."""

import inspect
import re
from pathlib import Path

import msgspec
import pytest
from commands import PROJECT, Start

import fedsim
from fedsim.config import Experiment
from fedsim.errors import UnknownName, UserError
from nodes import api
from nodes.cli._experiment import OPTIONS, build_experiment

SLOW_START_SECONDS = 240.0
"""Each run of the API starts interpreters of its own, which import torch."""

DOCUMENT = PROJECT / "docs" / "python-api.md"


@pytest.fixture
def script(python: Start, tmp_path: Path):
    """Runs a program as a user would, in a fresh interpreter."""

    def run(text: str) -> str:
        (tmp_path / "script.py").write_text(text)
        command = python(tmp_path / "script.py", fresh=True, PYTHONPATH=str(PROJECT))
        assert command.wait(SLOW_START_SECONDS) == 0, command.stdout + command.stderr
        return command.stdout

    return run


def test_the_documented_example_runs(script, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(blocks) == 5
    output = script("\n".join(blocks))
    assert "FedTGP on digits, 4 clients, 3 rounds: best accuracy" in output
    assert "there is no method 'fedtpg'; did you mean fedtgp?\n" in output
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["api-example", "api-tau-10"]
    loaded = fedsim.load(tmp_path / "runs" / "api-example")
    assert loaded.best is not None and f"{loaded.best[1]:.1%} in round {loaded.best[0]}" in output
    assert loaded.summary is not None and loaded.summary["audit_passed"], "a real cluster with real sockets"


def test_importing_fedsim_never_loads_what_runs_it(script) -> None:
    program = (
        "import importlib, pkgutil, sys, fedsim\n"
        "light = 'torch' not in sys.modules\n"
        "for module in pkgutil.walk_packages(fedsim.__path__, 'fedsim.'):\n"
        "    importlib.import_module(module.name)\n"
        "print(light, sorted({'nodes', 'protocol', 'zmq', 'msgpack'} & sys.modules.keys()))\n"
    )
    assert script(program) == "True []\n"


def test_arguments_become_an_experiment() -> None:
    experiment = api.build(
        "fedtgp", method_options={"tau": 5}, rounds=3, model_group="CNN2", data={"stratified": True}
    )
    assert (experiment.run.rounds, experiment.model.group, experiment.data.stratified) == (3, "CNN2", True)
    assert (experiment.method["name"], experiment.method["tau"]) == ("fedtgp", 5)
    assert api.build().method_name == "fedtgp"
    preset = api.build("feddistill", "fedtgp-table10", clients=7)
    assert (preset.data.dataset, preset.run.clients, preset.method_name) == ("fmnist", 7, "feddistill")


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("data", "digits", "; dataset takes a name"),
        ("model", "HtFE8", "; model_group takes a name"),
        ("method_options", "tau=5", "; method takes a name"),
        ("train", 0.1, ""),
        ("run", ["rounds"], ""),
    ],
)
def test_a_section_that_is_no_dictionary_is_one_sentence(name: str, value: object, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        api.build(**{name: value})
    wanted = f'{name} = {value!r} is not valid: give a dictionary such as {{"option": value}}{hint}.'
    assert str(caught.value) == wanted


def test_every_option_of_the_command_line_is_an_argument_with_a_word_on_it() -> None:
    arguments = inspect.signature(fedsim.run).parameters
    sections = {field.name for field in msgspec.structs.fields(Experiment)} - {"method"}
    assert {*OPTIONS, *sections, "preset", "out", "in_process", "report"} <= set(arguments)
    documented = set(re.findall(r"\w+", fedsim.run.__doc__ or ""))
    assert set(arguments) - {"unknown"} <= documented


def test_a_script_that_is_its_own_method_starts_no_run_within_a_run(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "import fedsim\nfrom fedsim.method import Client\nfedsim.run(method='./mine.py', rounds=1)\n"
    )
    with pytest.raises(UserError, match=r"mine\.py calls fedsim\.run while it is being imported.*__main__"):
        fedsim.run(method=str(script))
    assert list(tmp_path.iterdir()) == [script]


def test_no_control_codes_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    environment = api._environment("fedsim.run()")
    assert environment["NO_COLOR"] and "FORCE_COLOR" not in environment


def test_mistakes_are_exceptions_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownName, match="no option 'round'; did you mean rounds"):
        fedsim.run(method="fedtgp", round=3)
    with pytest.raises(UserError, match=r"run\.rounds = 0 is not valid"):
        fedsim.run(method="fedtgp", rounds=0)
    with pytest.raises(UserError, match=r"there is no run folder|is not a run folder"):
        fedsim.load(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


def test_what_the_run_itself_refuses_is_an_exception_too(script, tmp_path: Path) -> None:
    program = (
        "import fedsim\nfrom fedsim.errors import UserError\n"
        "options = dict(dataset='spiral', model_group='MLP', clients=3, rounds=1, out='here')\n"
        "run = fedsim.run(preset='fedtgp-table10/practical,fedproto', in_process=True, **options)\n"
        "print(run.summary['method'], run.experiment.run.clients, run.provenance['command'][:18])\n"
        "try:\n    fedsim.run(method='local', **options)\nexcept UserError as error:\n    print(error)\n"
    )
    lines = script(program).splitlines()
    assert [line[:5] for line in lines[:2]] == ["round"] * 2, "a line each, and no control codes"
    assert lines[-2:] == [
        "fedproto 3 fedsim.run(preset=",
        "the results folder here exists already; choose another with --out, or go on with --resume.",
    ]


@pytest.mark.parametrize("cell", ["fedtgp-table10/practical,fedproto", "fedktl-table7/-etf"])
def test_a_preset_s_cell_is_that_of_the_command_line(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[Experiment] = []
    monkeypatch.setattr(api, "_execute", lambda experiment, *_, **__: run.append(experiment))
    monkeypatch.setattr(api, "load", lambda folder: folder)
    fedsim.run(preset=cell, rounds=3)
    fedsim.run(preset=cell, rounds=3, method="local")
    assert run == [build_experiment(cell, None, (), rounds=3, method=method) for method in (None, "local")]
