"""`fedsim client`, which is also `python -m nodes.client`: one client, or a range of them, on this machine."""

from typing import Any

import click

from nodes.client.options import ClientOptions, click_options


@click.command(params=click_options())
def command(**options: Any) -> int:
    """Start one client or a range of them; the experiment comes from the server.

    \b
    Examples:
      fedsim client --connect tcp://127.0.0.1:5555 --ids 0-9
      fedsim client --connect tcp://10.0.0.1:5555 --ids 7 --keys keys/
    """
    from nodes.client.program import run_clients

    return run_clients(ClientOptions(**options), by_hand=True)
