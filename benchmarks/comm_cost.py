"""What a round of every method costs in bytes: `fedsim comm-cost` under the name of a benchmark.

    python -m benchmarks.comm_cost [--dataset cifar100] [--model-group HtFE8] [--clients 20] [--methods all] [...]

It needs no training, so it takes seconds; all options are those of `fedsim comm-cost --help`.
"""

from nodes.cli import execute
from nodes.cli.comm_cost import command

if __name__ == "__main__":
    execute(command)
