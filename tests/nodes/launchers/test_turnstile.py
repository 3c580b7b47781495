"""A turnstile lets few through at once, and whoever dies inside stands in nobody's way."""

import os
import signal

import pytest

from nodes.launchers import zygote
from nodes.launchers.processes import Turnstile

pytestmark = pytest.mark.process


def inside(turnstile: Turnstile, number: int) -> tuple[int, int, int]:
    """A process that goes through: its id, a pipe that tells that it is inside, one that lets it out."""
    (told, tell), (leave, let) = os.pipe(), os.pipe()

    def main() -> int:
        with turnstile.through(number):
            os.write(tell, b"i")
            os.read(leave, 1)
        return 0

    return zygote.fork(main), told, let


def is_inside(told: int) -> bool:
    os.set_blocking(told, False)
    try:
        return os.read(told, 1) == b"i"
    except BlockingIOError:
        return False
    finally:
        os.set_blocking(told, True)


def test_few_at_once_and_none_stands_in_the_way_when_it_is_killed() -> None:
    turnstile = Turnstile(2)
    first, second = inside(turnstile, 0), inside(turnstile, 1)
    assert os.read(first[1], 1) == os.read(second[1], 1) == b"i"  # side by side
    third, fourth = inside(turnstile, 2), inside(turnstile, 3)
    assert not is_inside(third[1]) and not is_inside(fourth[1])
    os.kill(first[0], signal.SIGKILL)
    assert os.read(third[1], 1) == b"i" and not is_inside(fourth[1])
    os.write(second[2], b"o")
    assert os.read(fourth[1], 1) == b"i"
    for _, _, let in (third, fourth):
        os.write(let, b"o")
    ends = [os.waitpid(process, 0)[1] for process, _, _ in (first, second, third, fourth)]
    assert ends == [signal.SIGKILL, 0, 0, 0]
