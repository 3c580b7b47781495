"""report.html: one file that shows a run, or compares several, anywhere and without a network.

All pictures are part of the page as SVG, there is no script on it, and it loads nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedsim import __version__
from fedsim.errors import UserError
from fedsim.results.load import LoadedRun, load
from fedsim.results.plots import gallery as plots
from fedsim.results.plots.drawing import themed
from fedsim.results.plots.gallery import Picture
from fedsim.results.report import tables as report_tables
from fedsim.results.wording import size

FILE_NAME = "report.html"


def write_report(folder: Path) -> Path:
    """Draw all pictures of a run into its folder plots, and the page beside them."""
    run = load(folder)
    pictures = plots.draw_run(run, folder / "plots")
    page = _render(
        "report.html",
        run=run,
        title=run.title,
        facts=report_tables.facts(run),
        pictures=[_embedded(picture) for picture in pictures],
        clients=report_tables.clients(run),
        costs=report_tables.costs(run),
        payloads=report_tables.payloads(run),
        kernel_check=report_tables.kernel_check(run),
        timings=report_tables.timings(run),
        server_timings=report_tables.server_timings(run),
        config=report_tables.config(run.experiment),
    )
    return _write(folder / FILE_NAME, page)


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Several runs on one page; their common pictures go into a folder beside it."""
    runs = named_runs(folders)
    pictures = plots.draw_comparison(runs, out.with_name(f"{out.stem}_plots"))
    page = _render(
        "comparison.html",
        title=f"{len(runs)} runs compared",
        pictures=[_embedded(picture) for picture in pictures],
        runs=report_tables.comparison(runs),
        differences=report_tables.differences(runs),
    )
    return _write(out, page)


def named_runs(folders: Sequence[Path]) -> dict[str, LoadedRun]:
    """By the names of their folders, or by their paths where names are not enough."""
    resolved = [folder.resolve() for folder in folders]
    for folder in folders:
        if resolved.count(folder.resolve()) > 1:
            raise UserError(f"the run {folder} is given twice; give each run once.")
    names = [folder.name for folder in resolved]
    distinct = len(set(names)) == len(names)
    return {name if distinct else str(folder): load(folder) for name, folder in zip(names, folders, strict=True)}


def _embedded(picture: Picture) -> dict[str, Any]:
    """A picture for the template."""
    return {
        "name": picture.name,
        "title": picture.title,
        "caption": picture.caption,
        "wide": picture.wide,
        "svg": Markup(themed(picture.svg.read_text(), picture.name)),
    }


def _render(template: str, **values: Any) -> str:
    environment = Environment(
        loader=PackageLoader("fedsim.results.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "share": lambda value: "–" if value is None else f"{100 * value:.2f} %",
        "bytes": lambda value: "–" if value is None else size(value),
        "count": lambda value: "–" if value is None else f"{value:,}",
        "cores": lambda value: "–" if value is None else f"{value:.2f}",
        "seconds": lambda value: "–" if value is None else f"{value:,.3f}" if value < 10 else f"{value:,.1f}",
    }
    return environment.get_template(template).render(version=__version__, **values)


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
