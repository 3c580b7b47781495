"""`fedsim doctor`: is everything there that runs need?"""

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}
_EXAMPLES = """
\b
Examples:
  fedsim doctor
  fedsim doctor --port 5555 --data-dir ~/data
  fedsim doctor --clients 100 --model-group HtFE4    would these fit here?
"""


@click.command(epilog=_EXAMPLES)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Also try this port.")
@click.option("--data-dir", default="", help="Where to look for data first.")
@click.option("--clients", type=click.IntRange(1), default=20, show_default=True, help="Would so many fit?")
@click.option("--model-group", default="HtFE8", show_default=True, help="With these models.")
def command(port: int, data_dir: str, clients: int, model_group: str) -> int:
    """Check the installation, GPU, memory, data, ports and kernel, and say what to do.

    Ends with code 1 when there is a problem with which runs fail; notes are only good to know.
    """
    from nodes.tools.doctor import examine

    findings = list(examine(port, data_dir, clients, model_group))
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        text = finding.text + (f" → {finding.remedy}" if finding.remedy else "")
        table.add_row(Text(finding.level, style=_STYLES[finding.level]), finding.what, Text(text))
    console = Console(highlight=False)
    console.print(table)
    problems = sum(finding.level == "problem" for finding in findings)
    notes = sum(finding.level == "note" for finding in findings)
    console.print(f"{problems} problems, {notes} notes" if problems else f"no problems, {notes} notes")
    return 1 if problems else 0
