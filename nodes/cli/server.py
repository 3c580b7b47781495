"""`fedsim server`, which is also `python -m nodes.server`: the server alone, for a start by hand."""

from contextlib import closing
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from nodes.cli._experiment import build_experiment, refuse_with_resume, run_folder, run_options, show_end


@click.command(params=run_options())
@click.option(
    "--bind",
    multiple=True,
    default=["tcp://127.0.0.1:5555"],
    show_default=True,
    help="Address to listen on, tcp://host:port; repeatable. tcp://[::]:5555 is all addresses, IPv6 and IPv4.",
)
@click.option("--keys", "keys_folder", type=Path, help="Folder with server.key_secret and every client-<id>.key.")
@click.option(
    "--address-file",
    type=Path,
    help="Write there how others reach this server, for `fedsim client --address-file`; removed at the end.",
)
@click.option("--insecure", is_flag=True, help="Listen to other machines without keys.")
def command(
    bind: tuple[str, ...],
    keys_folder: Path | None,
    address_file: Path | None,
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
      fedsim server --config experiment.toml --bind 'tcp://[::]:*' --keys keys/ --address-file server.json
    """
    from fedsim.results.folder import RunFolder
    from nodes.display.run import PlainLines, make_display, waiting_line
    from nodes.display.tracking import tracked
    from nodes.launchers import zygote
    from nodes.launchers.address_file import Announcement
    from nodes.server.events import Event
    from nodes.server.program import require_safe_address, security_from, serve

    if resume is not None:
        refuse_with_resume(out=out, **options)
    for address in bind:
        require_safe_address(address, has_keys=keys_folder is not None, insecure=insecure)
    security = security_from(keys_folder)
    zygote.use_one_thread()
    experiment = build_experiment(**options) if resume is None else RunFolder.open(resume).experiment()
    announcement = Announcement(address_file, experiment.run.clients)
    zygote.preload()
    folder = run_folder(experiment, out, resume)
    console = Console(highlight=False)
    display = make_display(console, experiment.run.rounds, quiet=quiet)

    def watch(event: Event) -> None:
        display.on_event(event)
        if event["event"] == "waiting" and isinstance(display, PlainLines):  # a live view has a place for it
            console.print(Text(waiting_line(event)), soft_wrap=True)

    def tell_where(addresses: list[str]) -> None:
        # As text: rich would take the brackets of an IPv6 address for a style.
        console.print(Text(f"listening on {' and '.join(addresses)}"), soft_wrap=True)
        announcement.write(addresses)

    with tracked(folder, lambda text: console.print(Text(text, style="yellow"), soft_wrap=True)):
        with closing(display), closing(announcement):
            code = serve(
                folder,
                *bind,
                security=security,
                resume=resume is not None,
                watcher=watch,
                on_bound=tell_where,
            )
        show_end(console, folder, no_report=no_report)
    return code
