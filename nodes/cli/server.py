"""`fedsim server`, which is also `python -m nodes.server`: the server alone, for a start by hand."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from nodes.cli.run import (
    build_experiment,
    default_folder,
    experiment_options,
    no_report_option,
    refuse_with_resume,
    seed_option,
)


@click.command()
@experiment_options
@seed_option
@click.option(
    "--bind", default="tcp://127.0.0.1:5555", show_default=True, help="Address to listen on, tcp://host:port."
)
@click.option("--keys", "keys_folder", type=Path, help="Folder with server.key_secret and every client-<id>.key.")
@click.option("--insecure", is_flag=True, help="Listen to other machines without keys.")
@click.option("--out", type=Path, help="Results folder.")
@click.option("--resume", type=Path, help="Go on with a run from its last checkpoint.")
@click.option("--quiet", is_flag=True, help="Only the summary.")
@no_report_option
def command(
    bind: str,
    keys_folder: Path | None,
    insecure: bool,
    out: Path | None,
    resume: Path | None,
    quiet: bool,
    no_report: bool,
    **options: Any,
) -> int:
    """Start the server of a run and wait for its clients.

    \b
    Examples:
      fedsim server --method fedtgp --clients 3 --rounds 2
      fedsim server --config experiment.toml --bind tcp://10.0.0.1:5555 --keys keys/
    """
    from fedsim import assembly
    from fedsim.results.folder import RunFolder
    from nodes.display.report_process import draw_report
    from nodes.display.run import make_display, print_summary
    from nodes.launchers import zygote
    from nodes.server.program import require_safe_address, security_from, serve

    if resume is not None:
        refuse_with_resume(out=out, **options)
    require_safe_address(bind, has_keys=keys_folder is not None, insecure=insecure)
    security = security_from(keys_folder)
    zygote.preload()
    if resume is None:
        experiment = build_experiment(**options)
        assembly.check(experiment)
        folder = RunFolder.create(out or default_folder(experiment), experiment)
    else:
        folder = RunFolder.open(resume)
    console = Console(highlight=False)
    display = make_display(console, folder.experiment().run.rounds, quiet=quiet)
    try:
        code = serve(
            folder,
            bind,
            security=security,
            resume=resume is not None,
            watcher=display.on_event,
            on_bound=lambda address: console.print(f"listening on {address}", soft_wrap=True),
        )
    finally:
        display.close()
    if summary := folder.summary():
        print_summary(console, summary, str(folder.path))
        if not no_report:
            console.print(Text(draw_report(folder.path)), soft_wrap=True)
    return code
