"""Fixtures for tests that run whole commands: one preloaded parent, a cache of its own, tiny experiments."""

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import hypothesis
import pytest
from commands import TINY, Run, Shell, Start, address_of, start_run

from fedsim.own import loading

pytest_plugins = ["process_guard"]

hypothesis.settings.register_profile("whole", deadline=None, derandomize=True, database=None, max_examples=150)
hypothesis.settings.register_profile("quick", hypothesis.settings.get_profile("whole"), max_examples=25)
hypothesis.settings.load_profile("whole")  # `make quick` says --hypothesis-profile quick

# A shell starts what it puts into the background with Ctrl-C ignored, and children inherit that: no test could
# then interrupt a command.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Models of tests are small and workers share the cores: a second thread only waits, and often long. All that
    is loaded by now stays, so nobody needs to look through it for garbage: that takes 0.2 s each time."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


CHANGED_METHOD = '''
"""FedProto, but one of its halves does one thing more."""
import os
import numpy as np
from fedsim.methods import fedproto
from fedsim.methods.fedproto import Config, contract

class Client(fedproto.Client):
    def upload(self):
        arrays, client = super().upload(), self.context.client
        {client}
        return arrays

class Server(fedproto.Server):
    def aggregate(self, round, uploads):
        step = super().aggregate(round, uploads)
        {server}
        return step
'''


@pytest.fixture(autouse=True)
def any_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client allows only the code that was named to it; here, clients live in one process with all tests."""
    monkeypatch.setattr(loading, "_allowed", None)


@pytest.fixture(scope="session")
def command_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where commands keep decoded data sets."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory, command_cache: Path) -> Iterator[Shell]:
    environment = {"FEDSIM_CACHE": str(command_cache), "FEDSIM_DATA": "", "CUDA_VISIBLE_DEVICES": ""}
    environment["FEDSIM_NO_REPORT"] = "1"  # drawing takes longer than most of these runs
    shell = Shell(tmp_path_factory.mktemp("shell"), environment)
    try:
        yield shell
    finally:
        shell.close()


@pytest.fixture
def python(shell: Shell, tmp_path: Path) -> Iterator[Start]:
    """`python("-m", "nodes.server", ...)` starts a command in the test's folder; nothing of it may stay."""
    with shell.commands(tmp_path) as start:
        yield start


@pytest.fixture
def cluster(python: Start, tmp_path: Path) -> Callable[..., Run]:
    """`cluster("--rounds", "5", name="a")` starts a tiny run with its results in the test's folder."""

    def start(*options: str, name: str = "run") -> Run:
        return start_run(python, tmp_path / name, *options)

    return start


@pytest.fixture
def run_changed(python: Start, tmp_path: Path) -> Callable[..., Run]:
    """`run_changed(client="...")`: a run with a method whose client or server does one thing more, or with a
    `source` of its own."""

    def start(*options: str, client: str = "pass", server: str = "pass", source: str = "") -> Run:
        (tmp_path / "bad.py").write_text(source or CHANGED_METHOD.format(client=client, server=server))
        return start_run(python, tmp_path / "run", "--method", "./bad.py", *options)

    return start


@pytest.fixture
def hand_driven_server(
    python: Start, tmp_path: Path, command_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[str, Run]]]:
    """`hand_driven_server("--method", "local")`: the address and the run of a server that waits for clients
    of the test's own making, which compute in this process, on one thread as clients do."""
    import torch
    import torch._dynamo  # or the first optimizer would load it, in the middle of a round

    monkeypatch.setenv("FEDSIM_CACHE", str(command_cache))
    num_threads = torch.get_num_threads()

    def start(*options: str) -> tuple[str, Run]:
        folder = tmp_path / "run"
        command = python("-m", "nodes.server", *TINY, *options, "--bind", "tcp://127.0.0.1:*", "--out", folder)
        return address_of(command), Run(command, folder)

    try:
        yield start
    finally:
        torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def reference(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`reference("--method", "fedproto")`: the folder of an undisturbed in-process run, made once."""

    @cache
    def run(*options: str) -> Path:
        folder = tmp_path_factory.mktemp("reference") / "run"
        with shell.commands(folder.parent) as start:
            start_run(start, folder, *options, "--in-process").succeed()
        return folder

    return run
