"""Whether two checkouts of the project compute the same: every method on digits, as real clusters, bit by bit.

    python -m benchmarks.compare_checkouts ../before

A change that is not meant to alter numbers leaves `metrics.csv`, `clients.csv`, `final.safetensors` and
`ledger.csv` as they were. A file may have columns that the other checkout does not know; those are named, the
rest must agree.
"""

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from benchmarks._common import CONSOLE
from fedsim import methods

HERE = Path(__file__).resolve().parent.parent
Table = dict[str, list[str]]
TABLES = ("metrics.csv", "clients.csv", "ledger.csv")
_SETTINGS = ("data.public_samples=100", "method.server_epochs=2", "method.server_model=CNN2")
PUBLIC = tuple(word for setting in _SETTINGS for word in ("--set", setting))
ONE_MODEL = ("--model-group", "CNN2")
OPTIONS = {
    **dict.fromkeys(("fedprotokd", "fedpkd", "fed2pkd"), PUBLIC),
    "fedmd": PUBLIC[:2],
    **dict.fromkeys(("fedavg", "fedprox", "fednh", "feduv"), ONE_MODEL),
}
"""What a method needs to run on so few samples, beside the options that all are given."""


def run(checkout: Path, method: str, rounds: int, folder: Path) -> None:
    words = f"run_cluster.py --method {method} --dataset digits --clients 6 --rounds {rounds}".split()
    words += [*OPTIONS.get(method, ()), "--set", "cluster.server_threads=1", "--out", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "FEDSIM_NO_REPORT": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(
            f"{checkout}: {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )


def compare(ours: Path, theirs: Path) -> tuple[list[str], list[str]]:
    """What differs, and which columns are new."""
    different, gained = [], []
    for name in TABLES:
        mine, yours = table(ours / name), table(theirs / name)
        gained += [f"{name}: {column}" for column in mine if column not in yours]
        different += [f"{name}: {column} is gone" for column in yours if column not in mine]
        different += [
            f"{name}: {column}{_rows(mine, column, yours)}"
            for column in mine
            if mine[column] != yours.get(column, mine[column])
        ]
    mine_final, yours_final = (contents(folder / "final.safetensors") for folder in (ours, theirs))
    if mine_final != yours_final:
        different.append("final.safetensors")
    return different, gained


def _rows(mine: Table, column: str, yours: Table) -> str:
    """Of a ledger, in which messages and payloads: new options make the experiment in a welcome longer."""
    if "payload" not in mine or len(mine[column]) != len(yours[column]):
        return ""
    rows = zip(mine[column], yours[column], mine["message"], mine["payload"], strict=True)
    kinds = {f"{message}/{payload}" for own, other, message, payload in rows if own != other}
    return f" of {' and '.join(sorted(kinds))}"


def contents(path: Path) -> bytes | None:
    """None where a method sends nothing down, so that there is nothing to keep."""
    return path.read_bytes() if path.exists() else None


def table(path: Path) -> Table:
    """A file of comma-separated values, by column."""
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    return {column: [row[column] for row in rows] for column in rows[0]}


@click.command()
@click.argument("other", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--methods", "chosen", default=",".join(methods.names()), show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option(
    "--keep", type=click.Path(path_type=Path), help="Keep the runs here, and do not make again what is here."
)
def main(other: Path, chosen: str, rounds: int, keep: Path | None) -> None:
    """Exits with 1 where anything but a new column differs."""
    num_different = 0
    with tempfile.TemporaryDirectory() as temporary:
        root = keep.resolve() if keep else Path(temporary)
        for method in chosen.split(","):
            folders = {"here": HERE, "other": other.resolve()}
            for name, checkout in folders.items():
                if not (root / name / method / "summary.json").exists():
                    run(checkout, method, rounds, root / name / method)
            different, gained = compare(root / "here" / method, root / "other" / method)
            num_different += bool(different)
            verdict = f"DIFFERS in {', '.join(different)}" if different else "the same bits"
            CONSOLE.print(f"{method:12} {verdict}" + (f" (new: {', '.join(gained)})" if gained else ""))
    CONSOLE.print(f"{len(chosen.split(','))} methods, {num_different} differ")
    sys.exit(bool(num_different))


if __name__ == "__main__":
    main()
