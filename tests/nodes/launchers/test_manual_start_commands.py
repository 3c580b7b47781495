"""What `--print-commands` prints; that the commands work is tested with real processes."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from fedsim import config
from fedsim.errors import UserError
from nodes.launchers.manual import DEFAULT_PORT, print_commands


@pytest.fixture
def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`printed(run={"clients": 2})`: comments and commands, as they are shown."""

    def lines(port: int = DEFAULT_PORT, **sections: Any) -> list[str]:
        print_commands(config.build([sections]), tmp_path / "runs" / "x", port)
        return [line for line in capsys.readouterr().out.splitlines() if line]

    return lines


def test_all_commands_have_the_same_experiment_address_and_keys(printed, tmp_path: Path) -> None:
    bundle, server, client = (shlex.split(line) for line in printed(port=6000) if not line.startswith("#"))
    config = str(tmp_path / "runs" / "x.toml")
    assert (
        bundle
        == (f"fedsim keys bundle --config {config} --connect tcp://SERVER:6000 --hosts 2 --folder keys").split()
    )
    assert server[:6] == f"fedsim server --config {config} --bind tcp://SERVER:6000".split()
    assert client == ["fedsim", "client", "--bundle", "host-1.bundle"]


def test_one_client_has_one_machine(printed) -> None:
    assert any(" --hosts 1 " in line for line in printed(run={"clients": 1}))


def test_own_code_is_to_be_copied(printed, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from fedsim.methods.fedproto import *\n")
    lines = printed(method={"name": str(tmp_path / "mine.py")})
    assert "# Copy mine.py there, into the same folder: code never travels." in lines


def test_the_experiment_lies_beside_the_results_to_be(printed, tmp_path: Path) -> None:
    printed(run={"seed": 7})
    assert config.build([config.read_toml(tmp_path / "runs" / "x.toml")]).run.seed == 7
    assert not (tmp_path / "runs" / "x").exists()


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/x\.toml cannot be written: .*; choose another place with --out\."):
        print_commands(config.build([]), tmp_path / "file" / "x", DEFAULT_PORT)


@pytest.mark.parametrize("out", [".", "..", "/", "runs/.."])
def test_a_folder_without_a_name_is_refused(out: str) -> None:
    with pytest.raises(UserError, match="is no name for a new folder; give one such as runs/mine"):
        print_commands(config.build([{}]), Path(out), DEFAULT_PORT)
