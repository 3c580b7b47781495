"""`fedsim report`: a page that shows a run, or compares several."""

from pathlib import Path

import click

from fedsim.errors import UserError


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--out", type=click.Path(path_type=Path), help="Page of a comparison; by default comparison.html.")
def command(runs: tuple[Path, ...], out: Path | None) -> None:
    """Draw the report of a run anew, or compare several runs on one page.

    A run's own report is RUN/report.html, with every picture as PNG and SVG in RUN/plots.

    \b
    Examples:
      fedsim report runs/fedtgp-digits-20250101-120000
      fedsim report runs/fedtgp runs/fedproto runs/local --out comparison.html
    """
    from fedsim.results.report.page import write_comparison, write_report

    if len(runs) > 1:
        page = write_comparison(runs, out or Path("comparison.html"))
    elif out is not None:
        raise UserError("--out is for a comparison of several runs; the report of one run goes into its folder.")
    else:
        page = write_report(runs[0])
    click.echo(f"wrote {page}")
