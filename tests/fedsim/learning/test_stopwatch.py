"""Parts of a step add up to the whole, whatever lies within what."""

import pytest

from fedsim.learning import stopwatch
from fedsim.learning.stopwatch import Spent, Stopwatch


@pytest.fixture
def clocks(monkeypatch):
    """`clocks.pass_(3, cpu=6)`: three seconds in which two cores were busy."""

    class Clocks:
        seconds, cpu_seconds = 100.0, 40.0

        def pass_(self, seconds: float, cpu: float = 0.0) -> None:
            self.seconds += seconds
            self.cpu_seconds += cpu

    made = Clocks()
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: made.seconds)
    monkeypatch.setattr(stopwatch.time, "process_time", lambda: made.cpu_seconds)
    return made


def test_an_inner_part_does_not_count_for_the_outer(clocks):
    watch = Stopwatch()
    clocks.pass_(7, cpu=7)  # before anything is open
    with watch.part("whole"):
        clocks.pass_(1, cpu=1)
        with watch.part("inner"):
            clocks.pass_(3, cpu=6)
        clocks.pass_(2, cpu=1)
    clocks.pass_(9)
    assert watch.take() == {"whole": Spent(3, 2), "inner": Spent(3, 6)}


def test_a_part_that_is_opened_again_goes_on(clocks):
    watch = Stopwatch()
    for seconds in (1, 2):
        with watch.part("model"):
            clocks.pass_(seconds, cpu=2 * seconds)
        clocks.pass_(5)
    assert watch.take() == {"model": Spent(3, 6)}
    assert watch.take() == {}


def test_a_part_ends_with_an_error_too(clocks):
    watch = Stopwatch()
    with pytest.raises(ZeroDivisionError), watch.part("whole"), watch.part("inner"):
        clocks.pass_(2)
        raise ZeroDivisionError
    clocks.pass_(4)
    with watch.part("next"):
        clocks.pass_(1)
    assert watch.take() == {"inner": Spent(2, 0), "whole": Spent(0, 0), "next": Spent(1, 0)}


def test_what_a_device_still_does_counts_for_the_part_that_asked_for_it(clocks):
    """A device that is 2 s behind: they pass when it is waited for."""
    behind = [0.0]

    def settle() -> None:
        clocks.pass_(behind.pop() if behind else 0.0)

    watch = Stopwatch(settle)
    with watch.part("model"):
        behind.append(2.0)
    with watch.part("evaluation"):
        clocks.pass_(1)
    assert watch.take() == {"model": Spent(2, 0), "evaluation": Spent(1, 0)}
