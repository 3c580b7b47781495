"""report.html: one file that shows a run, or compares several, anywhere and without a network.

All pictures are part of the page as SVG, there is no script on it, and it loads nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedsim import __version__
from fedsim.errors import UserError
from fedsim.results.groups import collect
from fedsim.results.load import load
from fedsim.results.plots import gallery
from fedsim.results.report import tables

FILE_NAME = "report.html"


def write_report(folder: Path) -> Path:
    """Draw all pictures of a run into its folder plots, and the page beside them."""
    run = load(folder)
    pictures = gallery.draw(gallery.PLOTS, run, folder / "plots")
    page = _render("report.html", run=run, title=run.title, pictures=pictures)
    return _write(folder / FILE_NAME, page)


def write_comparison(folders: Sequence[Path], out: Path) -> tuple[Path, Sequence[str]]:
    """Several runs on one page; their common pictures go into a folder beside it. Also says what was left out."""
    runs = collect(folders)
    pictures = gallery.draw(gallery.COMPARISONS, runs, out.with_name(f"{out.stem}_plots"))
    page = _render("comparison.html", runs=runs, title=f"{len(runs.runs)} runs compared", pictures=pictures)
    return _write(out, page), runs.left_out


def _render(template: str, **values: Any) -> str:
    environment = Environment(
        loader=PackageLoader("fedsim.results.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(version=__version__, tables=tables, zip=zip, **values)


def _write(path: Path, page: str) -> Path:
    """Under another name first: whoever looks at the old page never sees half of the new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(page)
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"the report {path} cannot be written: {error.strerror}; choose another place.") from None
    return path
