"""A job script for Slurm that runs an experiment, and goes on with it in the next job when the time is over."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fedsim.config import Experiment

_SIGNAL_SECONDS = 120  # enough for the slowest round to be given up and for all processes to end


def script(experiment: Experiment, config: Path, run: Path, nodes: int, time: str, further: Sequence[str]) -> str:
    """`further` are options of sbatch, such as partition=gpu."""
    lines = "".join(f"#SBATCH --{option.removeprefix('--')}\n" for option in further)
    fedsim = shlex.join([sys.executable, "-m", "nodes", "run", "--launcher", "slurm"])
    output = shlex.quote(f"{run}.log".replace("%", "%%"))  # sbatch knows quotes, and patterns such as %j
    return f"""\
#!/bin/bash
# {experiment.run.clients} clients on {nodes} nodes. Hand it in with: sbatch THIS_FILE
#SBATCH --job-name={experiment.method_name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --time={time}
# A minute or two before the time is over this script is told so, and sends the job back into the queue.
#SBATCH --signal=B:USR1@{_SIGNAL_SECONDS}
#SBATCH --requeue
# All jobs of this run print to one file.
#SBATCH --output={output}
#SBATCH --open-mode=append
{lines}
run={shlex.quote(str(run))}

# The server runs here, on the first node; fedsim starts one host of clients on every node with srun.
# A run that has begun is gone on with from its last checkpoint.
if [ -e "$run/config.toml" ]; then
    {fedsim} --resume "$run" &
else
    {fedsim} --config {shlex.quote(str(config))} --out "$run" &
fi
fedsim=$!

stop() {{
    trap '' USR1 TERM
    kill -TERM $fedsim
    wait $fedsim
    [ "$1" = USR1 ] && scontrol requeue "$SLURM_JOB_ID"
    exit 0
}}
trap 'stop USR1' USR1  # the time is nearly over
trap 'stop TERM' TERM  # preempted or cancelled: whether the job comes back is for Slurm to say
wait $fedsim
"""
