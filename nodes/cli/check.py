"""`fedsim check`: is a method, a model or data of your own all that those that ship are?"""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nodes.cli._values import everything, one_of

if TYPE_CHECKING:
    from nodes.tools.check import Finding

_EXAMPLES = """
\b
Examples:
  fedsim check ./my_method.py
  fedsim check ./my_method.py --set method.pull=0.5 --set model.group=CNN1,CNN2
  fedsim check ./nets.py:Small timm:mobilenetv3_small_050
  fedsim check ./data.py:load ./table.csv
  fedsim check fedtgp
"""


@click.command(epilog=_EXAMPLES)
@click.argument(
    "things", nargs=-1, required=True, metavar="METHOD|MODEL|DATA...", shell_complete=one_of(everything)
)
@click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Change the small experiment.")
def command(things: tuple[str, ...], settings: tuple[str, ...]) -> int:
    """Try a method, a model or data in small runs of which every bit is compared.

    Two runs, a cluster, and a run whose halves are made anew after each round must give the same bits; what is
    sent must be what the contract declares, and cost what follows from it; what cannot work must be refused.
    Models and data are tried with FedProto. Exits with 1 unless all is well.
    """
    from fedsim import config
    from fedsim.results.wording import counted
    from nodes.launchers import zygote
    from nodes.tools.check import Examination, layers_for

    layers = [config.parse_setting(text) for text in settings]
    zygote.use_one_thread()
    wanted = {thing: [*layers_for(thing), *layers] for thing in things}
    zygote.preload()
    console, num_problems = Console(highlight=False), 0
    for thing, changes in wanted.items():
        console.print(Text(thing, style="bold"))
        with tempfile.TemporaryDirectory(prefix="fedsim-check-") as scratch:
            for finding in Examination(changes, Path(scratch)).findings():
                num_problems += bool(finding.problem)
                console.print(_line(finding))
    console.print(counted(num_problems, "problem") if num_problems else "all is well")
    return 1 if num_problems else 0


def _line(finding: "Finding") -> Table:
    sign = (
        Text("✗", "bold red") if finding.problem else Text("✓", "green") if finding.was_tried else Text("–", "dim")
    )
    text = f"{finding.what}\n{finding.problem.rstrip('.')}." if finding.problem else finding.what
    line = Table.grid(padding=(0, 0, 0, 1))
    line.add_row(sign, Text(text))
    return line
