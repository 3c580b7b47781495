"""A run inside a job of Slurm: the server where the job's script runs, a host of clients on every node of the job.

Each host is a step of the job (`srun`, one task), so Slurm gives it the cores and GPUs that the job has on its
node, books what it uses, and ends it with the job.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from fedsim.errors import UserError
from fedsim.results.folder import RunFolder
from nodes.display.run import Display
from nodes.launchers.base import LaunchOptions
from nodes.launchers.host import Facts
from nodes.launchers.hosts import HostsLauncher, Line
from nodes.launchers.remote_commands import CommandLine, explain_python

_RUN_OF_EQUALS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def require_slurm() -> None:
    if "SLURM_JOB_ID" not in os.environ:
        raise UserError(
            "--launcher slurm works inside a job, and SLURM_JOB_ID is not set; `fedsim sbatch ... > job.sh` "
            "writes a script for one, or get an allocation with salloc."
        )
    for program in ("srun", "scontrol"):
        if shutil.which(program) is None:
            raise UserError(f"there is no program {program} here; Slurm's client programs must be installed.")
    nodes_of_job()


def nodes_of_job() -> list[str]:
    """By name, in Slurm's order."""
    listed = os.environ.get("SLURM_JOB_NODELIST", "")
    told = subprocess.run(["scontrol", "show", "hostnames", listed], capture_output=True, text=True, check=False)
    if not listed or told.returncode:
        reason = told.stderr.strip().rpartition("\n")[2] if listed else "SLURM_JOB_NODELIST is not set"
        raise UserError(
            f"the nodes of job {os.environ['SLURM_JOB_ID']} are not known here ({reason}); type the command in a "
            "shell of salloc, or in a script for sbatch."
        )
    return told.stdout.split()


def cpus_per_node(text: str) -> list[int]:
    """`SLURM_JOB_CPUS_PER_NODE`, for each node of the job in order: 4(x2),8 means 4, 4 and 8."""
    runs = _RUN_OF_EQUALS.findall(text)
    return [int(count) for count, times in runs for _ in range(int(times or 1))]


class SlurmLauncher(HostsLauncher):
    """The nodes are those of the job that we are in."""

    def __init__(
        self,
        folder: RunFolder,
        display: Display,
        options: LaunchOptions,
        server_name: str | None = None,
        python: str | None = None,
    ):
        super().__init__(folder, display, options, server_name)
        self._python = python or sys.executable
        nodes = nodes_of_job()
        cpus = cpus_per_node(os.environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
        self._cpus = dict(zip(nodes, cpus or [1] * len(nodes), strict=True))

    def machines(self) -> list[str]:
        return list(self._cpus)

    def call(self, machine: str, log: Path) -> Line:
        # A second host on a node, in place of one elsewhere, shares what the first has: --overlap.
        where = ["--nodes=1", "--ntasks=1", f"--nodelist={machine}", "--overlap", "--export=ALL"]
        step = ["srun", *where, f"--cpus-per-task={self._cpus[machine]}", "--job-name=fedsim-host"]
        program = [self._python, "-P", "-m", "nodes.launchers.host"]
        return CommandLine([*step, *program], log, self._explain)

    def default_server_name(self, facts: Facts) -> str:
        return socket.gethostname()

    def _explain(self, code: int, last_words: str) -> str:
        return explain_python(code, last_words, self._python)
