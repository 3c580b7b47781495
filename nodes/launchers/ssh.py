"""A run over machines that one can log in to, `--hosts one,alice@two`, through the system's ssh and its settings.

Nothing is asked: a machine must let us in without a question, by a key or an agent. The clients' secret keys and
the files of own code go through the encrypted connection.
"""

import shlex
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fedsim.errors import UserError
from fedsim.results.folder import RunFolder
from nodes.display.run import Display
from nodes.launchers.base import LaunchOptions
from nodes.launchers.host import Facts
from nodes.launchers.hosts import HostsLauncher, Line
from nodes.launchers.remote_commands import CommandLine, explain_python

_SETTINGS = {"BatchMode": "yes", "ConnectTimeout": "10", "ServerAliveInterval": "5", "ServerAliveCountMax": "6"}
_NOT_REACHED = 255  # ssh's own code for every reason, a program that was killed among them


def parse_hosts(text: str) -> list[str]:
    """`a,b,c`, each once."""
    hosts = [host.strip() for host in text.split(",")]
    for host in hosts:
        if not host or host.startswith("-") or " " in host:
            raise UserError(f"--hosts: {host!r} is no machine to log in to; write --hosts one,two,user@three.")
    if twice := next((host for host in hosts if hosts.count(host) > 1), None):
        raise UserError(f"--hosts names {twice} twice; one host starts all clients of a machine.")
    return hosts


def require_ssh() -> None:
    if shutil.which("ssh") is None:
        raise UserError("there is no program ssh here; install it (package openssh-client).")


class SshLauncher(HostsLauncher):
    """One ssh connection for each host, for the whole run."""

    def __init__(
        self,
        folder: RunFolder,
        display: Display,
        options: LaunchOptions,
        hosts: Sequence[str],
        server_name: str | None = None,
        python: str | None = None,
    ):
        super().__init__(folder, display, options, server_name)
        self._machines = list(hosts)
        self._python = python or sys.executable

    def machines(self) -> list[str]:
        return self._machines

    def call(self, machine: str, log: Path) -> Line:
        settings = [word for name, value in _SETTINGS.items() for word in ("-o", f"{name}={value}")]
        program = shlex.join([self._python, "-m", "nodes.launchers.host"])
        command = ["ssh", "-T", *settings, machine, f"exec {program}"]
        return CommandLine(command, log, partial(self._explain, machine))

    def default_server_name(self, facts: Facts) -> str:
        return facts.seen_from

    def _explain(self, machine: str, code: int, last_words: str) -> str:
        if code == _NOT_REACHED and not last_words:
            return "was killed, or the connection to it broke"
        if code == _NOT_REACHED:
            return f"cannot be reached by ssh ({last_words}); `ssh {machine} true` must work without a question"
        return explain_python(code, last_words, self._python)
