"""SIGKILL and SIGSTOP of any process of a run, at any moment."""

import contextlib
import os
import random
import signal
import time

from benchmarks.campaign.runs import Command, roles

_WEIGHTS = {"launcher": 1.0, "server": 1.5, "clients": 1.5, "client": 4.0}
_LONGEST_STOP_SECONDS = 3.0


def strike(draw: random.Random, command: Command, *, kill_share: float = 0.6) -> str | None:
    """One fault now; returns it in words, None where there is nobody left to meet with one."""
    process, name = _victim(draw, command)
    kill, seconds = draw.random() < kill_share, draw.uniform(0.02, _LONGEST_STOP_SECONDS)
    if process is None:
        return None
    try:
        if kill:
            os.kill(process, signal.SIGKILL)
            return f"SIGKILL of {name}"
        os.kill(process, signal.SIGSTOP)
        time.sleep(seconds)
        return f"SIGSTOP of {name}, {seconds:.1f} s"
    except ProcessLookupError:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


def named(command: Command, name: str) -> int | None:
    return roles(command.pid).get(name)


def _victim(draw: random.Random, command: Command) -> tuple[int | None, str]:
    """A kind first, so that the one server meets with as much as all clients together would let it."""
    if command.has_ended():
        return None, ""
    found = {"launcher": command.pid, **roles(command.pid)}
    kinds: dict[str, list[str]] = {}
    for name in sorted(found):
        kinds.setdefault(name.partition("-")[0], []).append(name)
    names = [name for name in kinds if name in _WEIGHTS]
    kind = draw.choices(names, [_WEIGHTS[name] for name in names])[0]
    name = draw.choice(kinds[kind])
    return found[name], {"clients": "host"}.get(name, name)
