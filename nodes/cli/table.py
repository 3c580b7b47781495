"""`fedsim table`: mean and deviation of many runs, as a table for the terminal, a spreadsheet or a paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from nodes.cli._tables import table_options, tell

if TYPE_CHECKING:
    from fedsim.results.values import Which

_EXAMPLES = """
\b
Examples:
  fedsim table runs/sweep                                      whatever was varied
  fedsim table runs/sweep --rows method --columns dataset,beta --out table.tex
  fedsim table runs/sweep --rows method=local+fedproto+fedtgp --baseline local
  fedsim table runs/* --metric accuracy,worst_tenth,bytes_up --round best,last
In LaTeX: \\usepackage{booktabs}, then \\input{table.tex}
"""


@click.command(epilog=_EXAMPLES)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUNS...")
@click.option("--rows", metavar="NAME,NAME", help="Settings that make the rows; NAME=A+B chooses values in order.")
@click.option("--columns", metavar="NAME,NAME", help="Settings that make the columns.")
@click.option(
    "--metric",
    default="accuracy",
    show_default=True,
    help="Columns of metrics.csv, worst_tenth, client_deviation, bytes_up, bytes_down, best_round, seconds.",
)
@click.option("--round", "rounds", default="best", show_default=True, help="best, last, or best,last.")
@click.option(
    "--deviation", type=click.Choice(["sample", "population"]), default="sample", show_default=True,
    help="Divide by n - 1, or by n as the papers do.",
)  # fmt: skip
@click.option("--baseline", default="", metavar="VALUE", help="Hold all others against this, paired by seed.")
@click.option(
    "--better", type=click.Choice(["higher", "lower"]), help="What is best; by default as the metric says."
)
@table_options
def command(
    runs: tuple[Path, ...],
    rows: str | None,
    columns: str | None,
    metric: str,
    rounds: str,
    deviation: str,
    baseline: str,
    better: Literal["higher", "lower"] | None,
    kind: str,
    out: tuple[Path, ...],
    caption: str,
) -> int:
    """Make a table of RUNS, which are run folders or folders of them, such as a sweep's.

    Runs that differ only in seeds share a cell. Without --rows and --columns, methods and their options make the
    rows, and whatever else was varied the columns. The best of a column is bold, the second underlined. A run
    that cannot be read is named and left out, and the exit code is 1.
    """
    from fedsim.results.groups import collect
    from fedsim.results.tables.grid import Description, build
    from nodes.display.tables import check_files

    check_files(out, caption, latex=kind == "latex")
    description = Description(
        rows=_words(rows, "--rows"),
        columns=_words(columns, "--columns"),
        metrics=_words(metric, "--metric") or ("accuracy",),
        rounds=_rounds(rounds),
        population=deviation == "population",
        baseline=baseline,
        better=better or "",
    )
    table = build(collect(runs, finished_only=True), description)
    tell(table, kind, out, caption)
    return 1 if table.warnings else 0


def _words(given: str | None, option: str) -> tuple[str, ...] | None:
    from fedsim.errors import UserError

    if given is None:
        return None
    words = tuple(word.strip() for word in given.split(",")) if given.strip() else ()
    if not all(words):
        raise UserError(f"{option} wants names separated by commas, not {given!r}.")
    return words


def _rounds(given: str) -> tuple[Which, ...]:
    from fedsim.errors import UserError

    known: dict[str, Which] = {"best": "best", "last": "last"}
    words = dict.fromkeys(word.strip() for word in given.split(","))
    if not words.keys() <= known.keys():
        raise UserError(f"--round wants best, last or best,last, not {given!r}.")
    return tuple(known[word] for word in words)
