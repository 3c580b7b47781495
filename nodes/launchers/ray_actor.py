"""What runs inside Ray on a node: it starts the host program and passes on what goes in and comes out.

Nothing of ours is imported here, and so no torch: the host is a process of its own, which ends when this one does.
"""

import contextlib
import os
import subprocess
import sys

_AT_ONCE_BYTES = 1 << 18


class HostActor:
    """One node's host, seen from afar."""

    def __init__(self, project: str):
        """`project` is where the launcher has found the packages; on the node they may be installed elsewhere."""
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), project]))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "nodes.launchers.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._input, self._outputs = self._process.stdin, (self._process.stdout, self._process.stderr)
        for output in self._outputs:
            os.set_blocking(output.fileno(), False)

    def exchange(self, text: bytes, hang_up: bool) -> tuple[bytes, bytes, int | None]:
        """Pass `text` on; returns what the host has said since, what it has printed, and its exit code."""
        with contextlib.suppress(BrokenPipeError):
            if text:
                self._input.write(text)
                self._input.flush()
            if hang_up:
                self._input.close()
        code = self._process.poll()  # before reading: nothing comes after it
        said, printed = (output.read(_AT_ONCE_BYTES) or b"" for output in self._outputs)
        return said, printed, code if not (said or printed) else None
