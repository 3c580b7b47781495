"""Runs on a real Ray cluster of two nodes, which are both this machine."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import PROJECT, TINY, Run, Start, bits, wait_for_event

from tests.clusters.conftest import RAY_MARK

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(1800)]

LONG = ("--rounds", "8", "--set", "train.local_epochs=40", "--set", "cluster.rejoin_seconds=240")


@dataclass(frozen=True)
class RayNodes:
    address: str
    process: subprocess.Popen[str]

    def do(self, what: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray (pip install 'fedsim-htfl[ray]')")
    environment = {**os.environ, RAY_MARK: "1", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("ray_nodes.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield RayNodes(process.stdout.readline().strip(), process)
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


@pytest.fixture
def run(python: Start, tmp_path: Path, nodes: RayNodes) -> Callable[..., Run]:
    def start(*options: str) -> Run:
        where = ("--launcher", "ray", "--ray-address", nodes.address)
        command = (PROJECT / "run_cluster.py", *TINY, *where, *options, "--out", tmp_path / "run")
        return Run(python(*command, fresh=True), tmp_path / "run")

    return start


def test_two_nodes_give_the_same_bits(run: Callable[..., Run], reference: Callable[..., Path]) -> None:
    done = run().succeed()
    assert bits(done.folder) == bits(reference())
    assert "2 hosts with clients: " in done.command.stdout
    logs = [path.read_text() for path in (done.folder / "logs").glob("host-*.log")]
    assert [text.count("the run is complete") for text in logs] == [2, 2]
    assert not (done.folder / "keys").exists()


def test_clients_of_a_killed_node_go_on_where_another_joins(
    run: Callable[..., Run], nodes: RayNodes, reference: Callable[..., Path]
) -> None:
    going = run(*LONG, "--checkpoint-every", "1")
    wait_for_event(going.folder, "checkpoint", round=1)
    nodes.do("add")  # before, so that it is there when it is needed
    nodes.do("remove")
    going.succeed()
    # Ray names its nodes in any order, so either half may have been on the one that was killed.
    assert re.search(r"clients (0-1|2-3) start again on ", going.command.stdout)
    assert bits(going.folder) == bits(reference(*LONG))


def test_a_cluster_that_is_not_there_is_one_sentence(python: Start, tmp_path: Path, nodes: RayNodes) -> None:
    command = (PROJECT / "run_cluster.py", *TINY, "--launcher", "ray", "--ray-address", "127.0.0.1:1")
    refused = python(*command, "--out", tmp_path / "run", fresh=True)
    assert refused.wait() == 2
    assert "no Ray cluster answers at 127.0.0.1:1" in refused.stderr and not (tmp_path / "run").exists()
