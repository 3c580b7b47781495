"""Doctor, completion, and that the commands which presets name exist with these options."""

import configparser
import re
import shlex
import socket
import sys

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner
from commands import PROJECT

from fedsim import presets
from nodes.cli import fedsim
from nodes.cli.completion import command as completion
from nodes.cli.doctor import command as doctor_command
from nodes.tools import doctor


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDSIM_DATA", "")
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("line", sorted({line for name in presets.names() for line in presets.load(name).see}))
def test_commands_that_presets_name_exist(line):
    program, *words = shlex.split(line)
    assert program == "fedsim"
    context, group = click.Context(fedsim), fedsim
    while isinstance(group, click.Group):
        found = group.get_command(context, words.pop(0))
        assert found is not None, line
        group = found
    group.make_context("fedsim", words)  # an unknown option would be refused here


@pytest.mark.process
def test_doctor_finds_this_installation_well():
    done = CliRunner().invoke(doctor_command, [], standalone_mode=False)
    assert done.return_value == 0
    assert "no problems" in done.output
    for what in ("python", "torch", "torchvision", "cores", "digits", "can be bound", "TCP_INFO", "CURVE"):
        assert what in done.output


@pytest.mark.process
def test_doctor_says_what_to_do_about_a_port_that_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (finding,) = doctor.check_port(port)
        done = CliRunner().invoke(doctor_command, ["--port", str(port)], standalone_mode=False)
    assert (finding.level, finding.remedy) == ("problem", "choose another with --port")
    assert f"127.0.0.1:{port} cannot be bound" in finding.text
    assert done.return_value == 1 and "1 problems" in done.output


def test_doctor_looks_for_all_packages_that_are_needed():
    setup = configparser.ConfigParser()
    setup.read(PROJECT / "setup.cfg")
    needed = setup["options"]["install_requires"].split()
    assert list(doctor.PACKAGES) == [name.split(">=")[0] for name in needed]


def test_doctor_names_packages_that_are_missing():
    missing, rest = doctor.check_packages(("numpy", "no-such-package"))
    assert (missing.level, missing.remedy) == ("problem", "pip install no-such-package")
    assert rest.text.startswith("numpy ")


@pytest.mark.parametrize("broken", ["torch", "psutil", "zmq"])
def test_doctor_names_a_library_that_is_broken_and_stops(broken, monkeypatch):
    monkeypatch.setitem(sys.modules, broken, None)  # whoever imports it gets an ImportError
    monkeypatch.delitem(sys.modules, "nodes.tools.doctor")
    done = CliRunner().invoke(doctor_command, [], standalone_mode=False, env={"COLUMNS": "200"})
    assert done.return_value == 1, done.exception
    assert re.search(rf"problem +{broken} +cannot be imported: .* → install {broken} again", done.output)
    assert "not looked at" in done.output and "TCP" not in done.output


def test_doctor_warns_of_another_package_of_the_same_name(monkeypatch):
    assert list(doctor.check_namesake()) == []
    monkeypatch.setattr(doctor.metadata, "version", lambda name: {"fedsim": "0.9.1"}[name])
    (finding,) = doctor.check_namesake()
    assert finding.level == "problem" and "0.9.1" in finding.text and "pip uninstall fedsim" in finding.remedy


def test_doctor_looks_for_data_without_downloading(tmp_path, monkeypatch):
    import numpy as np

    from fedsim.data import sources

    monkeypatch.setattr(sources, "download", lambda *_: pytest.fail("doctor must not download"))
    np.savez(
        tmp_path / "mnist.npz",
        x_train=np.zeros((10, 28, 28), np.uint8), y_train=np.arange(10),
        x_test=np.zeros((10, 28, 28), np.uint8), y_test=np.arange(10),
    )  # fmt: skip
    found = {finding.what: finding for finding in doctor.check_data(str(tmp_path))}
    assert found["data mnist"].level == "ok" and "mnist.npz" in found["data mnist"].text
    assert found["data cifar10"].level == "note" and "--data-dir" in found["data cifar10"].remedy


def test_doctor_says_when_the_cache_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "file" / "cache"))
    (finding,) = doctor.check_cache()
    assert finding.level == "problem" and "FEDSIM_CACHE" in finding.remedy


def test_doctor_notes_a_kernel_without_counters(monkeypatch):
    assert next(doctor.check_counters()).level == "ok"
    monkeypatch.setattr(doctor, "read_counters", lambda _: None)
    (finding,) = doctor.check_counters()
    assert finding.level == "note" and "bytes are not checked" in finding.remedy


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o nosort"), ("zsh", "#compdef fedsim"), ("fish", "complete")]
)
def test_completion_prints_a_script_of_the_shell(shell, word):
    script = CliRunner().invoke(completion, [shell]).output
    assert word in script and "_FEDSIM_COMPLETE" in script


def test_completion_knows_commands_options_and_presets():
    def completed(*words: str) -> set[str]:
        found = BashComplete(fedsim, {}, "fedsim", "_FEDSIM_COMPLETE").get_completions(list(words[:-1]), words[-1])
        return {item.value for item in found}

    assert completed("re") >= {"reproduce"}
    assert completed("reproduce", "--se") == {"--seeds", "--set"}
    tables = {f"fedtgp-table{number}" for number in (1, 10, 11, 12)}
    assert completed("reproduce", "fedtgp-table1") == tables
    assert completed("presets", "protonorm-figure2") == {"protonorm-figure2"}
    assert completed("reproduce", "--scale", "q") == {"quick"}
    assert completed("run", "--method", "fedt") == {"fedtgp"}
    assert completed("run", "--dataset", "dig") == {"digits"}
    assert completed("run", "--model-group", "CNN2,htcnn") == {"CNN2,HtCNN8"}
    assert completed("run", "--preset", "fedtgp-table1") == tables
    assert completed("methods", "fedpr") == {"fedproto", "fedprotokd", "fedprox"}
    assert completed("models", "show", "ht0") == {"Ht0"} and completed("check", "spi") >= {"spiral"}
    assert completed("run", "--method", "./my") == {"./my"}, "a file, which the shell completes itself"


def test_every_command_has_an_example_in_its_help():
    for name in ("presets", "reproduce", "sweep", "doctor", "completion"):
        found = fedsim.get_command(click.Context(fedsim), name)
        assert found is not None and f"fedsim {name}" in (found.epilog or ""), name
