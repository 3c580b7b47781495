"""A parent that has imported torch once and runs every command that a test types in a process of its own.

Reads one JSON request a line and answers each with one line:

    {"start": {argv, cwd, environment, stdout, stderr, fresh}}   -> the process id
    {"poll": process id}                                          -> its exit code, or null while it runs

A command is forked from here, which saves the seconds that importing torch takes, or with `fresh` started
from nothing, as a user would. Each leads a session of its own, so that all its descendants can be found, and
dies with this process, which ends when its input does.
"""

import json
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

from nodes.launchers import zygote
from nodes.launchers.processes import die_with_parent


def main() -> None:
    zygote.preload()
    exit_codes: dict[int, int] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            answer: int | None = start(**request["start"])
            exit_codes.pop(answer, None)  # of an earlier command with this number: there are only 32,768 of them
        else:
            answer = poll(request["poll"], exit_codes)
        print(json.dumps(answer), flush=True)


def poll(process: int, exit_codes: dict[int, int]) -> int | None:
    if process not in exit_codes:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            exit_codes[process] = os.waitstatus_to_exitcode(status)
    return exit_codes.get(process)


def start(argv: list[str], cwd: str, environment: dict[str, str], stdout: str, stderr: str, fresh: bool) -> int:
    parent = os.getpid()
    if child := os.fork():
        return child
    code = 1
    try:
        os.setsid()
        die_with_parent(parent, signal.SIGKILL)
        for descriptor, path in ((0, os.devnull), (1, stdout), (2, stderr)):
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(opened, descriptor)
            os.close(opened)
        os.chdir(cwd)
        os.environ.update(environment)
        if fresh:
            os.execv(sys.executable, [sys.executable, *argv])
        code = run_as_python_would(argv)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_as_python_would(argv: list[str]) -> int:
    """`python -m module ...` or `python script.py ...`; returns the exit code."""
    try:
        if argv[0] == "-m":
            sys.argv = argv[1:]
            sys.path[0] = str(Path.cwd())
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = argv
            sys.path[0] = str(Path(argv[0]).parent)
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    main()
