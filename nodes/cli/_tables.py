"""The options of commands that make a table, and what they do with it: print it, and write files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fedsim.results.tables.grid import Table

_OPTIONS = (
    click.option(
        "--format", "kind", type=click.Choice(["text", "csv", "markdown", "latex"]), default="text",
        show_default=True, help="Of what is printed.",
    ),
    click.option(
        "--out", multiple=True, type=click.Path(path_type=Path), help="A .tex, .csv or .md file; several.",
    ),
    click.option("--caption", default="", help="Of a LaTeX table with its environment; without it, a tabular."),
)  # fmt: skip


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--format, --out and --caption, in this order: as `kind`, `out` and `caption`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def tell(table: Table, kind: str, out: tuple[Path, ...], caption: str) -> None:
    """As these options say; `check_files` has seen them before."""
    from nodes.display.tables import show, write

    show(table, kind, caption)
    for path in out:
        write(table, path, caption)
        click.echo(f"wrote {path}", err=kind != "text")
