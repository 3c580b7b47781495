"""The preloaded parent: imports torch once, then forks every client from it, copy-on-write.

A client that imports torch for itself takes seconds and more than 100 MB; a forked one takes milliseconds and
shares all of that. Three things make the fork safe: no ZeroMQ context exists yet, torch runs one thread, and
no tensor operation has started its thread pool.
"""

import contextlib
import gc
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from nodes import failures
from nodes.launchers.processes import describe_exit, die_with_parent, keep_freed_memory, return_freed_memory

log = logging.getLogger(__name__)

_KILL_AFTER_SECONDS = 5.0
_OWN = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Signals that a child takes otherwise than its parent."""
EXIT_CRASHED = 70
"""Of a host whose own code failed; no client ends with it."""


def use_one_thread() -> None:
    """Before anything is computed here. The threads that share a large operation are libgomp's, do not survive a
    fork, and a child that wants their help waits for them for ever; so this process must never have had any. What
    computes early is decoding data that no run has used before, and own code."""
    import torch

    torch.set_num_threads(1)


def preload() -> None:
    """Import all that clients need but the method, which a launcher has imported with its experiment already, and
    which no other run shall import. Making an optimizer imports torch's lazy half, which is the slow one."""
    import torch

    import fedsim.assembly  # noqa: F401

    use_one_thread()
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    keep_freed_memory()
    # Children must not write to the pages of objects that they share with us just to look for garbage.
    gc.collect()
    return_freed_memory()
    gc.freeze()


def fork(main: Callable[[], int], death_signal: int = signal.SIGKILL) -> int:
    """Run `main` in a child that dies with this process; returns its process id.

    `death_signal` is what the child gets then. Only SIGKILL ends a child that is stopped or hangs; another
    signal is for one that has something to write down.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    # A child that is told to end before it has handlers of its own would run its parent's, and go on.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _OWN)
    try:
        child = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise
    if child:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return child
    code = 1
    try:
        die_with_parent(parent, death_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the launcher decides
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm warns every process; the server decides
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = main()
    except BaseException:
        traceback.print_exc()
    finally:
        # Not sys.exit: the parent's cleanup must not run in the child.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def code_of_host(main: Callable[[], int], why: BinaryIO | None = None) -> int:
    """What `main` returns; where it fails the log has the traceback, `why` a sentence, and a launcher sees that it
    was no client."""
    try:
        return main()
    except Exception as error:
        traceback.print_exc()
        if why is not None:
            why.write(failures.sentence(error).encode())
            why.flush()
        return EXIT_CRASHED


def redirect_output(path: Path) -> None:
    """From here on all that this process prints goes to a file, tracebacks included. By Python's own streams:
    those that a live view or a notebook has put in their place would draw there too."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__


@dataclass
class Host:
    """Starts the clients of one machine and starts those again that were killed, a few times each."""

    start: Callable[[int], int]
    """Forks the client with this id and returns its process id."""
    max_restarts: int = 0
    forward_interrupt: bool = False
    """Whether Ctrl-C ends the clients; not where a launcher above us decides that."""
    own_logs: bool = True
    """Whether each client prints to a file of its own; otherwise it has said here already why it ended."""
    _running: dict[int, int] = field(default_factory=dict)  # process id -> client
    _restarts: dict[int, int] = field(default_factory=dict)
    _stopping: bool = False

    def run(self, clients: Iterable[int]) -> int:
        """Until all clients have ended; returns the largest of their exit codes, 1 for one that was killed."""
        signal.signal(signal.SIGTERM, self._on_terminate)
        if self.forward_interrupt:
            signal.signal(signal.SIGINT, self._on_terminate)
        worst = 0
        for client in clients:
            self._running[self.start(client)] = client
        while self._running:
            try:
                process, status = os.wait()
            except ChildProcessError:
                break
            client = self._running.pop(process)
            if self._should_restart(client, status):
                log.warning("client %d %s; starting it again", client, describe_exit(status))
                self._running[self.start(client)] = client
            elif status and not self._stopping:
                killed = os.WIFSIGNALED(status)
                if killed or self.own_logs:
                    log.warning("client %d %s", client, describe_exit(status))
                worst = max(worst, 1 if killed else os.waitstatus_to_exitcode(status))
        return worst

    def _should_restart(self, client: int, status: int) -> bool:
        """Only a client that was killed: one that ended by itself has said why, and would do so again."""
        used = self._restarts.get(client, 0)
        if self._stopping or not os.WIFSIGNALED(status) or used >= self.max_restarts:
            return False
        self._restarts[client] = used + 1
        return True

    def _on_terminate(self, *_: object) -> None:
        self._stopping = True
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):  # it has ended just now, and is being counted
                os.kill(process, signal.SIGTERM)


def has_ended(process: int, patience_seconds: float) -> bool:
    """Whether a child ends by itself within the time; one that has is reaped."""
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        if os.waitpid(process, os.WNOHANG)[0]:
            return True
        time.sleep(0.01)
    return False


def stop_process(process: int) -> None:
    """SIGTERM, then SIGKILL for one that does not listen."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
        if has_ended(process, _KILL_AFTER_SECONDS):
            return
