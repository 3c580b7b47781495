"""Tables on the terminal and in files; which kind of file is said by its name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from fedsim.errors import UserError
from fedsim.results.tables import formats
from fedsim.results.tables.grid import Table
from fedsim.results.tables.latex import latex

KINDS = {".tex": "latex", ".csv": "csv", ".md": "markdown"}


def check_files(paths: Sequence[Path], caption: str = "", *, latex: bool = False) -> None:
    """Before anything is read."""
    for path in paths:
        if path.suffix not in KINDS:
            raise UserError(
                f"{path} is to be a table of what kind? Give it a name that ends in {', '.join(KINDS)}."
            )
    if caption and not latex and not any(path.suffix == ".tex" for path in paths):
        raise UserError("--caption is for LaTeX; add --format latex or --out FILE.tex.")


def rendered(table: Table, kind: str, caption: str = "") -> str:
    if kind == "latex":
        return latex(table, caption)
    return {"csv": formats.csv, "markdown": formats.markdown}[kind](table)


def show(table: Table, kind: str = "text", caption: str = "", console: Console | None = None) -> None:
    """What is wrong with it goes to standard error, so that the rest may go into a file."""
    if kind == "text":
        if console is None:
            console = Console(highlight=False)
            console = console if console.is_terminal else Console(highlight=False, width=240)
        console.print(Text(table.title, style="bold"))
        for part in formats.terminal(table):
            console.print(part)
        for note in table.notes:
            console.print(Text(note, style="dim"), soft_wrap=True)
    else:
        click.echo(rendered(table, kind, caption), nl=False)
    for sentence in table.warnings:
        click.echo(sentence, err=True)


def write(table: Table, path: Path, caption: str = "") -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(rendered(table, KINDS[path.suffix], caption), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; choose another place.") from None
