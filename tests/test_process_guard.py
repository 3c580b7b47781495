"""A test that is not marked `process` may start none, in whatever way."""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

WAYS: dict[str, Callable[[], object]] = {
    "subprocess": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    "fork": os.fork,
    "a shell": lambda: os.system("true"),
    "multiprocessing": lambda: multiprocessing.get_context("fork").Process().start(),
    "a spawned one": lambda: multiprocessing.get_context("spawn").Process().start(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_test_that_starts_a_process_without_saying_so_fails(way: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"starts a process, .*; mark it with pytest.mark.process"):
        WAYS[way]()


@pytest.mark.process
def test_one_that_says_so_may() -> None:
    assert subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0


def test_a_fixture_that_starts_processes_marks_its_tests(
    cluster: Callable[..., object], request: pytest.FixtureRequest
) -> None:
    """`cluster` is built on `python`, which is built on `shell`."""
    assert request.node.get_closest_marker("process") is not None
