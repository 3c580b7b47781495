"""`fedsim server`, which is also `python -m nodes.server`: the server alone, for a start by hand."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from nodes.cli._experiment import build_experiment, refuse_with_resume, run_folder, run_options, show_end


@click.command(params=run_options())
@click.option(
    "--bind", default="tcp://127.0.0.1:5555", show_default=True, help="Address to listen on, tcp://host:port."
)
@click.option("--keys", "keys_folder", type=Path, help="Folder with server.key_secret and every client-<id>.key.")
@click.option("--insecure", is_flag=True, help="Listen to other machines without keys.")
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
    from fedsim.results.folder import RunFolder
    from nodes.display.run import make_display
    from nodes.launchers import zygote
    from nodes.server.program import require_safe_address, security_from, serve

    if resume is not None:
        refuse_with_resume(out=out, **options)
    require_safe_address(bind, has_keys=keys_folder is not None, insecure=insecure)
    security = security_from(keys_folder)
    experiment = build_experiment(**options) if resume is None else RunFolder.open(resume).experiment()
    zygote.preload()
    folder = run_folder(experiment, out, resume)
    console = Console(highlight=False)
    display = make_display(console, experiment.run.rounds, quiet=quiet)
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
    show_end(console, folder, no_report=no_report)
    return code
