"""Every method as it is: the plain command for each, how it ends, and what it replaced to get there.

    python -m benchmarks.as_it_is --out runs/as-it-is

That is `python run_cluster.py --method M` and nothing more, for every M. Methods that have been run are not run
again, so the table can be made in several goes. Seconds are those of the machine as it was; those of its cores,
over all processes, hardly depend on what else it did.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from benchmarks._common import CONSOLE, machine_load
from fedsim import methods
from fedsim.results.load import load

PROJECT = Path(__file__).resolve().parent.parent


def run(method: str, out: Path, options: list[str]) -> dict[str, Any]:
    """The command as a user types it, but for where its results go and options that make a toy of it."""
    before, start = _processor_seconds(), time.perf_counter()
    words = [sys.executable, str(PROJECT / "run_cluster.py"), "--method", method, "--out", str(out), *options]
    ended = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    told = [line for line in ended.stdout.splitlines() if " instead of " in line]
    return {
        "code": ended.returncode,
        "best": load(out).summary["best_accuracy"] if ended.returncode == 0 else None,
        "seconds": time.perf_counter() - start,
        "processor_seconds": _processor_seconds() - before,
        "replaced": told,
        "printed": ended.stdout,
    }


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the runs.")
@click.option("--methods", "chosen", default=",".join(methods.names()), show_default=True)
@click.argument("options", nargs=-1)
def main(out: Path, chosen: str, options: tuple[str, ...]) -> None:
    """A Markdown table. OPTIONS, after --, go to every run: for a smaller one than the defaults'."""
    out.mkdir(parents=True, exist_ok=True)
    CONSOLE.print(f"{machine_load()} at the start")
    rows = []
    for method in chosen.split(","):
        kept = out / f"{method}.json"
        if not kept.exists():
            kept.write_text(json.dumps(run(method, out / method, list(options)), indent=1))
        row = json.loads(kept.read_text())
        rows.append((method, row))
        best = "–" if row["best"] is None else f"{100 * row['best']:.2f} %"
        CONSOLE.print(f"{method}: exit {row['code']}, {best}, {row['seconds']:.0f} s", soft_wrap=True)
    print("| method | exit code | best accuracy | seconds | core seconds | replaced |")
    print("|---|---|---|---|---|---|")
    for method, row in rows:
        best = "–" if row["best"] is None else f"{100 * row['best']:.2f}"
        cells = (
            methods.title(method),
            row["code"],
            best,
            f"{row['seconds']:.0f}",
            f"{row['processor_seconds']:.0f}",
        )
        print("|", " | ".join(map(str, (*cells, " ".join(row["replaced"]) or "–"))), "|")


if __name__ == "__main__":
    main()
