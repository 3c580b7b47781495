"""Hosts that a local command starts on another machine, with its input, output and errors connected to us."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

_LAST_WORDS_BYTES = 2000
_KILLED = 128


class CommandLine:
    """The command is `ssh machine ...` or the like: it ends when the host does, the host when its input does."""

    def __init__(self, command: Sequence[str], log: Path, explain: Callable[[int, str], str]):
        """`explain` makes a clause of the command's exit code and of the last line that it printed, if it never
        answered: what a host prints later is its clients' matter."""
        self._explain = explain
        self._log = log
        self._told_before = log.stat().st_size if log.exists() else 0
        with log.open("ab") as errors:
            # In a session of its own: Ctrl-C is the launcher's.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._rest, self._has_answered = b"", False

    def tell(self, text: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # its end is seen elsewhere
            self._input.write(text)
            self._input.flush()

    def listen(self) -> list[bytes]:
        while not self._output.closed and (told := self._output.read(1 << 16)):
            self._rest += told
            self._has_answered = True
        *lines, self._rest = self._rest.split(b"\n")
        return lines

    def ended(self) -> str | None:
        code = self._process.poll()
        if code is None:
            return None
        return self._explain(code, "" if self._has_answered else self._last_words())

    def hang_up(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._input.close()

    def cut(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self.hang_up()
        self._output.close()

    def _last_words(self) -> str:
        with self._log.open("rb") as file:
            file.seek(max(self._told_before, self._log.stat().st_size - _LAST_WORDS_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").split("\n") if line.strip()]
        # srun ends with a line that says nothing but the exit code.
        return next((line for line in reversed(lines) if not line.startswith("srun: error: ")), "")


def explain_python(code: int, last_words: str, python: str | None = None) -> str:
    """What went wrong once the machine was reached. Without `python` it was not ours to choose."""
    if "No module named" in last_words:
        where, remedy = (python, ", or name another with --remote-python") if python else ("its Python", "")
        return f"has no fedsim of this version in {where}; install it there{remedy}"
    if python and (code in (126, 127) or "No such file" in last_words):
        return f"has no {python}; name its Python with --remote-python"
    how = f"was killed by signal {code - _KILLED}" if _KILLED < code < 2 * _KILLED else f"ended with code {code}"
    return f"{how}: {last_words}" if last_words else how
