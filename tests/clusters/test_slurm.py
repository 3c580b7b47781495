"""Runs as jobs of a real Slurm of two nodes, which are both this machine."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import PROJECT, TINY, Command, Start, bits, rows, wait_for, wait_for_event

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(1800)]

JOB_SECONDS = 900  # a requeued job waits for two minutes
LONG = ("--rounds", "12", "--set", "train.local_epochs=60")


@pytest.fixture
def submit(python: Start, tmp_path: Path, slurm: dict[str, str]) -> Callable[..., str]:
    """`submit("--rounds", "3")`: the id of a job whose script `fedsim sbatch` has written."""

    def submitted(*options: str, time: str = "30") -> str:
        words = ("-m", "nodes", "sbatch", *TINY, *options, "--nodes", "2", "--time", time)
        script = python(*words, "--out", tmp_path / "run").succeed().stdout
        (tmp_path / "job.sh").write_text(script)
        return ask(slurm, "sbatch", "--parsable", str(tmp_path / "job.sh"))

    return submitted


def ask(environment: dict[str, str], *command: str) -> str:
    known = {**os.environ, **environment, "FEDSIM_NO_REPORT": "1"}
    return subprocess.run(command, env=known, capture_output=True, text=True, check=True).stdout.strip()


def wait_until_over(environment: dict[str, str], job: str) -> str:
    """The state in which it ended."""

    def over() -> str | None:
        shown = dict(
            word.partition("=")[::2]
            for word in ask(environment, "scontrol", "show", "job", job).split()
            if "=" in word
        )
        return shown["JobState"] if shown["JobState"] not in ("PENDING", "RUNNING", "COMPLETING") else None

    return wait_for(over, f"job {job} does not end", JOB_SECONDS)


def test_two_nodes_give_the_same_bits(
    submit: Callable[..., str], slurm: dict[str, str], tmp_path: Path, reference: Callable[..., Path]
) -> None:
    job = submit()
    assert wait_until_over(slurm, job) == "COMPLETED", (tmp_path / "run.log").read_text()
    assert bits(tmp_path / "run") == bits(reference())
    assert "2 hosts with clients: n1 0-1, n2 2-3\n" in (tmp_path / "run.log").read_text()


def test_a_job_that_is_told_that_its_time_is_over_goes_on_in_the_next(
    submit: Callable[..., str], slurm: dict[str, str], tmp_path: Path, reference: Callable[..., Path]
) -> None:
    """As its time limit tells it; that would take minutes."""
    job = submit(*LONG)
    wait_for_event(tmp_path / "run", "checkpoint", round=1)
    ask(slurm, "scancel", "--batch", "--signal=USR1", job)
    wait_for(lambda: "Restarts=1" in ask(slurm, "scontrol", "show", "job", job), "it is not requeued")
    assert wait_until_over(slurm, job) == "COMPLETED", (tmp_path / "run.log").read_text()
    assert "the run goes on with round" in (tmp_path / "run.log").read_text()
    assert bits(tmp_path / "run") == bits(reference(*LONG))
    assert len(rows(tmp_path / "run" / "metrics.csv")) == 13


OWN = """#!/bin/bash
#SBATCH --nodes=2 --output=own.log
{python} -m nodes server {experiment} --bind 'tcp://[::]:*' --keys keys --address-file server.json --out run &
srun --ntasks-per-node 1 {python} -m nodes client --address-file server.json --ids auto --keys keys
wait
"""


def test_a_script_of_ones_own_needs_no_address(
    python: Start, slurm: dict[str, str], tmp_path: Path, reference: Callable[..., Path]
) -> None:
    for who in ("server", "0-3"):
        python("-m", "nodes", "keys", "new", who).succeed()
    (tmp_path / "own.sh").write_text(OWN.format(python=sys.executable, experiment=shlex.join(TINY)))
    job = ask(slurm, "sbatch", "--parsable", f"--chdir={tmp_path}", str(tmp_path / "own.sh"))
    assert wait_until_over(slurm, job) == "COMPLETED", (tmp_path / "own.log").read_text()
    assert bits(tmp_path / "run") == bits(reference())
    assert not (tmp_path / "server.json").exists()


NO_PYTHON = ("--remote-python", "/no/python")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (NO_PYTHON, "host n1 has no /no/python; name its Python with --remote-python."),
        (
            ("--address", "no.invalid"),
            "no machine is known by that name; name one that it can reach with --address.",
        ),
    ],
)
def test_what_cannot_work_is_one_sentence(
    slurm: dict[str, str], python: Start, tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    inside = allocation(slurm)
    try:
        command = (PROJECT / "run_cluster.py", *TINY, "--launcher", "slurm", *options, "--out", tmp_path / "run")
        refused: Command = python(*command, **slurm, **inside)
        assert refused.wait() == 2
        assert sentence in refused.stderr and not (tmp_path / "run").exists()
    finally:
        ask(slurm, "scancel", inside["SLURM_JOB_ID"])


def allocation(slurm: dict[str, str]) -> dict[str, str]:
    """What a shell inside an allocation of one node has in its environment."""
    told = ask(slurm, "salloc", "--no-shell", "--nodes=1", "--nodelist=n1", "--time=10", "--job-name=bad")
    assert told == ""
    job = ask(slurm, "squeue", "--noheader", "--name=bad", "--format=%i").split()[-1]
    return {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_CPUS_PER_NODE": "1"}
