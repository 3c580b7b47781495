"""Several processes at once: their order, their shares of the machine, and how they end."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from commands import wait_for

from nodes.launchers import processes
from nodes.server.events import Watcher
from nodes.tools.pool import BEGUN, ENDED, Lane, Pool, Task

pytestmark = pytest.mark.process


def task(name: str, main: Callable[[Watcher], str | None]) -> Task:
    return Task(Path(name), main, device="cpu")


def ends(events: Iterator[tuple[Path, dict]]) -> dict[str, str | None]:
    return {str(path): event["reason"] for path, event in events if event["event"] == ENDED}


def test_no_more_at_once_than_wanted_and_in_their_order(tmp_path: Path) -> None:
    at_work, met = tmp_path / "at_work", tmp_path / "met"
    for folder in (at_work, met):
        folder.mkdir()

    def work(name: str, tell: Watcher) -> None:
        (at_work / name).touch()
        (met / name).touch()
        if name in "ab":  # the first two are at work together, however busy the machine is
            wait_for(lambda: {"a", "b"} <= {path.name for path in met.iterdir()}, "the other does not begin")
        tell({"event": "seen", "others": len(list(at_work.iterdir()))})
        (at_work / name).unlink()

    told = list(Pool(2).run([task(name, partial(work, name)) for name in "abcde"]))
    assert [str(path) for path, event in told if event["event"] == BEGUN] == list("abcde")
    assert max(event["others"] for _, event in told if event["event"] == "seen") <= 2
    assert ends(iter(told)) == dict.fromkeys("abcde")


def test_one_that_fails_or_is_killed_is_reported_and_the_others_go_on() -> None:
    def die(tell: Watcher) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    tasks = [task("bad", lambda tell: "no such thing"), task("dead", die), task("good", lambda tell: None)]
    found = ends(Pool(1).run(tasks))
    assert found == {"bad": "no such thing", "dead": "its process was killed by signal 9 (SIGKILL)", "good": None}


def test_an_interrupt_ends_what_runs_and_starts_nothing_more() -> None:
    def patient(tell: Watcher) -> str:
        stopped: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
        tell({"event": "ready"})
        while not stopped:
            time.sleep(0.01)
        return "stopped"

    pool = Pool(2)
    found, num_ready, handler = [], 0, signal.getsignal(signal.SIGINT)
    for path, event in pool.run([task(name, patient) for name in "abc"]):
        found.append((str(path), event["event"], event.get("reason")))
        num_ready += event["event"] == "ready"
        if num_ready == 2 and not pool.interrupted:
            os.kill(os.getpid(), signal.SIGINT)
    assert {line for line in found if line[1] == ENDED} == {("a", ENDED, "stopped"), ("b", ENDED, "stopped")}
    assert "c" not in {line[0] for line in found}
    assert signal.getsignal(signal.SIGINT) is handler, "from now on Ctrl-C is Python's again"


def test_lanes_share_all_cores_and_each_stays_on_its_own() -> None:
    def where(tell: Watcher) -> str:
        return str(processes.cores())

    cores = processes.cores()
    found = ends(Pool(2).run([task("a", where), task("b", where)]))
    assert found == {"a": str(cores[::2]), "b": str(cores[1::2] or cores)}
    assert ends(Pool(1).run([task("a", where)])) == {"a": str(cores)}
    shares = [Lane(number, 5).share([0, 1]) for number in range(5)]
    assert shares == [[0], [1], [0], [1], [0]], "with more lanes than cores they share them"
    assert sorted(core for number in range(3) for core in Lane(number, 3).share(range(8))) == list(range(8))
