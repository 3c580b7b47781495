"""The client program: one client, or a range of them that share one preloaded parent."""

from nodes.cli import execute
from nodes.cli.client import command

execute(command)
