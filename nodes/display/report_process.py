"""The report of a run that is over, drawn in a process of its own.

Nothing that goes wrong there can touch the run: its results are on the disk, and its exit code is decided. The
process is a new one because this one may have used threads, which a fork does not survive.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from fedsim.errors import FedsimError
from nodes.launchers.processes import die_with_parent

PATIENCE_SECONDS = 120.0


def draw_report(folder: Path) -> str:
    """Draw it; returns a line for the user."""
    again = f"try again with: fedsim report {folder}"
    packages = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (packages, os.environ.get("PYTHONPATH"))))
    # One thread: the pictures are small, and threads that wait for each other are slow on a busy machine.
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "nodes.display.report_process", str(os.getpid()), str(folder)]
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"the report was not drawn within {PATIENCE_SECONDS:g} s; {again}"
    except OSError as error:
        return f"the report was not drawn: {error.strerror}; {again}"
    if done.returncode == 0:
        return f"report in {done.stdout.strip()}"
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1].rstrip(".")
    return f"the report was not drawn: {reason}; {again}"


def main() -> int:
    """`python -m nodes.display.report_process PARENT FOLDER`"""
    die_with_parent(int(sys.argv[1]), signal.SIGKILL)
    from fedsim.results.report.page import write_report

    try:
        print(write_report(Path(sys.argv[2])))
    except FedsimError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
