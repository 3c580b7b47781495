"""One command: options in, a cluster of real processes on this machine, a results folder out."""

from nodes.cli import execute
from nodes.cli.run import command

if __name__ == "__main__":
    execute(command)
