"""The far end of a launcher: one process on a machine that is told which clients are its own, and starts them.

    launcher                       host
      │  ◄──────────────── Facts    │   its version, cores and GPUs, by which clients are shared out
      │  Bundle ────────────────►   │   where the server is; ids, keys, code
      │  ◄──────────────── Begun    │   or Trouble: why it cannot begin, in a clause
      │  ◄──────────────── Ended    │   all its clients have ended by themselves; or Crashed: they died with it

One line of JSON each, in over standard input and out over standard output; whatever else is printed here goes to
standard error, which is the log. The input stays open as long as the launcher wants the host: when it ends, for
whatever reason, the host ends with all its clients. So the launcher needs nothing but a way to start a program
over there with its input, output and errors connected: ssh, srun, or an actor of Ray.
"""

import os
import select
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import msgspec

from fedsim.version import __version__
from nodes.client.options import ClientOptions
from nodes.client.program import Secret, run_clients
from nodes.launchers import bundle, gpus, processes, zygote
from nodes.launchers.bundle import Bundle
from protocol.diagnosis import obstacle

_LOOK_SECONDS = 0.2
_EXIT_TROUBLE = 2
_KILLED = 128


class Said(msgspec.Struct, frozen=True, kw_only=True, tag_field="said"):
    """Base of what a host says."""


class Facts(Said, frozen=True, kw_only=True, tag="facts"):
    version: str
    cores: int
    gpus: int
    seen_from: str = ""
    """The launcher's address as ssh has seen it from here."""


class Begun(Said, frozen=True, kw_only=True, tag="begun"):
    pass


class Trouble(Said, frozen=True, kw_only=True, tag="trouble"):
    reason: str


class Ended(Said, frozen=True, kw_only=True, tag="ended"):
    pass


class Crashed(Said, frozen=True, kw_only=True, tag="crashed"):
    """Its own code has failed, and would again. A host that is killed says nothing, and is started again."""

    reason: str = ""


AnySaid = Facts | Begun | Trouble | Ended | Crashed


def main() -> int:
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: stopping.append(number))
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm's warning: the server decides, and tells the clients

    def say(said: AnySaid) -> None:
        try:
            os.write(out, msgspec.json.encode(said) + b"\n")
        except BrokenPipeError:
            stopping.append(signal.SIGPIPE)

    say(facts())
    if not (line := sys.stdin.buffer.readline()):
        return 0
    told = bundle.decode(line, "what the launcher sent")
    with ExitStack() as stack:
        options = _options(told, stack)
        if reason := _obstacle(told, options):
            say(Trouble(reason=reason))
            return _EXIT_TROUBLE
        why = stack.enter_context(tempfile.TemporaryFile())
        child = zygote.fork(lambda: _clients_main(options, told.secrets(), out, why))
        say(Begun())
        status = _wait_for(child, stopping)
        if status is None:
            zygote.stop_process(child)
            return 0
        why.seek(0)
        reason = why.read().decode()
    if os.WIFSIGNALED(status):  # all clients have died with it
        return _KILLED + os.WTERMSIG(status)
    code = os.waitstatus_to_exitcode(status)
    say(Crashed(reason=reason) if code == zygote.EXIT_CRASHED else Ended())
    return code


def facts() -> Facts:
    """Without torch, which takes seconds to load: the launcher waits for this."""
    return Facts(
        version=__version__,
        cores=len(processes.cores()),
        gpus=len(gpus.usable_gpus()),
        seen_from=os.environ.get("SSH_CONNECTION", "").partition(" ")[0],
    )


def _options(told: Bundle, stack: ExitStack) -> ClientOptions:
    """With the code that was sent in a folder that lives as long as we do."""
    options = told.options()
    if not told.code:
        return options
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedsim-host-")))
    for name, content in told.code.items():
        (folder / name).write_bytes(content)
    return replace(options, code=(*options.code, *(str(folder / name) for name in told.code)))


def _obstacle(told: Bundle, options: ClientOptions) -> str:
    """What would only be noticed after a long wait; empty where there is nothing."""
    if told.proof and not Path(told.proof).exists():
        return (
            f"it does not see {told.proof}, so clients could not save their states there; choose an --out that "
            "all hosts share, or leave --checkpoint-every away"
        )
    if reason := obstacle(options.connect, has_keys=True):
        return f"it finds no server at {options.connect}: {reason}; name one that it can reach with --address"
    return ""


def _clients_main(options: ClientOptions, secrets: dict[int, Secret], out: int, why: BinaryIO) -> int:
    os.close(out)
    return zygote.code_of_host(lambda: run_clients(options, secrets=secrets, by_hand=True), why)


def _wait_for(child: int, stopping: list[int]) -> int | None:
    """How the child ended, as `waitpid` has it, or None when we are to end before it."""
    while not stopping:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
            return status
        ready, _, _ = select.select([sys.stdin], [], [], _LOOK_SECONDS)
        if ready and not os.read(sys.stdin.fileno(), 1 << 12):
            return None
    return None


if __name__ == "__main__":
    sys.exit(main())
