"""`fedsim figure`: one picture of a run, or of many together, in the size and with the fonts of a paper."""

from __future__ import annotations

from pathlib import Path

import click

_EXAMPLES = """
\b
Examples:
  fedsim figure runs/sweep --out accuracy.pdf
  fedsim figure runs/sweep --plot accuracy_of_clients --width page --out fairness.pdf
  fedsim figure runs/fedtgp-digits --plot traffic --width 8.5cm --out traffic.svg
  fedsim figure runs/sweep --list
"""


@click.command(epilog=_EXAMPLES)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUNS...")
@click.option("--plot", default="accuracy_by_round", show_default=True, help="Which picture; --list names all.")
@click.option("--out", type=click.Path(path_type=Path), help="A .pdf, .svg or .png file; by default PLOT.pdf.")
@click.option(
    "--width",
    default="column",
    show_default=True,
    help="column (3.3 in), page (7 in), or a length: 3.5in, 8.5cm, 90mm.",
)
@click.option("--height", help="A length; by default what suits the width.")
@click.option("--font", type=click.Choice(["sans", "serif"]), default="sans", show_default=True)
@click.option("--list", "show_list", is_flag=True, help="Name the pictures that there are of these runs.")
def command(
    runs: tuple[Path, ...],
    plot: str,
    out: Path | None,
    width: str,
    height: str | None,
    font: str,
    show_list: bool,
) -> int:
    """Draw one picture of RUNS, which are run folders or folders of them, such as a sweep's.

    Of one run it is a picture of its report; of several they are compared, with a band over seeds. Letters are 8
    points high in the given width, so include it without scaling. A run that cannot be read is named and left out,
    and the exit code is 1.
    """
    from fedsim.results.groups import collect
    from fedsim.results.plots import gallery, paper

    collection = collect(runs)
    subject, plots = gallery.for_runs(collection)
    if show_list:
        for found in plots:
            click.echo(f"{found.name:<24} {found.title}")
        return 0
    chosen = gallery.named(plots, plot)
    page = paper.Page(paper.inches(width), paper.inches(height) if height else None, font)
    path = paper.draw(chosen, subject, out or Path(f"{plot}.pdf"), page)
    for sentence in (*collection.left_out, *collection.cautions):
        click.echo(sentence, err=True)
    click.echo(f"wrote {path}")
    return 1 if collection.left_out else 0
