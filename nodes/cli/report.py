"""`fedsim report`: a page that shows a run, or compares several."""

from collections.abc import Sequence
from pathlib import Path

import click

from fedsim.errors import UserError


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--out", type=click.Path(path_type=Path), help="Page of a comparison; by default comparison.html.")
def command(runs: tuple[Path, ...], out: Path | None) -> int:
    """Draw the report of a run anew, or compare several runs on one page.

    A run's own report is RUN/report.html, with every picture as PNG and SVG in RUN/plots. A folder of runs, such
    as a sweep's, stands for all runs in it. A run that cannot be read is named and left out of a comparison, and
    the exit code is 1.

    \b
    Examples:
      fedsim report runs/fedtgp-digits-20250101-120000
      fedsim report runs/sweep
      fedsim report runs/fedtgp runs/fedproto runs/local --out comparison.html
    """
    from fedsim.results.report.page import write_comparison, write_report

    left_out: Sequence[str] = ()
    if len(runs) > 1 or _holds_runs(runs[0]):
        page, left_out = write_comparison(runs, out or Path("comparison.html"))
    elif out is not None:
        raise UserError("--out is for a comparison of several runs; the report of one run goes into its folder.")
    else:
        page = write_report(runs[0])
    for sentence in left_out:
        click.echo(sentence, err=True)
    click.echo(f"wrote {page}")
    return 1 if left_out else 0


def _holds_runs(path: Path) -> bool:
    return not (path / "config.toml").is_file() and any(path.glob("*/config.toml"))
