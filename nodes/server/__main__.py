"""The server program.

python -m nodes.server --config experiment.toml --bind tcp://0.0.0.0:5555 --keys keys/
"""

from nodes.cli import execute
from nodes.cli.server import command

execute(command)
