"""What `--print-commands` prints; that the commands work is tested with real processes."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from fedsim import config
from fedsim.errors import UserError
from nodes.cli.client import command as client
from nodes.launchers.manual import DEFAULT_PORT, print_commands


@pytest.fixture
def printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`printed(run={"clients": 2})`: comments and commands, as they are shown."""

    def lines(port: int = DEFAULT_PORT, **sections: Any) -> list[str]:
        print_commands(config.build([sections]), tmp_path / "runs" / "x", port)
        return [line for line in capsys.readouterr().out.splitlines() if line]

    return lines


def client_options(line: str) -> dict[str, Any]:
    """What `python -m nodes.client` makes of the words after its name."""
    words = shlex.split(line)
    assert words[:3] == ["python", "-m", "nodes.client"]
    return client.make_context("client", words[3:]).params


@pytest.mark.parametrize(
    ("num_clients", "ids", "halves"),
    [(2, "0-1", "0 and 1"), (3, "0-2", "0-1 and 2"), (10, "0-9", "0-4 and 5-9")],
)
def test_machines_share_the_ids(printed, num_clients: int, ids: str, halves: str) -> None:
    *_, example, new_keys, start = printed(run={"clients": num_clients})
    assert example == f"# Several machines share the ids {ids} among them, for example {halves}."
    assert new_keys == f"fedsim keys new {ids} --folder keys"
    assert client_options(start)["ids"] == list(range(num_clients))


def test_one_client_has_nothing_to_share(printed) -> None:
    lines = printed(run={"clients": 1})
    assert not any("Several machines" in line for line in lines)
    assert lines[-2] == "fedsim keys new 0 --folder keys"
    assert " --ids 0 " in lines[-1]


def test_both_ends_have_the_port_and_keys(printed) -> None:
    *_, server, _, _, _, start = printed(port=6000)
    assert "--bind tcp://SERVER:6000 --keys keys" in server
    assert start.endswith("--connect tcp://SERVER:6000 --ids 0-9 --keys keys --heartbeat 5")


def test_clients_are_told_what_they_need_before_they_have_found_the_server(printed) -> None:
    cluster = {"heartbeat_seconds": 2.5, "patience_seconds": 90, "slots": 3, "max_frame_mib": 16}
    options = client_options(printed(cluster=cluster)[-1])
    assert (options["heartbeat"], options["patience"]) == (2.5, 90)
    assert (options["slots"], options["max_frame_mib"]) == (3, 16)


def test_the_experiment_lies_beside_the_results_to_be(printed, tmp_path: Path) -> None:
    printed(run={"seed": 7})
    assert config.build([config.read_toml(tmp_path / "runs" / "x.toml")]).run.seed == 7
    assert not (tmp_path / "runs" / "x").exists()


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/x\.toml cannot be written: .*; choose another place with --out\."):
        print_commands(config.build([]), tmp_path / "file" / "x", DEFAULT_PORT)
