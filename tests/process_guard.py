"""Which tests start processes: those with a fixture that does, and those marked `process`. No other test may.

`make quick` runs the others (`-m "not process"`). A test that starts a process without saying so fails wherever it
is run, so that the quick ones stay what they are.
"""

import multiprocessing.util
import sys
from collections.abc import Iterator
from typing import Any

import pytest

FIXTURES = {"shell", "spawn"}
"""Those that start processes themselves; whatever is built on them counts too."""
STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen", "multiprocessing.spawn"}

CORE_COUNTER = "lscpu"
"""With which scikit-learn counts the cores, once; no doing of ours."""

_pure_test: list[str] = []
"""The test that is running, if it is one that may start nothing."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "process: starts processes; not part of `make quick`")
    sys.addaudithook(_refuse)
    spawn = multiprocessing.util.spawnv_passfds

    def audited(*arguments: Any) -> int:
        sys.audit("multiprocessing.spawn")  # the one way to a process that Python does not tell of
        return spawn(*arguments)

    multiprocessing.util.spawnv_passfds = audited


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("process")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if item.get_closest_marker("process") is None:
        _pure_test.append(item.nodeid)
    try:
        return (yield)
    finally:
        _pure_test.clear()


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTS and _pure_test and arguments[:1] != (CORE_COUNTER,):
        program = "".join(map(str, arguments[:1]))
        pytest.fail(f"{_pure_test[0]} starts a process, {event}({program}); mark it with pytest.mark.process.")
